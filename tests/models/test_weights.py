"""ImageNet weights from files, and BatchNorm that keeps its statistics."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import TINY, experiment, run_rounds, tiny
from torch import Tensor, nn

from fedomg.core.errors import UserError
from fedomg.core.params import FlatModel, Group
from fedomg.core.torchvision_compat import torchvision
from fedomg.experiment.config import make_config
from fedomg.experiment.runner import run
from fedomg.models import build_model
from fedomg.models.freeze import freeze_batchnorm
from fedomg.models.options import ModelOptions
from fedomg.models.weights import find

SHAPE = (3, 32, 32)
State = dict[str, Tensor]


@pytest.fixture(scope="module")
def state() -> State:
    """What torchvision would publish: a whole network with its 1000 classes."""
    torch.manual_seed(1)
    return dict(torchvision("models").resnet18(weights=None).state_dict())


def _published(state: Any, folder: Path, name: str = "resnet18-{}.pth") -> Path:
    """The file under its published name, which names its hash."""
    plain = folder / "plain.pth"
    torch.save(state, plain)
    return plain.rename(folder / name.format(hashlib.sha256(plain.read_bytes()).hexdigest()[:8]))


def _built(weights: str = "none") -> nn.Module:
    torch.manual_seed(0)
    return build_model("resnet18", SHAPE, 5, weights)


def test_the_body_is_the_files_and_the_head_is_random(state: State, tmp_path: Path) -> None:
    file = _published(state, tmp_path)
    random, filled = _built(), _built(str(file))
    for name, value in filled.state_dict().items():
        part, _, key = name.partition(".")
        assert torch.equal(value, state[key] if part == "body" else random.state_dict()[name]), name
    assert filled.training


def test_torchvisions_cache_and_a_folder(state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(
        UserError, match=r"weights of model \"resnet18\" are missing: the folder .*checkpoints holds no resnet18-f37072fd.pth"
    ):
        find("resnet18", "imagenet")
    file = tmp_path / "checkpoints" / "resnet18-f37072fd.pth"
    torch.save(state, file)
    with pytest.raises(UserError, match=r"resnet18-f37072fd.pth are damaged: their SHA-256 does not begin with f37072fd"):
        find("resnet18", "imagenet")
    monkeypatch.setattr("fedomg.models.weights._check_hash", lambda *_: None)
    assert find("resnet18", "imagenet") == find("resnet18", str(tmp_path / "checkpoints")) == file
    assert torch.equal(_built("imagenet").state_dict()["body.conv1.weight"], state["conv1.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: {k: v for k, v in state.items() if k != "conv1.weight"}, 'does not fit model "resnet18": it lacks conv1.weight'),
        (lambda state: {**state, "extra.weight": torch.zeros(1)}, "it has more than the model, such as extra.weight"),
        (lambda state: {**state, "conv1.weight": torch.zeros(1)}, "size mismatch for conv1.weight"),
        (lambda state: {"model": state}, "holds something other than named tensors"),
        (lambda state: _Harmful(), "is no file of weights"),
    ],
)
def test_other_files_are_refused_in_a_line(state: State, tmp_path: Path, change: Any, message: str) -> None:
    file = tmp_path / "own.pth"
    torch.save(change(state), file)
    with pytest.raises(UserError, match=message) as refusal:
        _built(str(file))
    assert str(file) in str(refusal.value)
    assert "\n" not in str(refusal.value)


class _Harmful:
    """Would run code of its own where a pickle is loaded without care."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('code in a file of weights was run')",)


def test_no_weights_no_run(tmp_path: Path) -> None:
    model = {"name": "mobilenet_v2", "weights": str(tmp_path / "absent.pth")}
    config = make_config({**TINY, "dataset": "folder", "data": {"root": str(tmp_path / "nowhere")}, "model": model})
    with pytest.raises(UserError, match=r"absent.pth does not exist; fetch https?://.*mobilenet_v2-b0353104.pth and set model.weights to"):
        run(config, tmp_path / "out")


def test_options_without_effect_are_refused() -> None:
    with pytest.raises(UserError, match=r'model "cnn" has no ImageNet weights; remove model.weights'):
        ModelOptions(weights="imagenet")
    with pytest.raises(UserError, match=r"model.frozen_batchnorm has no effect with model.frozen_backbone"):
        ModelOptions(frozen_batchnorm=True, frozen_backbone=True)
    with pytest.raises(UserError, match='no effect on model "linear", which has no BatchNorm'):
        experiment(tiny("fedavg", "model.frozen_batchnorm=true"))


def test_frozen_batchnorm_keeps_its_statistics_and_learns_its_scale() -> None:
    torch.manual_seed(0)
    model = build_model("tiny_resnet", (1, 8, 8), 3)
    inputs = torch.randn(4, 1, 8, 8)
    expected = model.eval()(inputs)
    assert freeze_batchnorm(model) == sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    flat = FlatModel(model.train(), lambda name: Group.SHARED)
    assert not flat.has_batchnorm
    torch.testing.assert_close(model(inputs), expected)
    flat.train_only((Group.SHARED,))
    model(inputs).square().sum().backward()
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    scale = model.get_submodule("body.1").weight.grad
    assert isinstance(scale, Tensor)
    assert scale.any()


def test_frozen_batchnorm_over_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    own = "tests.models.test_weights:normalised"
    monkeypatch.setitem(TINY, "model", {"name": own})
    for frozen in (False, True):
        state, _ = run_rounds(experiment(tiny("fedavg", f"model.frozen_batchnorm={str(frozen).lower()}")))
        assert (not state.buffers["body.1.running_mean"].any()) is frozen


def normalised(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, classes))
