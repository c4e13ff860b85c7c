"""Training the head on features that are made once is training it with a body that never changes."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import run_rounds
from torch import Tensor, nn

from fedomg import methods
from fedomg.core.cache import cache_folder
from fedomg.core.errors import UserError
from fedomg.data.dataset import Dataset
from fedomg.experiment import backbone
from fedomg.experiment.backbone import with_features
from fedomg.experiment.config import Config, make_config
from fedomg.experiment.experiment import Experiment, build_federation
from fedomg.experiment.runner import run
from fedomg.experiment.site import blueprint, rebuild
from fedomg.models import build_model
from fedomg.models.split import SplitModel

ON_FEATURES = [name for name in methods.names() if not methods.parse(name).entry.needs_body]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """Forty pictures of each of three domains, so small that a whole network trains on them at once."""
    draw = torch.Generator().manual_seed(0)
    names = tuple("abcde"), ("line", "noto", "twemoji")
    labels, domains = torch.randint(5, (120,), generator=draw), torch.arange(3).repeat_interleave(40)
    inputs = (50 * labels.view(-1, 1, 1, 1) + torch.randint(50, (120, 3, 8, 8), generator=draw)).to(torch.uint8)
    dataset = Dataset(inputs, labels, domains, *names, mean=(0.5, 0.5, 0.5), std=(0.2, 0.3, 0.4))
    monkeypatch.setattr("fedomg.experiment.shelf.load_dataset", lambda *_: dataset)
    return dataset


def _config(method: str = "fedavg", **keys: Any) -> Config:
    table: dict[str, Any] = {
        "method": method,
        "dataset": "emoji",
        "target": "twemoji",
        "rounds": 2,
        "model": {"name": "tiny_resnet", "frozen_backbone": True},
        "local": {"lr": 0.1, "steps": 3, "batch_size": 8},
        "engine": {"name": "inline"},
    }
    return make_config({**table, **keys})


class _Still(nn.Module):
    """A body that never trains."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body.requires_grad_(False)

    def train(self, mode: bool = True) -> "_Still":
        return super().train(False)

    def forward(self, inputs: Tensor) -> Tensor:
        features: Tensor = self.body(inputs)
        return features


def _still(*arguments: Any) -> SplitModel:
    model = build_model(*arguments)
    return SplitModel(_Still(model.body), model.head)


