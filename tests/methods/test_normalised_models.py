"""Methods on models with BatchNorm, dropout, frozen layers and buffers of their own."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tests.support import model_of, run_rounds, tiny, visit_of
from torch import Tensor, nn

from fedomg import methods
from fedomg.core.params import FlatModel, Group
from fedomg.core.records import Broadcast, ClientState
from fedomg.core.rng import Streams
from fedomg.data.examples import Batch
from fedomg.experiment.config import Config
from fedomg.experiment.experiment import Experiment, build_federation
from fedomg.experiment.state import ServerState
from fedomg.local.loop import Stage, Task, Visit, cross_entropy, descend
from fedomg.local.options import LocalOptions
from fedomg.local.trainer import Trainer, load
from fedomg.models.split import SplitModel


def _normed() -> SplitModel:
    body = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
    return SplitModel(body, nn.Linear(8, 2))


class _Reassigned(nn.Module):
    """Puts a new tensor in its buffer's place in every training pass, as some hand-written layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * inputs.mean(dim=0)
        return inputs - self.mean


def _reassigned() -> SplitModel:
    return SplitModel(nn.Sequential(_Reassigned(), nn.Linear(2, 4), nn.ReLU()), nn.Linear(4, 2))


def _partly_frozen() -> SplitModel:
    body = nn.Sequential(nn.Linear(2, 4), nn.ReLU())
    body[0].bias.requires_grad_(False)
    return SplitModel(body, nn.Linear(4, 2))


def _everything() -> SplitModel:
    """BatchNorm, dropout, a frozen layer, and stages of feature maps."""
    first = nn.Sequential(nn.Linear(2, 32), nn.Unflatten(1, (8, 2, 2)), nn.BatchNorm2d(8), nn.ReLU())
    first[0].requires_grad_(False)
    second = nn.Sequential(nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2))
    return SplitModel(nn.Sequential(first, second, nn.Flatten()), nn.Linear(16, 2), {"0": 8, "1": 4})


def _experiment(monkeypatch: pytest.MonkeyPatch, model: Any, name: str, *overrides: str, **keys: Any) -> Experiment:
    monkeypatch.setattr("fedomg.experiment.site.build_model", lambda *_: model())
    config = tiny(name, *overrides, **keys)
    return Experiment(config, build_federation(config))


def _end(trial: Experiment) -> ServerState:
    return run_rounds(trial)[0]


