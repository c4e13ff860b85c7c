"""Every engine computes the same bits, for every method: one test that a new method joins by being registered."""

import json
from contextlib import closing
from typing import Any

import pytest
import torch
from tests.support import tiny

from fedomg import methods
from fedomg.core.params import Tensors
from fedomg.experiment.config import Config
from fedomg.experiment.experiment import Experiment, build_federation
from fedomg.experiment.state import PARTS, ServerState

# With the matching rule where the method composes: what the clients do is the same without it, and the records say more with it.
NAMES = [name + methods.OMG_SUFFIX * entry.composes for name, entry in methods.ENTRIES.items()]
Run = tuple[ServerState, list[str], dict[int, Tensors]]
PICTURES: dict[str, Any] = {"dataset": "tests.pictures:Pictures", "target": "blue", "model": {"name": "tiny_resnet"}}


def configure(method: str, engine: str, **keys: Any) -> Config:
    table = {"data": {"validation": 0.25}, "rounds": 2, "local": {"lr": 0.05, "batch_size": 4}, **PICTURES, **keys}
    return tiny(method, **table, engine={"name": engine, "workers": 2})


def run(config: Config) -> Run:
    """The last state, the records but for the clock, what every client remembers."""
    trial = Experiment(config, build_federation(config))
    with closing(trial.engine):
        state = trial.initial_state()
        records = [trial.untrained(state)]
        while state.round < config.rounds:
            state, record = trial.advance(state)
            records.append(record)
        kept = {client.id: trial.engine.states.of(client.id) for client in trial.federation.everyone}
    return state, [json.dumps({**record, "seconds": None}) for record in records], kept


def _assert_same(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def assert_same_run(found: Run, expected: Run) -> None:
    assert torch.equal(found[0].shared, expected[0].shared)
    for part in PARTS:
        _assert_same(getattr(found[0], part), getattr(expected[0], part))
    assert found[1] == expected[1]
    assert found[2].keys() == expected[2].keys()
    for client, state in expected[2].items():
        _assert_same(found[2][client], state)


def _assert_engines_agree(method: str, **keys: Any) -> None:
    assert_same_run(run(configure(method, "pool", **keys)), run(configure(method, "inline", **keys)))


@pytest.mark.parametrize("method", NAMES)
def test_workers_compute_the_same_bits(method: str) -> None:
    _assert_engines_agree(method)


def test_so_they_do_with_augmented_pictures() -> None:
    data = {"validation": 0.25, "augment": "feddg-ga"}
    _assert_engines_agree("fedavg+omg", data=data)
    augmented, plain = (run(configure("fedavg+omg", "inline", data=d)) for d in (data, {"validation": 0.25}))
    assert not torch.equal(augmented[0].shared, plain[0].shared)


def test_so_they_do_with_state_momentum_and_local_buffers() -> None:
    local = {"lr": 0.05, "batch_size": 4, "momentum": 0.9, "optimizer_state": "persistent"}
    server = {"momentum": 0.5, "buffers": "local", "participation": 0.5}
    _assert_engines_agree("fedrod", local=local, server=server, data={"partition": "iid", "clients": 5}, rounds=3)
