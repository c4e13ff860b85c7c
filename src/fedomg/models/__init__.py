"""Models by name, each split into a body and a head."""

from collections.abc import Callable

from fedomg.core.names import known
from fedomg.models.cnn import cnn
from fedomg.models.linear import linear
from fedomg.models.split import SplitModel

MODELS: dict[str, Callable[[tuple[int, ...], int], SplitModel]] = {"cnn": cnn, "linear": linear}


def build_model(name: str, shape: tuple[int, ...], classes: int) -> SplitModel:
    return MODELS[known("model", name, MODELS)](shape, classes)
