"""FedADG against its equations."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.support import experiment, model_of, run_rounds, shared_after, tiny
from torch import Tensor, nn

from fedomg import methods
from fedomg.core.errors import UserError
from fedomg.core.params import Group
from fedomg.core.records import Broadcast, Reply
from fedomg.core.rng import Streams
from fedomg.data.examples import Batch
from fedomg.experiment.experiment import Experiment
from fedomg.local.loop import Task, Visit
from fedomg.local.trainer import load
from fedomg.methods.fedadg import Adversarial, Discriminator, FedAdg, FedAdgCoordinator, FedAdgOptions, Generator
from fedomg.models.split import SplitModel

SMALL = ("model.name=mlp", "local.noise=4")
ADVERSARIES = (Group.AUXILIARY, Group.PERSONAL)


def _visit(trial: Experiment) -> Visit:
    model = model_of(trial)
    broadcast = Broadcast(1, model.initial_values[Group.SHARED].clone(), model.initial_buffers)
    visit = Visit(Task(model, trial.config.local, 1), trial.federation.clients[0], broadcast, {}, Streams(0, 1, "fit", 0))
    load(visit)
    return visit


def _adversarial(trial: Experiment) -> Adversarial:
    module = model_of(trial).module
    assert isinstance(module, Adversarial)
    return module


def _turns(trial: Experiment, visit: Visit, batch: Batch) -> Iterator[Tensor]:
    assert isinstance(trial._trainer, FedAdg)
    return trial._trainer._turns(visit, [batch])


def test_alpha_one_is_fedavg_with_smoothed_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    found = shared_after(tiny("fedadg", *SMALL, "local.alpha=1", "local.warmup_epochs=0", "local.smoothing=0.3"))
    plain = F.cross_entropy
    monkeypatch.setattr(F, "cross_entropy", lambda logits, labels, **keys: plain(logits, labels, **{"label_smoothing": 0.3, **keys}))
    assert torch.equal(found, shared_after(tiny("fedavg", "model.name=mlp", "aggregator.weighting=uniform")))


@pytest.mark.parametrize("alpha", [0.0, 0.25])
def test_the_losses_of_a_step(monkeypatch: pytest.MonkeyPatch, alpha: float) -> None:
    trial = experiment(tiny("fedadg", *SMALL, f"local.alpha={alpha}"))
    visit, module = _visit(trial), _adversarial(trial)
    inputs, labels = torch.randn(5, 2), torch.tensor([0, 1, 1, 0, 1])
    noise = torch.rand(5, 4)
    monkeypatch.setattr(torch, "rand", lambda *shape, device: noise)
    losses = [loss.detach() for loss in _turns(trial, visit, Batch(inputs, labels))]
    codes = torch.tensor([[0.6, 0.0], [0.0, 0.6]])[labels]
    with torch.no_grad():
        features = module.body(inputs)
        made = module.discriminator(module.generator(noise, codes), codes)
        own = module.discriminator(features, codes)
        classified = F.cross_entropy(module.head(features), labels, label_smoothing=0.2)
    expected = [(1 - made) ** 2 + own**2, made**2, alpha * classified + (1 - alpha) * (1 - own) ** 2]
    for found, loss in zip(losses, expected, strict=True):
        torch.testing.assert_close(found, loss.mean())


def test_each_loss_moves_its_own_net_alone() -> None:
    """And each of them does move: the generator learns from its own loss."""
    trial = experiment(tiny("fedadg", *SMALL))
    visit, module = _visit(trial), _adversarial(trial)
    visit.model.train_only(tuple(Group))
    reached = []
    for loss in _turns(trial, visit, trial.federation.clients[0].train.batch(torch.arange(8))):
        for gradient in visit.model.gradients.values():
            gradient.zero_()
        loss.backward()
        reached.append({group for group, gradient in visit.model.gradients.items() if gradient.any()})
    discriminator, generator, model = reached
    assert discriminator == {Group.PERSONAL}
    assert generator - {Group.PERSONAL} == {Group.AUXILIARY}
    assert model - {Group.PERSONAL} == {Group.SHARED}
    assert all(name.split(".")[0] in ("body", "head", "generator", "discriminator") for name, _ in module.named_parameters())


def test_later_turns_see_what_earlier_ones_moved() -> None:
    """With a discriminator that has stepped so far that it answers zero, the generator is content and the model is not."""
    trial = experiment(tiny("fedadg", *SMALL, "local.alpha=0"))
    visit, module = _visit(trial), _adversarial(trial)
    turns = _turns(trial, visit, trial.federation.clients[0].train.batch(torch.arange(8)))
    next(turns)
    last = module.discriminator.answer[2]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.bias.fill_(-1000)
    assert float(next(turns).detach()) == 0
    assert float(next(turns).detach()) == 1


def test_the_generator_learns_and_is_averaged() -> None:
    trial = experiment(tiny("fedadg", *SMALL))
    start = model_of(trial).initial_values[Group.AUXILIARY].clone()
    state, records = run_rounds(trial, 1)
    assert records[0]["dropped"] == []
    learned = state.coordinator["auxiliary"]
    assert learned.shape == start.shape
    assert not torch.equal(learned, start)


def test_the_generator_and_discriminator_improve_at_their_own_tasks() -> None:
    """On a frozen model: the discriminator tells references from features, and the generator then fools it."""
    torch.manual_seed(0)
    features, codes = torch.rand(64, 3), 0.6 * F.one_hot(torch.arange(64) % 2, 2)
    generator, discriminator, noise = Generator(4, 2, 16, 3), Discriminator(3, 2, 8), torch.rand(64, 4)

    def descend(net: nn.Module, loss: Any, steps: int) -> float:
        optimizer = torch.optim.SGD(net.parameters(), 0.5)
        for _ in range(steps):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        return float(loss().detach())

    apart = descend(
        discriminator,
        lambda: ((1 - discriminator(generator(noise, codes).detach(), codes)) ** 2 + discriminator(features, codes) ** 2).mean(),
        200,
    )
    assert apart < 0.1
    assert descend(generator, lambda: (discriminator(generator(noise, codes), codes) ** 2).mean(), 200) < 0.1


def test_the_coordinator_takes_the_plain_mean_and_sends_it_where_clients_train() -> None:
    coordinator = FedAdgCoordinator(FedAdgOptions())
    replies = [
        Reply(client, samples=count, extras={"auxiliary": torch.tensor([value])}) for client, count, value in ((0, 1, 2.0), (1, 99, 4.0))
    ]
    state = coordinator.collect("fit", replies, None, {})
    assert state["auxiliary"].tolist() == [3.0]
    assert coordinator.extras("fit", 0, {}) == {}
    assert [phase for phase in ("fit", "view:adapted", "view:global", "view:validation") if coordinator.extras(phase, 0, state)] == [
        "fit",
        "view:adapted",
    ]


def test_the_discriminator_never_leaves_its_client() -> None:
    trial = experiment(tiny("fedadg", *SMALL))
    sizes = {group: len(model_of(trial).values[group]) for group in ADVERSARIES}
    _, records = run_rounds(trial, 2)
    assert records[1]["bytes"]["up"] == 4 * 4 * (trial.parameters + sizes[Group.AUXILIARY])
    assert records[1]["bytes"]["down"] == records[1]["bytes"]["up"]
    own = [state["personal"] for state in trial.engine.states.changed().values()]
    assert [len(personal) for personal in own] == [sizes[Group.PERSONAL]] * 4
    assert not torch.equal(own[0], own[1])


def test_each_optimizer_has_its_own_rate_and_memory() -> None:
    """With Adam for the model the adversaries keep to SGD, and each remembers its own momentum."""
    memory = ("local.optimizer=adam", "local.lr=0.01", "local.momentum=0.9", "local.optimizer_state=persistent", "local.warmup_epochs=0")
    trial = experiment(tiny("fedadg", *SMALL, *memory))
    run_rounds(trial, 1)
    kept = {name.removeprefix("optimizer/") for name in trial.engine.states.of(0) if name.startswith("optimizer/")}
    model = {f"fit/shared/{name}" for name in ("step", "exp_avg", "exp_avg_sq")}
    assert kept == model | {"discriminator/personal/momentum_buffer", "generator/auxiliary/momentum_buffer"}


def test_the_adversaries_move_at_their_rate() -> None:
    moved = []
    for rate in (1e-3, 2e-3):
        trial = experiment(tiny("fedadg", *SMALL, f"local.adversary_lr={rate}", "local.steps=1", "local.warmup_epochs=0"))
        start = model_of(trial).initial_values[Group.AUXILIARY].clone()
        state, _ = run_rounds(trial, 1)
        moved.append((state.coordinator["auxiliary"] - start).norm())
    assert float(moved[1] / moved[0]) == pytest.approx(2, rel=0.05)


def test_batchnorm_statistics_move_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    body = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU())
    monkeypatch.setattr("fedomg.experiment.site.build_model", lambda *_: SplitModel(body, nn.Linear(8, 2)))
    state, _ = run_rounds(experiment(tiny("fedadg", *SMALL, "local.steps=3", "local.warmup_epochs=0")), 1)
    assert int(state.buffers["body.1.num_batches_tracked"]) == 3


def test_projections_have_unit_length() -> None:
    discriminator = Discriminator(5, 2, 8)
    codes, features = torch.zeros(1, 2), torch.rand(1, 5)
    before = discriminator(features, codes)
    with torch.no_grad():
        discriminator.projection.weight.mul_(7)
    torch.testing.assert_close(discriminator(features, codes), before)


def test_composition_is_refused_with_the_reason() -> None:
    with pytest.raises(UserError, match="generator that its features follow is averaged"):
        methods.parse("fedadg+omg")
    with pytest.raises(UserError, match="one client"):
        methods.parse("erm+omg")
    assert "fedadg+omg" not in methods.names()
