"""Models by name: their parameters, their two parts, and inputs that they cannot take."""

import pytest
import torch
from torch import nn

from fedomg.core.errors import UserError
from fedomg.core.params import FlatModel, Group
from fedomg.models import MODELS, build_model, known_model

GREY, COLOUR = (1, 28, 28), (3, 32, 32)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("cnn", GREY, 10, 582_026),
        ("cnn", COLOUR, 10, 878_538),
        ("cnn", COLOUR, 100, 924_708),
        ("mlp", GREY, 10, 199_210),
        ("linear", GREY, 10, 7_850),
        ("resnet18", COLOUR, 7, 11_180_103),
        ("resnet50", COLOUR, 7, 23_522_375),
        ("mobilenet_v2", COLOUR, 1000, 3_504_872),
        ("tiny_resnet", GREY, 10, 77_754),
    ],
)
def test_numbers_of_parameters(name: str, shape: tuple[int, ...], classes: int, parameters: int) -> None:
    model = build_model(name, shape, classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_a_body_and_a_linear_head(name: str) -> None:
    model = build_model(name, COLOUR, 5).eval()
    assert isinstance(model.head, nn.Linear)
    inputs = torch.rand(2, *COLOUR, generator=torch.Generator().manual_seed(0))
    features = model.body(inputs)
    assert features.shape == (2, model.head.in_features)
    assert torch.equal(model(inputs), model.head(features))
    assert model(inputs).shape == (2, 5)
    names = {name.partition(".")[0] for name, _ in model.named_parameters()}
    assert names <= {"body", "head"}
    assert [name for name, _ in model.named_parameters() if name.startswith("head.")] == ["head.weight", "head.bias"]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_trains_as_flat_vectors(name: str) -> None:
    model = build_model(name, COLOUR, 5)
    flat = FlatModel(model, lambda name: Group.PERSONAL if name.startswith("head.") else Group.SHARED)
    flat.train_only((Group.SHARED, Group.PERSONAL))
    inputs = torch.rand(4, *COLOUR, generator=torch.Generator().manual_seed(0))
    model(inputs).square().sum().backward()
    assert all(gradient.isfinite().all() for gradient in flat.gradients.values())
    assert flat.gradients[Group.PERSONAL].abs().sum() > 0


@pytest.mark.parametrize(
    ("name", "normalised"),
    [("cnn", False), ("mlp", False), ("tiny_resnet", True), ("resnet18", True), ("resnet50", True), ("mobilenet_v2", True)],
)
def test_which_models_normalise_their_batches(name: str, normalised: bool) -> None:
    assert FlatModel(build_model(name, COLOUR, 3), lambda name: Group.SHARED).has_batchnorm is normalised


@pytest.mark.parametrize(
    ("name", "shape"),
    [("resnet18", GREY), ("mobilenet_v2", GREY), ("resnet18", (8,)), ("tiny_resnet", (8,)), ("cnn", (8,)), ("cnn", (1, 8, 8))],
)
def test_inputs_that_a_model_cannot_take(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=f'model "{name}" needs .*try "'):
        build_model(name, shape, 3)


def test_small_images_and_grey_ones() -> None:
    assert build_model("tiny_resnet", (1, 8, 8), 3)(torch.zeros(2, 1, 8, 8)).shape == (2, 3)


def test_names() -> None:
    assert known_model("resnet18") == "resnet18"
    assert known_model("mine:model") == "mine:model"
    with pytest.raises(UserError, match=r'no model is called "resnet"; did you mean "resnet50"'):
        known_model("resnet")
    with pytest.raises(UserError, match=r'"mine:" is no import path: write package\.module:name'):
        known_model("mine:")
