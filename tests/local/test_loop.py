"""The local loop against a loop written by hand, and its rules for batches, schedules and optimizer state."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.support import federation_of
from torch import Tensor, nn

from fedomg.core.params import FlatModel, Group
from fedomg.core.records import Broadcast, ClientState
from fedomg.core.rng import Streams
from fedomg.data.examples import Batch
from fedomg.data.federation import Client
from fedomg.local.loop import Stage, Task, Visit, train
from fedomg.local.options import LocalOptions


def _client(n: int = 50) -> Client:
    draw = torch.Generator().manual_seed(0)
    return federation_of([torch.randn(n, 3, generator=draw)], [torch.arange(n) % 2]).clients[0]


def _visit(client: Client, model: FlatModel, round: int = 1, rounds: int = 1, **options: Any) -> Visit:
    broadcast = Broadcast(round, model.shared.clone())
    return Visit(Task(model, LocalOptions(**options), rounds), client, broadcast, {}, Streams(0, round, "fit", 0))


def _model(module: nn.Module | None = None) -> FlatModel:
    torch.manual_seed(0)
    return FlatModel(module or nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)), lambda name: Group.SHARED)


def _sizes(n: int, module: nn.Module | None = None, **options: Any) -> list[list[int]]:
    seen: list[list[int]] = []

    def watch(visit: Visit, pieces: list[Batch]) -> Tensor:
        seen.append([len(piece.labels) for piece in pieces])
        return torch.zeros(())

    progress, _ = train(Stage(gradient=watch), _visit(_client(n), _model(module), **options), {})
    assert progress.steps == len(seen)
    return seen


@pytest.mark.parametrize(
    ("options", "make", "error"),
    [
        ({"lr": 0.1}, lambda p: torch.optim.SGD(p, 0.1), 0.0),
        ({"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01), 0.0),
        ({"lr": 0.01, "optimizer": "adam"}, lambda p: torch.optim.Adam(p, 0.01), 1e-5),  # the fused one rounds otherwise, by the machine
    ],
)
def test_it_is_plain_training(options: dict[str, Any], make: Any, error: float) -> None:
    client, model = _client(), _model()
    by_hand = copy.deepcopy(model.module)
    for parameter in by_hand.parameters():
        parameter.grad = None
    progress, _ = train(Stage(), _visit(client, model, batch_size=16, epochs=2, **options), {})
    optimizer, draw, losses = make(list(by_hand.parameters())), Streams(0, 1, "fit", 0).generator("batches/fit/0"), []
    for _ in range(2):
        for positions in torch.randperm(50, generator=draw).split(16)[:3]:
            inputs, labels = client.train.batch(positions)
            optimizer.zero_grad()
            loss = F.cross_entropy(by_hand(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    trained = torch.cat([p.detach().reshape(-1) for p in by_hand.parameters()])
    torch.testing.assert_close(model.shared, trained, rtol=error, atol=error)
    assert progress.steps == 6
    assert progress.loss == pytest.approx(sum(losses) / 6, rel=1e-6)


def test_the_last_partial_batch_is_dropped() -> None:
    assert _sizes(50, batch_size=16) == [[16], [16], [16]]


def test_the_last_partial_batch_is_kept_where_asked() -> None:
    assert _sizes(50, batch_size=16, drop_last=False) == [[16], [16], [16], [2]]


def test_a_client_with_less_than_a_batch_still_trains() -> None:
    assert _sizes(7, batch_size=16) == [[7]]


def test_a_batch_of_one_is_dropped_for_batchnorm_alone() -> None:
    normed = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    assert _sizes(17, batch_size=16, drop_last=False) == [[16], [1]]
    assert _sizes(17, batch_size=16, drop_last=False, module=normed) == [[16]]
    assert _sizes(1, batch_size=16, module=normed) == []
    assert _sizes(1, batch_size=16) == [[1]]


def test_no_step_leaves_the_model_and_has_no_loss() -> None:
    model = _model(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    before = model.shared.clone()
    progress, _ = train(Stage(), _visit(_client(1), model), {})
    assert progress.steps == 0
    assert math.isnan(progress.loss)
    assert torch.equal(before, model.shared)


def test_steps_take_the_place_of_epochs() -> None:
    assert len(_sizes(50, batch_size=16, steps=7)) == 7


def test_a_step_may_take_a_batch_from_each_of_several_orders() -> None:
    """The first order is that of ordinary training, the others are shuffles of their own."""
    seen: list[list[Tensor]] = []

    def watch(visit: Visit, pieces: list[Batch]) -> Tensor:
        seen.append([piece.inputs for piece in pieces])
        return torch.zeros(())

    for orders in (1, 2):
        train(Stage(gradient=watch, orders=orders), _visit(_client(50), _model(), batch_size=16), {})
    single, double = seen[:3], seen[3:]
    assert all(torch.equal(one[0], two[0]) for one, two in zip(single, double, strict=True))
    assert not any(torch.equal(two[0], two[1]) for two in double)


def test_every_epoch_is_a_new_shuffle_of_all_examples() -> None:
    client, seen = _client(48), []

    def watch(visit: Visit, pieces: list[Batch]) -> Tensor:
        seen.append(pieces[0].inputs[:, 0].clone())
        return torch.zeros(())

    train(Stage(gradient=watch), _visit(client, _model(), batch_size=16, epochs=2), {})
    first, second = torch.cat(seen[:3]), torch.cat(seen[3:])
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, second.sort().values)


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"optimizer": "adam"}])
def test_persistent_optimizers_go_on_where_they_stopped(options: dict[str, Any]) -> None:
    """Two calls of three steps are one call of six, on full batches."""
    client = _client(16)
    whole, halves = _model(), _model()
    train(Stage(), _visit(client, whole, steps=6, lr=0.1, **options), {})
    state: ClientState = {}
    for _ in range(2):
        _, state = train(Stage(), _visit(client, halves, steps=3, lr=0.1, optimizer_state="persistent", **options), state)
    torch.testing.assert_close(whole.shared, halves.shared)
    reset = _model()
    for _ in range(2):
        _, forgotten = train(Stage(), _visit(client, reset, steps=3, lr=0.1, **options), {})
        assert forgotten == {}
    assert not torch.allclose(whole.shared, reset.shared)


def test_a_remembered_state_is_not_written_to() -> None:
    client, model = _client(16), _model()
    options: dict[str, Any] = {"momentum": 0.9, "optimizer_state": "persistent", "steps": 2}
    _, state = train(Stage(), _visit(client, model, **options), {})
    before = {name: tensor.clone() for name, tensor in state.items()}
    train(Stage(), _visit(client, model, **options), state)
    assert all(torch.equal(before[name], state[name]) for name in before)


def test_untrained_groups_stay() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    model = FlatModel(module, lambda name: Group.FROZEN if name.startswith("1.") else Group.SHARED)
    frozen, shared = model.values[Group.FROZEN].clone(), model.shared.clone()
    train(Stage(), _visit(_client(), model, weight_decay=0.1), {})
    assert torch.equal(frozen, model.values[Group.FROZEN])
    assert not torch.equal(shared, model.shared)


def test_clipping_bounds_the_step() -> None:
    model = _model()
    before = model.shared.clone()
    train(Stage(), _visit(_client(16), model, clip=1e-3, lr=1.0, steps=1), {})
    assert float((model.shared - before).norm()) == pytest.approx(1e-3, rel=1e-3)


def test_schedules_end_low() -> None:
    step, cosine = LocalOptions(schedule="step"), LocalOptions(schedule="cosine")
    assert [step.factor(p) for p in (0, 0.79, 0.8, 0.99)] == [1, 1, 0.1, 0.1]
    assert [cosine.factor(p) for p in (0, 0.5)] == pytest.approx([1, 0.5])
    assert LocalOptions().factor(0.99) == 1


def test_the_schedule_spans_all_rounds() -> None:
    """In the last of five rounds the step schedule divides the rate, and with it the update, by ten."""
    client = _client(16)
    moved = {}
    for round in (1, 5):
        model = _model()
        before = model.shared.clone()
        train(Stage(), _visit(client, model, round=round, rounds=5, schedule="step", steps=1, lr=0.1), {})
        moved[round] = float((model.shared - before).norm())
    assert moved[5] == pytest.approx(moved[1] / 10, rel=1e-4)