@pytest.mark.parametrize("name", ON_FEATURES)
def test_features_are_worth_as_much_as_pictures(name: str, pictures: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    config = _config(name)
    quick = Experiment(config, build_federation(config))
    state, records = run_rounds(quick)
    whole = config.model_copy(update={"model": config.model.model_copy(update={"frozen_backbone": False})})
    monkeypatch.setattr("fedomg.experiment.site.build_model", _still)
    slow = Experiment(whole, build_federation(whole))
    expected, expected_records = run_rounds(slow)
    assert quick.parameters == slow.parameters
    torch.testing.assert_close(state.shared, expected.shared, rtol=1e-4, atol=1e-5)
    assert not torch.equal(expected.shared, slow.initial_state().shared)
    for found, wanted in zip(records, expected_records, strict=True):
        for view in wanted["views"]:
            assert found["views"][view]["loss"] == pytest.approx(wanted["views"][view]["loss"], rel=1e-3), view
        assert found["bytes"]["up"] < wanted["bytes"]["up"]  # the buffers of the body stay at home


def _body(shape: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    return build_model("tiny_resnet", shape, 5).body


def _made(dataset: Dataset, workers: int = 2, body: nn.Module | None = None) -> tuple[Dataset, list[tuple[str, int, int]]]:
    told: list[tuple[str, int, int]] = []
    body = body or _body(tuple(dataset.inputs.shape[1:]))
    return with_features(dataset, body, CPU, workers, cache_folder(), lambda *news: told.append(news)), told


def test_features_are_those_of_the_body_and_made_once(pictures: Dataset) -> None:
    found, told = _made(pictures)
    assert told == [("features", 64, 120), ("features", 120, 120)]
    inputs = (pictures.inputs / 255 - torch.tensor(pictures.mean).view(-1, 1, 1)) / torch.tensor(pictures.std).view(-1, 1, 1)
    with torch.no_grad():
        expected = _body(tuple(pictures.inputs.shape[1:])).eval()(inputs)
    torch.testing.assert_close(found.inputs, expected, rtol=1e-4, atol=1e-5)
    assert found.made_from == tuple(pictures.inputs.shape[1:])
    again, told = _made(pictures, workers=1)
    assert not told
    assert torch.equal(again.inputs, found.inputs)


def test_the_same_bits_whatever_the_number_of_threads(pictures: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, _ = _made(pictures, workers=1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    second, told = _made(pictures, workers=3)
    assert told
    assert torch.equal(first.inputs, second.inputs)


def test_other_inputs_other_weights_and_other_code_are_other_features(pictures: Dataset) -> None:
    _made(pictures)
    shape = tuple(pictures.inputs.shape[1:])
    inputs = pictures.inputs.clone()
    inputs[1, 0, 0, 0] += 1  # of an example that is not probed
    assert _made(replace(pictures, inputs=inputs))[1]
    assert _made(replace(pictures, mean=(0.4, 0.4, 0.4)))[1]
    weights = _body(shape)
    next(weights.parameters()).data.flatten()[0] += 1
    assert _made(pictures, body=weights)[1]
    assert _made(pictures, body=nn.Sequential(_body(shape), nn.Tanh()))[1]


def test_a_damaged_file_is_named(pictures: Dataset) -> None:
    _made(pictures)
    (file,) = cache_folder().rglob(backbone.FILE)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"features/[0-9a-f]+ is damaged: remove the folder"):
        _made(pictures)


def test_an_interrupt_leaves_no_features(pictures: Dataset) -> None:
    def interrupt(*news: Any) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        with_features(pictures, _body(tuple(pictures.inputs.shape[1:])), CPU, 2, cache_folder(), interrupt)
    assert not list(cache_folder().rglob(backbone.FILE))
    assert threading.active_count() == before


def test_who_needs_the_body_is_refused() -> None:
    for name in methods.names():
        if name not in ON_FEATURES:
            with pytest.raises(
                UserError, match=rf'"{name.replace("+", "[+]")}" works on the body, so it cannot run with model.frozen_backbone'
            ):
                _config(name)
    assert {"fedavg", "fedavg+omg"} <= set(ON_FEATURES)
    assert not {"fedbabu", "fedpac", "fedas", "fedadg", "stablefdg"} & set(ON_FEATURES)


def test_nothing_is_augmented(pictures: Dataset) -> None:
    folder: dict[str, Any] = {"dataset": "folder", "data": {"root": "pictures"}}
    assert _config(**folder).data.augment == "none"
    assert make_config(_config(**folder).table()) == _config(**folder)
    with pytest.raises(UserError, match=r"data.augment has no effect with model.frozen_backbone"):
        _config(**folder | {"data": {"root": "pictures", "augment": "feddg-ga"}})
    augmented = replace(pictures, augmentation="feddg-ga")
    assert _made(augmented)[0].augmentation == "none"


def test_a_run_and_its_resuming_on_features(pictures: Dataset, tmp_path: Path) -> None:
    told: list[int] = []
    result = run(_config("fedomg"), tmp_path / "run", watch=lambda what, done, total: told.append(done))
    assert told[-1] == 120
    (tmp_path / "run" / "result.json").unlink()
    again = run(_config("fedomg"), tmp_path / "run", resume=True, watch=lambda *_: pytest.fail("made twice"))
    assert result == again
    assert set(result["final"]) >= {"global", "target"}


def test_the_cache_is_where_the_configuration_says(pictures: Dataset, tmp_path: Path) -> None:
    build_federation(_config(data={"cache": str(tmp_path / "here")}))
    assert list((tmp_path / "here").rglob(backbone.FILE))
    assert not list(cache_folder().rglob(backbone.FILE))
    with pytest.raises(UserError, match=r'data.cache has no effect with data set "emoji"; .* and any with model.frozen_backbone'):
        make_config({"dataset": "emoji", "data": {"cache": "here"}})


def test_a_worker_builds_the_same_head(pictures: Dataset) -> None:
    config = _config()
    federation = build_federation(config)
    described = blueprint(config, federation)
    site = rebuild(described.configuration, described.tensors)
    assert torch.equal(site.model.shared, Experiment(config, federation).initial_state().shared)
    assert [name for name, _ in site.model.module.named_parameters()] == ["head.weight", "head.bias"]
