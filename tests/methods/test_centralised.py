"""The centralised methods against their definitions."""

import copy
from collections.abc import Sequence
from functools import partial
from itertools import count

import pytest
import torch
import torch.nn.functional as F
from tests.support import experiment, federation_of, model_of, run_rounds, shared_after, tiny
from torch import Tensor, nn

from fedomg import methods
from fedomg.core.errors import UserError
from fedomg.core.params import Group
from fedomg.core.records import Broadcast, ClientState
from fedomg.core.rng import Streams
from fedomg.data.examples import Batch
from fedomg.data.federation import pooled
from fedomg.experiment.config import Config
from fedomg.experiment.experiment import Experiment, build_federation
from fedomg.local.batches import plan
from fedomg.local.loop import Stage, Task, Visit
from fedomg.methods.fishr import STEPS, VARIANCES, Fishr, FishrOptions, _distance, _gradients
from fedomg.models.split import SplitModel

NAMES = [name for name, entry in methods.ENTRIES.items() if entry.kind == "centralised"]
ADAM = ("local.optimizer=adam", "local.lr=0.01")


def _normed() -> SplitModel:
    torch.manual_seed(0)
    return SplitModel(nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU()), nn.Linear(8, 2))


def _batches(trial: Experiment, round: int) -> list[list[Batch]]:
    """What each step of a round sees: a batch of each domain."""
    (client,) = trial.federation.clients
    model = model_of(trial)
    task = Task(model, trial.config.local, trial.config.rounds)
    visit = Visit(task, client, Broadcast(round, model.shared), {}, Streams(trial.config.seed, round, "fit", 0))
    return [[client.train.batch(positions) for positions in step] for step in plan(Stage(by_domain=True), visit).batches]


def _initial(trial: Experiment) -> nn.Module:
    module = copy.deepcopy(model_of(trial).module)
    for parameter in module.parameters():
        parameter.requires_grad_(True).grad = None
    return module


