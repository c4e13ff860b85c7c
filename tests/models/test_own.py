"""Models of the user's own."""

import itertools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedomg.core.errors import UserError
from fedomg.models import build_model
from fedomg.models.split import SplitModel

Build = Callable[[Any], SplitModel]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Build:
    module = ModuleType("own_models")
    monkeypatch.setitem(sys.modules, "own_models", module)

    def build_it(value: Any) -> SplitModel:
        vars(module)["name"] = value
        return build_model("own_models:name", (4,), 3)

    return build_it


class Net(nn.Module):
    """With a linear layer that is registered before the last, and dropout and batch normalisation on the way."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(shape[0], 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
        self.out = nn.Linear(6, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.out(F.relu(self.first(inputs)))
        return out


class Soft(Net):
    def forward(self, inputs: Tensor) -> Tensor:
        return F.log_softmax(super().forward(inputs), dim=1)


class Double(Net):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).double()


def test_the_last_linear_layer_becomes_the_head(build: Build) -> None:
    torch.manual_seed(0)
    whole = Net((4,), 3).eval()
    inputs = torch.randn(5, 4)
    expected = whole(inputs)
    split = build(lambda shape, classes: whole.train())
    assert split.training
    assert split.head is not whole.out
    assert split.body is whole
    assert torch.equal(split.eval()(inputs), expected)
    assert {name for name, _ in split.named_parameters() if name.startswith("head.")} == {"head.weight", "head.bias"}
    assert dict(split.named_buffers())["body.first.1.num_batches_tracked"] == 0


def test_a_class_a_split_model_and_a_single_layer(build: Build) -> None:
    assert isinstance(build(Net), SplitModel)
    made = SplitModel(nn.Linear(4, 2), nn.Linear(2, 3))
    assert build(lambda shape, classes: made) is made
    single = build(lambda shape, classes: nn.Linear(4, 3))
    assert isinstance(single.body, nn.Identity)
    assert single(torch.zeros(2, 4)).shape == (2, 3)


def _raising(shape: Any, classes: Any) -> Any:
    raise ValueError("bad\nthing")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, r"is of type int: it must be a callable \(shape, classes\)"),
        (nn.Linear(4, 3), "is of type Linear: it must be a callable"),
        (lambda shape: nn.Linear(4, 3), r"cannot be made for shape \(4,\) and 3 classes: TypeError"),
        (_raising, "cannot be made .*: ValueError: bad thing"),
        (lambda shape, classes: "net", "returns a str: it must return an nn.Module"),
        (lambda shape, classes: nn.Linear(5, 3), r"fails on inputs of shape \(4,\): RuntimeError"),
        (lambda shape, classes: nn.Linear(4, 2), r"answers two examples with \(2, 2\), not with logits of shape \(2, 3\)"),
        (lambda shape, classes: nn.LSTM(4, 3), "answers two examples with tuple"),
        (lambda shape, classes: nn.Bilinear(4, 4, 3), r"fails on inputs of shape \(4,\): TypeError"),
        (lambda shape, classes: nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Conv1d(4, 3, 1), nn.Flatten()), "has no linear layer that could"),
        (Soft, "its last linear layer is not its last step"),
        (lambda shape, classes: nn.Linear(4, 3, dtype=torch.float64), "fails on inputs"),
        (lambda shape, classes: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3, bias=False).double()), "fails on inputs"),
    ],
    ids=itertools.count(),
)
def test_mistakes_are_one_line(build: Build, value: Any, message: str) -> None:
    with pytest.raises(UserError, match='^model "own_models:name".*' + message) as refusal:
        build(value)
    assert "\n" not in str(refusal.value)


def test_parameters_of_another_type(build: Build) -> None:
    class Mixed(Net):
        def __init__(self, shape: tuple[int, ...], classes: int) -> None:
            super().__init__(shape, classes)
            self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))

    with pytest.raises(UserError, match=r"parameter scale is torch.float64, only float32 can be trained"):
        build(Mixed)
