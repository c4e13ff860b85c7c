"""For people who have a Flower app: `from fedomg.flower import FedOMG`."""

try:
    from fedomg.flower.strategy import FedOMG, TooFewNodesError
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "flwr":
        raise
    raise ModuleNotFoundError("fedomg.flower needs Flower: pip install 'fedomg[flower]'", name="flwr") from None

__all__ = ["FedOMG", "TooFewNodesError"]
