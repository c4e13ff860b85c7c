"""Models by name, each split into a body and a head."""

from collections.abc import Callable

from fedomg.core.errors import UserError
from fedomg.core.names import unknown_name
from fedomg.models.cnn import cnn
from fedomg.models.linear import linear
from fedomg.models.split import SplitModel

MODELS: dict[str, Callable[[tuple[int, ...], int], SplitModel]] = {"cnn": cnn, "linear": linear}


def build_model(name: str, shape: tuple[int, ...], classes: int) -> SplitModel:
    if name not in MODELS:
        raise UserError(unknown_name("model", name, MODELS))
    return MODELS[name](shape, classes)
