"""The Flower engine: clients are served by the nodes of a Flower grid, simulated or deployed. Only this package imports flwr."""
