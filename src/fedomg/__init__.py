"""Federated domain generalization with on-server matching gradients (FedOMG)."""

from importlib.metadata import version

__version__ = version("fedomg")
