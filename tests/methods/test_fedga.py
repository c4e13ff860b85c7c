"""FedGA against its equations."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.support import experiment, federation_of, model_of, run_rounds, shared_after, tiny
from torch import Tensor

from fedomg.core.errors import UserError
from fedomg.core.params import Group, Tensors
from fedomg.core.records import Reply
from fedomg.experiment.experiment import Experiment
from fedomg.methods.fedga import FedGaOptions, GeneralisationGap

SECOND_MEASUREMENT = 2  # where the factor on the step is one


def _replies(received: Sequence[float], trained: Sequence[float] | None = None, clients: Sequence[int] | None = None) -> list[Reply]:
    values = torch.tensor([received, trained or received], dtype=torch.float64).T
    ids = clients or range(len(received))
    return [Reply(c, extras={"received": before, "trained": after}) for c, (before, after) in zip(ids, values, strict=True)]


def _after_one_round(weighting: GeneralisationGap, trained: Sequence[float], rounds: int = 10, round: int = SECOND_MEASUREMENT) -> Tensors:
    _, state = weighting.weights(_replies([0.0] * len(trained), trained), weighting.initial(len(trained), rounds))
    return {**state, "round": torch.tensor(round)}


def _weights(changes: Sequence[float], round: int = SECOND_MEASUREMENT, **options: Any) -> tuple[Tensor, Tensors]:
    weighting = GeneralisationGap(FedGaOptions(**options))
    state = _after_one_round(weighting, [0.5] * len(changes), round=round)
    return weighting.weights(_replies([0.5 + change for change in changes]), state)


def test_the_first_round_is_uniform() -> None:
    weighting = GeneralisationGap(FedGaOptions())
    weights, _ = weighting.weights(_replies([0.1, 0.9, 0.4], [0.8, 0.2, 0.3]), weighting.initial(3, 10))
    assert weights.tolist() == [1 / 3] * 3


@pytest.mark.parametrize(("metric", "sign"), [("accuracy", 1), ("loss", -1)])
def test_who_loses_by_averaging_counts_more(metric: str, sign: int) -> None:
    weights, _ = _weights([sign * change for change in (-0.2, -0.1, 0.1)], metric=metric)
    assert weights.tolist() == pytest.approx([0.375, 0.34375, 0.28125], rel=1e-12)


def test_the_step_shrinks_with_the_rounds() -> None:
    """r counts the measured aggregations from zero: s (1 - (r - 1) / R)."""
    for round, factor in ((1, 1.1), (2, 1.0), (10, 0.2)):
        weights, _ = _weights([-0.1, 0.1], round=round)
        assert weights.tolist() == pytest.approx([(1 + 0.2 * factor) / 2, (1 - 0.2 * factor) / 2], rel=1e-12)


@pytest.mark.parametrize("change", [0.0, 0.1, -0.3])
def test_equal_changes_leave_the_weights(change: float) -> None:
    assert _weights([change] * 3)[0].tolist() == pytest.approx([1 / 3] * 3, rel=1e-12)


def test_weights_stay_within_zero_and_one() -> None:
    weights, state = _weights([0.1, -0.1], round=1, step=1.0)
    assert weights.tolist() == [0.0, 1.0]
    weights, _ = GeneralisationGap(FedGaOptions()).weights(_replies([0.6], clients=[0]), state)
    assert weights.tolist() == [1.0]
    assert _weights([0.1, 0.1], round=1, step=1.0)[0].tolist() == [0.5, 0.5]


def test_only_those_who_take_part_are_compared() -> None:
    weighting = GeneralisationGap(FedGaOptions())
    state = _after_one_round(weighting, [0.5, 0.5, 0.5, 0.5])
    weights, state = weighting.weights(_replies([0.4, 0.6], clients=[1, 3]), state)
    assert weights.tolist() == pytest.approx([0.6, 0.4])
    assert state["shares"].tolist() == pytest.approx([1.0, 1.2, 1.0, 0.8])
    weights, _ = weighting.weights(_replies([0.5, 0.4], clients=[0, 1]), state)
    assert weights.tolist() == pytest.approx([1 / 2.2, 1.2 / 2.2])  # nothing has changed for them


def test_who_is_new_is_not_moved() -> None:
    weighting = GeneralisationGap(FedGaOptions())
    _, state = weighting.weights(_replies([0.0], [0.5], clients=[2]), weighting.initial(3, 10))
    weights, _ = weighting.weights(_replies([0.9, 0.4], clients=[0, 2]), {**state, "round": torch.tensor(SECOND_MEASUREMENT)})
    assert weights.tolist() == pytest.approx([1 / 2.2, 1.2 / 2.2])


@pytest.mark.parametrize("suffix", ["", "+omg"])
def test_without_a_step_it_is_uniform_fedavg_bit_for_bit(suffix: str) -> None:
    keys = ("model.name=mlp", "data.clients_per_domain=2", "server.participation=0.4")
    still = shared_after(tiny(f"fedga{suffix}", "local.step=0.0", *keys))
    assert torch.equal(still, shared_after(tiny(f"fedavg{suffix}", "aggregator.weighting=uniform", *keys)))


def _loss_of(trial: Experiment, shared: Tensor, client: int) -> float:
    model, rows = model_of(trial), trial.federation.clients[client].validation
    model.values[Group.SHARED].copy_(shared)
    inputs, labels = next(rows.in_order(len(rows)))
    return float(F.cross_entropy(model.module.eval()(inputs), labels).detach())


@pytest.mark.parametrize("name", ["fedga", "fedga+omg"])
def test_the_aggregate_is_measured_on_the_next_broadcast(name: str) -> None:
    """Before it is trained on, against what the client's own model reached in the round before."""
    trial = experiment(tiny(name, "local.metric=loss", "data.validation=0.4", "model.name=mlp"))
    start = trial.initial_state()
    first, _ = trial.advance(start)
    rows = trial.engine.matrix(4).clone()
    trained = [_loss_of(trial, start.shared + row, client) for client, row in enumerate(rows)]
    received = [_loss_of(trial, first.shared, client) for client in range(4)]
    changes = torch.tensor(received).double() - torch.tensor(trained).double()
    expected = (1 + 0.2 * (1 + 1 / 3) * changes / changes.abs().max()).clamp(0, 4)
    _, record = trial.advance(first)
    weights = [client["reference_weight"] for client in record["clients"].values()]
    assert weights == pytest.approx((expected / expected.sum()).tolist(), rel=1e-5)


def test_a_client_without_validation_data_is_named() -> None:
    inputs, labels = [torch.randn(4, 2)] * 2, [torch.tensor([0, 1, 0, 1])] * 2
    trial = Experiment(tiny("fedga"), federation_of(inputs, labels))
    with pytest.raises(UserError, match='client "d0" has none'):
        trial.advance(trial.initial_state())


def test_a_client_that_diverges_keeps_its_share() -> None:
    trial = experiment(tiny("fedga"))
    state, _ = run_rounds(trial, 1)
    after, _ = trial.advance(replace(state, shared=torch.full_like(state.shared, torch.inf)))
    assert torch.equal(after.aggregator["shares"], state.aggregator["shares"])
