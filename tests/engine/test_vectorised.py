"""The vectorised engine computes what the in-process engine computes, up to rounding, or says in one line that it cannot."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tests.support import TINY, tiny
from torch import Tensor, nn

from fedomg import methods
from fedomg.core.errors import UserError
from fedomg.core.params import Tensors
from fedomg.data.examples import Batch
from fedomg.engine.vectorised import VectorisedEngine
from fedomg.experiment.config import Config, make_config
from fedomg.experiment.experiment import Experiment, Record, build_federation
from fedomg.local.loop import Loss, Stage, Visit, cross_entropy
from fedomg.local.options import LocalOptions
from fedomg.local.trainer import Trainer
from fedomg.models.split import SplitModel

NAMES = [name + methods.OMG_SUFFIX * entry.composes for name, entry in methods.ENTRIES.items()]
VECTORISED = {
    *("fedavg+omg", "fedprox+omg", "scaffold+omg", "fedrod+omg", "fedbabu+omg", "fedpac+omg", "fedas+omg"),
    *("fedga+omg", "fediir+omg", "erm"),
}
PICTURES: dict[str, Any] = {"dataset": "tests.pictures:Pictures", "target": "blue", "model": {"name": "tiny_resnet"}}
UNEQUAL: dict[str, Any] = {
    "data": {"points": 40, "partition": "dirichlet", "clients": 5, "alpha": 1.0, "least": 3},
    "model": {"name": "mlp"},
}


def _run(config: Config, trainer: Trainer[Any] | None = None) -> tuple[Tensors, list[Record]]:
    """All that the server and the clients know at the end, and the records."""
    method = methods.build(config.method, config.local, config.aggregator)
    trial = Experiment(config, build_federation(config), method if trainer is None else replace(method, trainer=trainer))
    with closing(trial.engine):
        assert isinstance(trial.engine, VectorisedEngine) == (config.engine.name == "vectorised")
        state, records = trial.initial_state(), []
        while state.round < config.rounds:
            state, record = trial.advance(state)
            records.append({**record, "seconds": None})
        known = {"shared": state.shared}
        for part in ("buffers", "optimizer", "coordinator", "aggregator"):
            known |= {f"{part}/{name}": tensor for name, tensor in getattr(state, part).items()}
        for client in trial.federation.everyone:
            known |= {f"{client.id}/{name}": tensor for name, tensor in trial.engine.states.of(client.id).items()}
    return known, records


def _assert_close(found: Any, expected: Any, where: str = "record") -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key, value in expected.items():
            _assert_close(found[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        _assert_close(dict(enumerate(found)), dict(enumerate(expected)), where)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-3, abs=2e-4, nan_ok=True), where
    else:
        assert found == expected, where


def _assert_engines_agree(table: dict[str, Any], together: int | None = None) -> None:
    engine = {"name": "vectorised"} | ({} if together is None else {"together": together})
    found, records = _run(make_config({**table, "engine": engine}))
    expected, expected_records = _run(make_config({**table, "engine": {"name": "inline"}}))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        apart = float((found[name].double() - tensor.double()).norm())
        assert apart <= 1e-4 * float(tensor.double().norm()) + 1e-6, name
    for one, other in zip(records, expected_records, strict=True):
        _assert_close(one, other)


@pytest.mark.parametrize("method", NAMES)
def test_methods_agree_or_are_refused(method: str) -> None:
    table = {**TINY, **PICTURES, "data": {"validation": 0.25}, "rounds": 2, "local": {"lr": 0.05, "batch_size": 8}, "method": method}
    refusal = None
    try:
        _assert_engines_agree(table)
    except UserError as error:
        refusal = str(error)
    if refusal is not None:
        assert method not in VECTORISED
        assert refusal.startswith(f'engine.name = "vectorised" cannot train method "{method}" on model "tiny_resnet": it')
        assert refusal.endswith('; set engine.name to "inline"')


LOCAL: list[dict[str, Any]] = [
    {"momentum": 0.9, "weight_decay": 0.01, "schedule": "cosine"},
    {"momentum": 0.9, "optimizer_state": "persistent", "drop_last": False, "epochs": 2},
    {"optimizer": "adam", "lr": 0.01, "optimizer_state": "persistent", "schedule": "step"},
    {"clip": 0.5, "lr": 0.3, "drop_last": False},
    {"steps": 7},
]


@pytest.mark.parametrize("local", LOCAL, ids=lambda local: ",".join(local))
def test_so_do_optimizers_schedules_and_clients_of_unequal_size(local: dict[str, Any]) -> None:
    server = {"participation": 0.6, "momentum": 0.5}
    table = {**TINY, **UNEQUAL, "method": "fedavg", "rounds": 3, "local": {"lr": 0.1, "batch_size": 8, **local}, "server": server}
    _assert_engines_agree(table)


@pytest.mark.parametrize("method", ["fedrod", "fedas", "scaffold"])
def test_the_number_that_train_as_one_does_not_matter(method: str) -> None:
    table = {
        **TINY,
        **UNEQUAL,
        "method": method,
        "server": {"buffers": "local"},
        "local": {"lr": 0.05, "batch_size": 8, "drop_last": False},
    }
    _assert_engines_agree(table, together=2)


def _refusal(trainer: Trainer[LocalOptions]) -> str:
    with pytest.raises(UserError) as refusal:
        _run(tiny("fedavg", engine={"name": "vectorised"}, rounds=2), trainer)
    return str(refusal.value)


class _Trains(Trainer[LocalOptions]):
    """On a loss, and with a memory of its own."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(LocalOptions())
        self._loss = loss

    def stages(self, visit: Visit) -> Sequence[Stage]:
        return (Stage(self._loss),)

    def remember(self, visit: Visit, progress: Any) -> Tensors:
        return {"count": torch.ones(1)}


