"""Models by name, each split into a body and a head."""

from collections.abc import Callable

from fedomg.core.imports import check_import_path, is_import_path
from fedomg.core.names import known
from fedomg.models.backbones import mobilenet_v2, resnet18, resnet50
from fedomg.models.cnn import cnn
from fedomg.models.linear import linear
from fedomg.models.mlp import mlp
from fedomg.models.own import own
from fedomg.models.split import SplitModel
from fedomg.models.tiny_resnet import tiny_resnet
from fedomg.models.weights import NONE, load_pretrained

MODELS: dict[str, Callable[[tuple[int, ...], int], SplitModel]] = {
    "cnn": cnn,
    "linear": linear,
    "mlp": mlp,
    "mobilenet_v2": mobilenet_v2,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "tiny_resnet": tiny_resnet,
}


def known_model(name: str) -> str:
    """The name itself, where it is one of ours or the import path of the user's own."""
    return check_import_path("model", name) if is_import_path(name) else known("model", name, MODELS)


def build_model(name: str, shape: tuple[int, ...], classes: int, weights: str = NONE) -> SplitModel:
    """The head is random in any case, and the same whatever the weights."""
    if is_import_path(name):
        return own(name, shape, classes)
    model = MODELS[known_model(name)](shape, classes)
    if weights != NONE:
        load_pretrained(name, model.body, weights)
    return model
