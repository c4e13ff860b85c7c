"""What the server must see: masks that cancel in the clients' weighted sum, as secure aggregation adds them, change nothing for `sums`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.engine.test_equal import PICTURES
from tests.support import TINY
from torch import Tensor

from fedomg import methods
from fedomg.core.records import Broadcast, Reply
from fedomg.experiment.config import make_config
from fedomg.experiment.experiment import Experiment, build_federation
from fedomg.experiment.state import ServerState
from fedomg.server.coordinator import Coordinator

ROWS = {row["name"]: row for row in methods.catalogue()}
FEDERATED = [name for name, row in ROWS.items() if row["kind"] == "federated" and not name.endswith("+omg")]


class Masked:
    """An engine whose first two replies are masked: what is added to the one is taken from the other, in the units of the sum."""

    def __init__(self, trial: Experiment) -> None:
        self._engine: Any = trial.engine
        self._aggregator = trial._method.aggregator
        self._weighs = trial.initial_state().aggregator
        self._sums_extras = type(trial._method.coordinator) is not Coordinator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def exchange(self, phase: str, messages: Mapping[int, Broadcast], rows: Tensor | None = None) -> list[Reply]:
        replies: list[Reply] = self._engine.exchange(phase, messages, rows)
        if phase.startswith("view:"):
            return replies
        if rows is not None:
            weights, _ = self._aggregator.weighting.weights(replies, self._weighs)
            mask = torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(0)) * rows.abs().mean()
            rows[0] += mask / float(weights[0])
            rows[1] -= mask / float(weights[1])
        return [self._masked(replies[0], 1), self._masked(replies[1], -1), *replies[2:]] if self._sums_extras else replies

    def _masked(self, reply: Reply, sign: int) -> Reply:
        draw = torch.Generator().manual_seed(1)
        extras = {
            name: tensor + 0.1 * sign * torch.randn(tensor.shape, generator=draw) if _is_summed(tensor) else tensor
            for name, tensor in sorted(reply.extras.items())
        }
        return replace(reply, extras=extras)


def _is_summed(tensor: Tensor) -> bool:
    """Single numbers are a client's weight in a sum, which the client itself knows."""
    return tensor.is_floating_point() and tensor.ndim > 0


def _after(rounds: int, method: str, model: str, masked: bool) -> ServerState:
    table = {
        **TINY,
        "data": {"validation": 0.25},
        "local": {"lr": 0.05, "batch_size": 4},
        **PICTURES,
        "model": {"name": model},
        "rounds": 2,
    }
    views = dict.fromkeys(("global", "personalised", "adapted", "target", "worst_group", "validation"), "never")
    config = make_config({**table, "method": method, "evaluate": views})
    trial = Experiment(config, build_federation(config))
    if masked:
        trial.engine = Masked(trial)
    state = trial.initial_state()
    for _ in range(rounds):
        state, _ = trial.advance(state)
    return state


def _moved(method: str, rounds: int, model: str = "tiny_resnet") -> float:
    """How far masks move what the server keeps, relative to its length."""
    plain, masked = (_after(rounds, method, model, with_masks) for with_masks in (False, True))
    pairs = [(plain.shared, masked.shared), *((plain.coordinator[name], masked.coordinator[name]) for name in plain.coordinator)]
    return max(float((a.double() - b.double()).norm() / a.double().norm().clamp(min=1e-12)) for a, b in pairs)


@pytest.mark.parametrize("method", [name for name in FEDERATED if ROWS[name]["needs"] == "sums"])
def test_sums_are_enough(method: str) -> None:
    """Without BatchNorm: at four pictures a batch it enlarges the rounding that masks leave behind a millionfold."""
    assert _moved(method, rounds=1, model="cnn") < 1e-5
    assert _moved(method, rounds=2, model="cnn") < 1e-4


@pytest.mark.parametrize(("method", "rounds"), [("fedavg+omg", 1), ("fedpac", 1), ("stablefdg", 2)])
def test_masks_would_show_where_they_are_not(method: str, rounds: int) -> None:
    assert ROWS[method]["needs"] == "individual"
    assert _moved(method, rounds) > (1e-3 if rounds == 1 else 0.1)


def test_every_method_says_what_it_needs_and_why() -> None:
    for name, row in ROWS.items():
        assert row["needs"] in ("sums", "individual")
        assert (row["needs"] == "individual") == bool(row["needs_because"]), name
        assert row["needs"] == "individual" or not name.endswith("+omg")
    assert ROWS["fedavg"]["needs"] == "sums"
    assert ROWS["fedga"]["needs_because"] == "the server weighs clients against each other by what each has measured"
    assert ROWS["erm"]["needs_because"] == "there is one client"
