"""FedIIR against its equations."""

import pytest
import torch
import torch.nn.functional as F
from tests.support import experiment, federation_of, model_of, run_rounds, shared_after, tiny, visit_of
from torch import Tensor, nn

from fedomg import methods
from fedomg.core.errors import UserError
from fedomg.core.params import Group
from fedomg.core.records import Reply
from fedomg.data.examples import Batch
from fedomg.experiment.experiment import Experiment, build_federation
from fedomg.local.trainer import load
from fedomg.models.split import SplitModel, split

PLAIN = ("aggregator.weighting=uniform", "model.name=mlp")


@pytest.mark.parametrize("suffix", ["", "+omg"])
def test_without_a_penalty_it_is_uniform_fedavg_bit_for_bit(suffix: str) -> None:
    found = shared_after(tiny(f"fediir{suffix}", "local.penalty=0", "model.name=mlp"))
    assert torch.equal(found, shared_after(tiny(f"fedavg{suffix}", *PLAIN)))


def test_clients_count_uniformly_unless_told_otherwise() -> None:
    for keys, expected in (((), [0.5, 0.5]), (("aggregator.weighting=samples",), [0.25, 0.75])):
        inputs, labels = [torch.randn(2, 2), torch.randn(6, 2)], [torch.arange(2), torch.arange(6) % 2]
        trial = Experiment(tiny("fediir", *keys), federation_of(inputs, labels))
        _, record = trial.advance(trial.initial_state())
        assert [client["reference_weight"] for client in record["clients"].values()] == expected


def _one_client(penalty: float, steps: int) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    federation = federation_of([torch.randn(12, 2, generator=draw)], [torch.arange(12) % 2])
    keys = (f"local.penalty={penalty}", f"local.steps={steps}", "local.batch_size=100", "local.ema=0.0", "model.name=mlp")
    return run_rounds(Experiment(tiny("fediir", *keys), federation), 1)[0].shared


def test_one_client_starts_at_its_own_mean_gradient() -> None:
    """With full batches and no memory, penalty and its gradient are zero in the first step, and not in the second."""
    torch.testing.assert_close(_one_client(10.0, steps=1), _one_client(0.0, steps=1), rtol=1e-5, atol=1e-7)
    assert not torch.allclose(_one_client(10.0, steps=2), _one_client(0.0, steps=2), rtol=1e-3)


def _classifier_gradient(model: SplitModel, inputs: Tensor, labels: Tensor) -> Tensor:
    """Of a linear layer under cross-entropy: (softmax - one-hot)' features / n, and the mean of the former for the bias."""
    features = model.body(inputs)
    error = (model.head(features).softmax(dim=1) - F.one_hot(labels, 2)) / len(labels)
    return torch.cat([(error.T @ features).flatten(), error.sum(dim=0)])


@pytest.mark.parametrize("ema", [0.0, 1.0])
def test_the_penalty_moves_body_and_classifier(ema: float) -> None:
    """Against the gradient written out. With ema 1 the mean stays zero: what is penalised is the gradient's length."""
    trial = experiment(tiny("fediir", "model.name=mlp", "local.penalty=0.7", f"local.ema={ema}"))
    state, _ = run_rounds(trial, 1)
    mean = state.coordinator["mean"]
    assert mean.any() == (ema < 1)
    visit = visit_of(trial, extras={"mean": mean})
    load(visit)
    visit.model.train_only((Group.SHARED,))
    model = split(visit.model.module)
    draw = torch.Generator().manual_seed(0)
    batch = Batch(torch.randn(8, 2, generator=draw), torch.randint(2, (8,), generator=draw))

    def gradients(loss: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(loss, list(model.parameters())))

    [stage] = trial._trainer.stages(visit)
    found = gradients(stage.loss(visit, [batch]))
    entropy = F.cross_entropy(model(batch.inputs), batch.labels)
    distance = (_classifier_gradient(model, *batch) - mean).square().sum()
    for own, expected in zip(found, gradients(entropy + 0.7 * distance), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-6)
    assert all(part.any() for part in gradients((_classifier_gradient(model, *batch) - mean).square().sum()))


def test_clients_send_the_sum_over_their_batches() -> None:
    trial = experiment(tiny("fediir", "model.name=mlp", "local.batch_size=7"))
    visit = visit_of(trial)
    load(visit)
    found = trial._trainer.gather("gradient", visit)
    batches = list(visit.client.train.in_order(7))
    assert int(found["batches"]) == len(batches) > 1
    expected = torch.stack([_classifier_gradient(split(visit.model.module), *batch) for batch in batches]).sum(dim=0)
    torch.testing.assert_close(found["sum"], expected.detach(), rtol=1e-4, atol=1e-6)
    assert torch.equal(visit.model.shared, visit.broadcast.shared)


def test_the_server_divides_the_sums_and_moves_its_mean() -> None:
    config = tiny("fediir", "local.ema=0.75")
    coordinator = methods.build("fediir", config.local, config.aggregator).coordinator
    sums = [([3.0, 0.0], 1), ([5.0, 8.0], 3)]
    replies = [Reply(c, extras={"sum": torch.tensor(total), "batches": torch.tensor(n)}) for c, (total, n) in enumerate(sums)]
    state = coordinator.collect("gradient", replies, None, coordinator.initial(2, 9))
    assert state["mean"].tolist() == [0.5, 0.5]
    state = coordinator.collect("gradient", replies, None, state)
    assert state["mean"].tolist() == [0.875, 0.875]
    assert coordinator.collect("fit", replies, torch.zeros(2, 9), state) is state
    assert [phase.name for phase in coordinator.phases(1, [0, 1])] == ["gradient", "fit"]
    assert coordinator.extras("fit", 0, state).keys() == coordinator.extras("view:adapted", 0, state).keys() == {"mean"}
    assert not coordinator.extras("gradient", 0, state)
    assert not coordinator.extras("view:global", 0, state)


def test_the_mean_gradient_is_that_of_the_model_as_broadcast() -> None:
    trial = experiment(tiny("fediir", "model.name=mlp", "local.ema=0.0", "local.batch_size=1000"))
    start = trial.initial_state()
    state, _ = trial.advance(start)
    model = model_of(trial)
    model.shared.copy_(start.shared)
    everyone = [_classifier_gradient(split(model.module), *next(c.train.in_order(1000))) for c in trial.federation.clients]
    torch.testing.assert_close(state.coordinator["mean"], torch.stack(everyone).mean(dim=0).detach(), rtol=1e-4, atol=1e-6)


def test_where_nobody_could_send_a_gradient_clients_take_the_mean_for_zero() -> None:
    trial = experiment(tiny("fediir", "model.name=mlp"))
    visit = visit_of(trial)
    load(visit)
    visit.model.train_only((Group.SHARED,))
    batch = next(visit.client.train.in_order(8))
    [stage] = trial._trainer.stages(visit)
    bare, zero = (stage.loss(visit_of(trial, extras=extras), [batch]) for extras in ({}, {"mean": torch.zeros(1)}))
    assert float(bare.detach()) == float(zero.detach())


def test_a_frozen_head_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def frozen(*_: object) -> SplitModel:
        return SplitModel(nn.Linear(2, 4), nn.Linear(4, 2).requires_grad_(False))

    monkeypatch.setattr("fedomg.experiment.site.build_model", frozen)
    config = tiny("fediir")
    trial = Experiment(config, build_federation(config))
    with pytest.raises(UserError, match="this head is frozen"):
        trial.advance(trial.initial_state())