def _own_data(visit: Visit, batches: list[Batch]) -> Tensor:
    return cross_entropy(visit, batches) * len(visit.client.train.indices)


def _own_state(visit: Visit, batches: list[Batch]) -> Tensor:
    return cross_entropy(visit, batches) + visit.state.get("count", torch.zeros(1)).sum()


def _noise(visit: Visit, batches: list[Batch]) -> Tensor:
    return cross_entropy(visit, batches) * torch.rand(())


def _number(visit: Visit, batches: list[Batch]) -> Tensor:
    loss = cross_entropy(visit, batches)
    return loss * loss.item()


class _MadeAnew(Trainer[LocalOptions]):
    def stages(self, visit: Visit) -> Sequence[Stage]:
        return (Stage(term=lambda values: values * visit.client.id),)


class _OwnFit(Trainer[LocalOptions]):
    def fit(self, visit: Visit) -> Any:
        return super().fit(visit)


@pytest.mark.parametrize(
    ("trainer", "reason"),
    [
        (_MadeAnew(LocalOptions()), "its loss or term is a function made anew for each client"),
        (_OwnFit(LocalOptions()), "it trains in a way of its own"),
        (_Trains(_own_data), "its loss reads the client's data (indices)"),
        (_Trains(_own_state), 'its loss reads "count", which is not the same for all clients'),
        (_Trains(_noise), "its loss or its model draws random numbers"),
        (
            _Trains(_number),
            "its loss or its model is beyond what torch maps over clients (vmap: It looks like you're calling .item()",
        ),
    ],
)
def test_what_cannot_be_mapped_is_refused(trainer: Trainer[LocalOptions], reason: str) -> None:
    assert f'method "fedavg" on model "linear": {reason}' in _refusal(trainer)


def test_dropout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    body = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5))
    monkeypatch.setattr("fedomg.experiment.site.build_model", lambda *_: SplitModel(body, nn.Linear(8, 2)))
    with pytest.raises(UserError, match="draws random numbers, such as dropout does"):
        _run(tiny("fedavg", engine={"name": "vectorised"}))


class _Reassigned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * inputs.mean(dim=0)
        return inputs - self.mean


def test_buffers_that_a_module_replaces_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: Any) -> SplitModel:
        return SplitModel(nn.Sequential(_Reassigned(), nn.Linear(2, 4), nn.ReLU()), nn.Linear(4, 2))

    monkeypatch.setattr("fedomg.experiment.site.build_model", build)
    _assert_engines_agree({**TINY, **UNEQUAL, "method": "fedavg"})


class _Weighted(Trainer[LocalOptions]):
    """A loss that depends on a number and on a tensor of the client, and on a tensor of all."""

    def stages(self, visit: Visit) -> Sequence[Stage]:
        own = torch.tensor(1.0 + visit.client.id)
        return (Stage(partial(_weighted, own=own, common=visit.broadcast.shared, parity=visit.client.id % 2)),)


def _weighted(visit: Visit, batches: list[Batch], own: Tensor, common: Tensor, parity: int) -> Tensor:
    return cross_entropy(visit, batches) * own * (1 + parity * (visit.model.shared - common).square().sum())


def test_what_a_loss_names_is_its_clients_own() -> None:
    configs = [tiny(engine={"name": name}) for name in ("inline", "vectorised")]
    here, mapped = (_run(config, _Weighted(config.local))[0]["shared"] for config in configs)
    torch.testing.assert_close(mapped, here, rtol=1e-4, atol=1e-6)


def test_the_key_is_refused_where_nothing_reads_it() -> None:
    with pytest.raises(UserError, match=r"engine\.together has no effect"):
        make_config({**TINY, "engine": {"name": "inline", "together": 4}})


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("gpu", 'engine.device = "gpu": known are cpu, cuda and cuda:N'),
        ("cuda:99", 'engine.device = "cuda:99": '),
    ],
)
@pytest.mark.parametrize("engine", ["inline", "vectorised"])
def test_a_device_that_is_not_here_is_refused(engine: str, device: str, words: str) -> None:
    with pytest.raises(UserError) as refusal:
        _run(make_config({**TINY, "engine": {"name": engine, "device": device}}))
    assert str(refusal.value).startswith(words)
    assert "\n" not in str(refusal.value)