@pytest.mark.parametrize("name", methods.names())
def test_every_method_works_with_all_of_it(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    trial = _experiment(monkeypatch, _everything, name, "rounds=2", "evaluate.personalised=1", "evaluate.adapted=1")
    frozen = model_of(trial).module.get_parameter("body.0.0.weight").clone()
    state, records = run_rounds(trial)
    assert [record["dropped"] for record in records] == [[], []]
    assert state.shared.isfinite().all()
    assert state.buffers["body.0.2.running_mean"].any()
    assert torch.equal(model_of(trial).module.get_parameter("body.0.0.weight"), frozen)


@pytest.mark.parametrize(
    ("name", "without", "base"),
    [
        ("peravg", "local.alpha=0", ()),
        ("fedsam", "local.rho=0", ()),
        ("fediir", "local.penalty=0", ("aggregator.weighting=uniform",)),
        ("fedga", "local.step=0.0", ("aggregator.weighting=uniform",)),
    ],
)
def test_without_its_idea_a_method_is_fedavg_with_batchnorm_and_dropout(
    monkeypatch: pytest.MonkeyPatch, name: str, without: str, base: tuple[str, ...]
) -> None:
    plain = _end(_experiment(monkeypatch, _normed, "fedavg", *base))
    other = _end(_experiment(monkeypatch, _normed, name, without))
    assert torch.equal(plain.shared, other.shared)
    assert all(torch.equal(plain.buffers[name], other.buffers[name]) for name in plain.buffers)


@pytest.mark.parametrize(
    ("name", "override"),
    [("peravg", "local.variant=fo"), ("peravg", "local.variant=hf"), ("fedsam", "local.rho=0.6"), ("mofedsam", "local.rho=0.6")],
)
def test_a_step_of_several_passes_moves_batchnorm_statistics_once(monkeypatch: pytest.MonkeyPatch, name: str, override: str) -> None:
    state = _end(_experiment(monkeypatch, _normed, name, override, "local.steps=3", "rounds=1"))
    assert int(state.buffers["body.1.num_batches_tracked"]) == 3


def test_batchnorm_statistics_are_those_before_the_ascent(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ("local.steps=1", "rounds=1")
    plain, sharp = (_end(_experiment(monkeypatch, _normed, name, *keys)) for name in ("fedavg", "fedsam"))
    assert torch.equal(plain.buffers["body.1.running_mean"], sharp.buffers["body.1.running_mean"])
    assert torch.equal(plain.buffers["body.1.running_var"], sharp.buffers["body.1.running_var"])
    assert not torch.equal(plain.shared, sharp.shared)


@pytest.mark.parametrize("phase", ["gradient", "validated"])
def test_what_is_only_measured_moves_no_batchnorm_statistics(monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    trial = _experiment(monkeypatch, _normed, "fediir" if phase == "gradient" else "fedga")
    visit = visit_of(trial)
    load(visit)
    visit.model.module.train()
    found = [trial._trainer.gather(phase, visit) if phase == "gradient" else trial._trainer.arrive(visit) for _ in range(2)]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert all(torch.equal(visit.model.buffers[name], value) for name, value in visit.broadcast.buffers.items())


@pytest.mark.parametrize(("name", "alpha"), [("peravg", "local.alpha=0.3"), ("fedbabu", "local.finetune_epochs=2")])
@pytest.mark.parametrize("setting", ["local.schedule=step", "local.schedule=cosine", "local.optimizer=adam", "local.momentum=0.9"])
def test_personalising_is_plain_sgd_whatever_the_training(name: str, alpha: str, setting: str) -> None:
    ends = []
    for override in ("local.epochs=1", setting):
        config: Config = tiny(name, alpha, override, "model.name=mlp", "rounds=5")
        trial = Experiment(config, build_federation(config))
        visit = visit_of(trial, round=5)
        load(visit)
        trial._trainer.personalise(visit)
        ends.append(visit.model.shared.clone())
    assert torch.equal(ends[0], ends[1])


def test_fedas_keeps_its_own_batchnorm_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = _experiment(monkeypatch, _normed, "fedas", "rounds=2")
    state = _end(trial)
    own = trial.engine.states.changed()[0]
    for memory, expected in ((own, own["own/body.1.running_mean"]), ({}, torch.zeros(8))):
        visit = replace(visit_of(trial, 0, memory), broadcast=Broadcast(2, state.shared, state.buffers))
        load(visit)
        trial._trainer.personalise(visit)
        assert torch.equal(visit.model.buffers["body.1.running_mean"], expected)
    assert not torch.equal(own["own/body.1.running_mean"], state.buffers["body.1.running_mean"])


def test_buffers_that_a_module_replaces_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = _end(_experiment(monkeypatch, _reassigned, "fedavg", "evaluate.adapted=never"))
    busy = _end(_experiment(monkeypatch, _reassigned, "fedavg", "evaluate.adapted=1"))
    assert torch.equal(quiet.shared, busy.shared)
    assert torch.equal(quiet.buffers["body.0.mean"], busy.buffers["body.0.mean"])
    assert quiet.buffers["body.0.mean"].any()


@pytest.mark.parametrize("name", ["fedavg", "fedbabu"])
def test_layers_that_come_frozen_stay_frozen(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    trial = _experiment(monkeypatch, _partly_frozen, name, "evaluate.personalised=1", "local.weight_decay=0.1")
    module = model_of(trial).module
    assert isinstance(module, SplitModel)
    before = module.body[0].bias.clone()  # type: ignore[index]
    assert trial.parameters == 8 + (10 if name == "fedavg" else 0)
    _end(trial)
    assert torch.equal(before, module.body[0].bias)  # type: ignore[index]


class _Overflows(Trainer[LocalOptions]):
    """One client's BatchNorm variance overflows while its update stays finite."""

    def __init__(self, options: LocalOptions, base: Trainer[Any]) -> None:
        super().__init__(options)
        self._base = base
        for name in ("module", "group_of", "report"):
            setattr(self, name, getattr(base, name))

    def stages(self, visit: Visit) -> Sequence[Stage]:
        stages = self._base.stages(visit)
        return tuple(replace(stage, gradient=partial(self._spoiled, partial(descend, stage))) for stage in stages)

    def remember(self, visit: Visit, progress: Any) -> ClientState:
        return self._base.remember(visit, progress)

    def _spoiled(self, gradient: Any, visit: Visit, batches: list[Batch]) -> Tensor:
        loss: Tensor = gradient(visit, batches)
        if visit.client.id == 2:
            visit.model.buffers["body.1.running_var"].fill_(torch.inf)
        return loss


@pytest.mark.parametrize("policy", ["average", "local"])
def test_a_client_dropped_for_its_buffers_remembers_nothing_of_the_round(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    monkeypatch.setattr("fedomg.experiment.site.build_model", lambda *_: _normed())
    config = tiny("scaffold", f"server.buffers={policy}")
    method = methods.build(config.method, config.local, config.aggregator)
    method = replace(method, trainer=_Overflows(config.local, method.trainer))
    trial = Experiment(config, build_federation(config), method)
    state, records = run_rounds(trial)
    assert [record["dropped"] for record in records] == [[2]] * 3
    own = trial.engine.states.changed()
    assert own.keys() == {0, 1, 3}
    mean = torch.stack([state["control"] for state in own.values()]).sum(dim=0) / 4
    torch.testing.assert_close(state.coordinator["control"], mean, rtol=1e-4, atol=1e-6)


def test_kept_buffers_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = {}
    for policy in ("average", "keep"):
        trial = _experiment(monkeypatch, _normed, "fedavg", f"server.buffers={policy}")
        sent[policy] = run_rounds(trial, 1)[1][0]["bytes"]["up"]
    assert sent["keep"] == 4 * trial.parameters * 4 < sent["average"]


def test_cross_entropy_reads_the_first_batch() -> None:
    model = FlatModel(nn.Linear(2, 2), lambda name: Group.SHARED)
    model.train_only((Group.SHARED,))
    client = build_federation(tiny("fedavg")).clients[0]
    visit = Visit(Task(model, LocalOptions(), 1), client, Broadcast(1, model.shared), {}, Streams(0, 1, "fit", 0))
    batches = [Batch(torch.ones(3, 2), torch.zeros(3, dtype=torch.long)), Batch(torch.full((3, 2), torch.nan), torch.zeros(3).long())]
    assert cross_entropy(visit, batches).isfinite()