def _flat(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


def _mean_loss(module: nn.Module, batches: Sequence[Batch]) -> Tensor:
    return F.cross_entropy(module(torch.cat([b.inputs for b in batches])), torch.cat([b.labels for b in batches]))


# ------------------------------------------------------------------------------------------------------ what they share


@pytest.mark.parametrize("name", NAMES)
def test_one_client_holds_every_source_and_nothing_of_the_target(name: str) -> None:
    trial = experiment(tiny(name, target="domain2"))
    (client,) = trial.federation.clients
    federated = build_federation(tiny("fedavg", target="domain2"))
    assert len(client.train) == sum(len(other.train) for other in federated.clients)
    _, (record, *_) = run_rounds(trial, 1)
    assert record["cohort"] == [0]
    assert record["clients"]["0"]["reference_weight"] == 1
    assert record["views"]["target"]["n"] == 40
    for batches in _batches(trial, 1):
        assert [len(batch.labels) for batch in batches] == [8, 8, 8]
    assert record["clients"]["0"]["steps"] == len(_batches(trial, 1)) == 32 // 8


@pytest.mark.parametrize("name", NAMES)
def test_the_matching_rule_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f'method "{name}" does not compose with OMG'):
        tiny(f"{name}+omg")
    assert f"{name}+omg" not in methods.names()
    with pytest.raises(UserError) as refused:
        tiny(name, "aggregator.kappa=0.3")
    assert f"{name}+omg" not in str(refused.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("optimizer", [ADAM, ("local.momentum=0.9",)])
def test_a_round_only_cuts_the_training_in_pieces(name: str, optimizer: tuple[str, ...]) -> None:
    """Two rounds are one of twice the length: optimizer, moving averages and the count of steps go on. On the same full batches."""
    keys = ("local.batch_size=1000", "local.drop_last=false", *optimizer)
    extra = ("local.warmup=3",) if name == "fishr" else ()
    long = shared_after(tiny(name, *keys, *extra, "rounds=1", "local.steps=8"))
    short = shared_after(tiny(name, *keys, *extra, "rounds=2", "local.steps=4"))
    torch.testing.assert_close(short, long, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_an_evaluation_leaves_no_trace(name: str) -> None:
    keys = ("local.warmup=0",) if name == "fishr" else ()
    quiet = shared_after(tiny(name, *keys, "evaluate.adapted=never"))
    assert torch.equal(quiet, shared_after(tiny(name, *keys, "evaluate.adapted=1")))


# ------------------------------------------------------------------------------------------------------------------ ERM


def test_erm_descends_on_the_mean_over_all_domains() -> None:
    trial = experiment(tiny("erm", "rounds=2", "local.momentum=0.9"))
    module = _initial(trial)
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    for round in (1, 2):
        for batches in _batches(trial, round):
            optimizer.zero_grad()
            _mean_loss(module, batches).backward()
            optimizer.step()
    torch.testing.assert_close(run_rounds(trial)[0].shared, _flat(module))


def test_erm_on_one_domain_is_fedavg_with_one_client() -> None:
    draw = torch.Generator().manual_seed(0)
    federation = federation_of([torch.randn(20, 2, generator=draw)], [torch.arange(20) % 2])
    ends = [run_rounds(Experiment(tiny(name), federation))[0].shared for name in ("erm", "fedavg")]
    assert torch.equal(*ends)


# ----------------------------------------------------------------------------------------------------------------- Fish


def _sequential(trial: Experiment, rounds: int, meta_lr: float) -> nn.Module:
    """Fish with Adam, by hand."""
    module = _initial(trial)
    optimizer = torch.optim.Adam(module.parameters(), 0.01)
    for round in range(1, rounds + 1):
        for batches in _batches(trial, round):
            start = [parameter.detach().clone() for parameter in module.parameters()]
            for batch in batches:
                optimizer.zero_grad()
                F.cross_entropy(module(batch.inputs), batch.labels).backward()
                optimizer.step()
            with torch.no_grad():
                for parameter, before in zip(module.parameters(), start, strict=True):
                    parameter.copy_(before + meta_lr * (parameter - before))
    return module


@pytest.mark.parametrize("meta_lr", [0.5, 1.0])
def test_fish_goes_part_of_the_way_of_sequential_adam_steps(meta_lr: float) -> None:
    """With meta_lr = 1 it is these steps themselves. Adam's state lives on from step to step and from round to round."""
    trial = experiment(tiny("fish", *ADAM, f"local.meta_lr={meta_lr}", "rounds=2"))
    by_hand = _sequential(trial, 2, meta_lr)
    torch.testing.assert_close(run_rounds(trial)[0].shared, _flat(by_hand), rtol=1e-4, atol=1e-6)


def test_fish_with_meta_lr_zero_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedomg.experiment.site.build_model", lambda *_: _normed())
    trial = experiment(tiny("fish", "local.meta_lr=0"))
    before = trial.initial_state()
    after, _ = run_rounds(trial)
    assert torch.equal(before.shared, after.shared)
    moving = [name for name, buffer in before.buffers.items() if buffer.is_floating_point()]
    assert moving
    assert all(torch.equal(before.buffers[name], after.buffers[name]) for name in moving)


def test_fish_takes_batchnorm_statistics_part_of_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedomg.experiment.site.build_model", lambda *_: _normed())
    ends = {}
    for meta_lr in (0.5, 1.0):
        trial = experiment(tiny("fish", f"local.meta_lr={meta_lr}", "local.steps=1", "rounds=1"))
        ends[meta_lr] = run_rounds(trial)[0].buffers
    assert int(ends[0.5]["body.1.num_batches_tracked"]) == 4
    torch.testing.assert_close(ends[0.5]["body.1.running_mean"], ends[1.0]["body.1.running_mean"] / 2)


# ---------------------------------------------------------------------------------------------------------------- Fishr


def _variances(module: SplitModel, batch: Batch) -> Tensor:
    """Of the head's gradient over the examples, one backward pass an example."""
    rows = []
    for features, label in zip(module.body(batch.inputs), batch.labels, strict=True):
        loss = F.cross_entropy(module.head(features)[None], label[None])
        weight, bias = torch.autograd.grad(loss, list(module.head.parameters()), create_graph=True)
        rows.append(torch.cat([weight, bias[:, None]], dim=1))
    gradients = torch.stack(rows)
    return (gradients - gradients.mean(dim=0)).square().mean(dim=0)


def _fishr_by_hand(trial: Experiment, rounds: int, options: FishrOptions) -> tuple[nn.Module, Tensor]:
    module, steps, averages = _initial(trial), count(), torch.zeros(())
    assert isinstance(module, SplitModel)
    optimizer = torch.optim.SGD(module.parameters(), options.lr, momentum=options.momentum)
    for round in range(1, rounds + 1):
        for batches in _batches(trial, round):
            step = next(steps)
            averages = options.ema * averages.detach() + (1 - options.ema) * torch.stack([_variances(module, b) for b in batches])
            scaled = averages / (1 - options.ema)
            penalty = torch.stack([(v - scaled.mean(dim=0)).square().mean() for v in scaled]).mean()
            if step == options.warmup:
                optimizer = torch.optim.SGD(module.parameters(), options.lr, momentum=options.momentum)
            optimizer.zero_grad()
            (_mean_loss(module, batches) + (options.penalty if step >= options.warmup else 0) * penalty).backward()
            optimizer.step()
    return module, averages.detach()


@pytest.mark.parametrize("warmup", [0, 3, 4, 6])
def test_fishr_is_its_definition(warmup: int) -> None:
    """Before, at and after the switch, which falls into a round or between two; momentum is forgotten at the switch."""
    keys = (f"local.warmup={warmup}", "local.penalty=20", "local.ema=0.7", "local.momentum=0.9", "local.lr=0.05", "rounds=2")
    trial = experiment(tiny("fishr", *keys, "model.name=mlp", target="domain2"))
    options = trial.config.local
    assert isinstance(options, FishrOptions)
    module, averages = _fishr_by_hand(trial, 2, options)
    shared = run_rounds(trial)[0].shared
    torch.testing.assert_close(shared, _flat(module), rtol=1e-3, atol=1e-5)
    kept = trial.engine.states.of(0)
    assert int(kept[STEPS]) == 8
    torch.testing.assert_close(kept[VARIANCES], averages, rtol=1e-3, atol=1e-6)
    plain = shared_after(tiny("erm", "local.momentum=0.9", "local.lr=0.05", "rounds=2", "model.name=mlp", target="domain2"))
    assert not torch.allclose(shared, plain, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("keys", [("local.penalty=0", "local.warmup=2"), ("local.warmup=1000",)])
def test_fishr_without_its_penalty_is_erm(keys: tuple[str, ...]) -> None:
    assert torch.equal(shared_after(tiny("fishr", *keys)), shared_after(tiny("erm")))


def test_fishr_is_erm_where_the_domains_batches_are_identical() -> None:
    trial = experiment(tiny("fishr", "local.warmup=0"))
    (client,), model = trial.federation.clients, model_of(trial)
    batch = client.train.batch(torch.arange(8))
    options = FishrOptions(warmup=0, penalty=1000.0)
    for domains in (1, 3):
        model.train_only((Group.SHARED,))
        model.gradients[Group.SHARED].zero_()
        visit = Visit(Task(model, options, 1), client, Broadcast(1, model.shared), {}, Streams(0, 1, "fit", 0))
        Fishr(options)._loss(visit, [batch] * domains, {}, count()).backward()
        found = model.gradients[Group.SHARED].clone()
        model.gradients[Group.SHARED].zero_()
        F.cross_entropy(model.module(batch.inputs), batch.labels).backward()
        torch.testing.assert_close(found, model.gradients[Group.SHARED])


def test_the_moving_average_keeps_the_scale_of_one_batch() -> None:
    """Its first value, divided by 1 - ema, is the variance of the first batch."""
    for ema in (0.0, 0.95):
        memory: ClientState = {}
        trial = experiment(tiny("fishr"))
        (client,), model = trial.federation.clients, model_of(trial)
        batches = next(iter(_batches(trial, 1)))
        options = FishrOptions(ema=ema)
        visit = Visit(Task(model, options, 1), client, Broadcast(1, model.shared), {}, Streams(0, 1, "fit", 0))
        Fishr(options)._loss(visit, batches, memory, count())
        module = _initial(trial)
        assert isinstance(module, SplitModel)
        expected = torch.stack([_variances(module, batch) for batch in batches]).detach()
        torch.testing.assert_close(memory[VARIANCES] / (1 - ema), expected)


def test_the_distance_of_variances_by_hand() -> None:
    """Two domains 2 apart in one of two coordinates: each is 1 from the mean there, so the mean of squares is a half."""
    assert float(_distance(torch.tensor([[[1.0, 5.0]], [[3.0, 5.0]]]))) == 0.5


@pytest.mark.parametrize("bias", [True, False])
def test_the_gradient_of_each_example_in_closed_form(bias: bool) -> None:
    torch.manual_seed(0)
    head, features, labels = nn.Linear(5, 3, bias=bias), torch.randn(7, 5), torch.arange(7) % 3
    found = _gradients(head, features, head(features), labels)
    for row, feature, label in zip(found, features, labels, strict=True):
        expected = torch.autograd.grad(F.cross_entropy(head(feature)[None], label[None]), list(head.parameters()))
        torch.testing.assert_close(row, torch.cat([part.reshape(3, -1) for part in expected], dim=1))


def test_fishr_reports_the_cross_entropy() -> None:
    losses = []
    for penalty in (0.0, 1e6):
        config: Config = tiny("fishr", f"local.penalty={penalty}", "local.warmup=0", "local.steps=1", "rounds=1")
        losses.append(run_rounds(experiment(config))[1][0]["clients"]["0"]["loss"])
    assert losses[0] == losses[1]


def test_fishr_needs_a_linear_head(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = partial(SplitModel, nn.Flatten(), nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)))
    monkeypatch.setattr("fedomg.experiment.site.build_model", lambda *_: deep())
    with pytest.raises(UserError, match='"fishr" needs a model whose head is one linear layer'):
        experiment(tiny("fishr"))
    experiment(tiny("fish"))


# ------------------------------------------------------------------------------------------------------------- the loop


def test_a_domain_too_small_for_batchnorm_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedomg.experiment.site.build_model", lambda *_: _normed())
    draw = torch.Generator().manual_seed(0)
    sizes = (20, 1, 20)
    parts = federation_of([torch.randn(size, 2, generator=draw) for size in sizes], [torch.arange(size) % 2 for size in sizes])
    trial = Experiment(tiny("erm"), pooled(parts))
    assert [[len(batch.labels) for batch in batches] for batches in _batches(trial, 1)] == [[8, 8], [8, 8]]
    assert run_rounds(trial, 1)[1][0]["clients"]["0"]["steps"] == 2
