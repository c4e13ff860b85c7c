"""On a CUDA device, where there is one: every method trains there, on what is there, and no batch waits for it."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
from tests.support import TINY
from torch import Tensor

from fedomg import methods
from fedomg.core.errors import UserError
from fedomg.experiment.config import Config, make_config
from fedomg.experiment.experiment import Experiment, build_federation
from fedomg.local import loop, together
from fedomg.local.batches import Plan, plan
from fedomg.local.loop import Stage, Visit

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

NAMES = [name + methods.OMG_SUFFIX * entry.composes for name, entry in methods.ENTRIES.items()]
PICTURES: dict[str, Any] = {
    "dataset": "tests.pictures:Pictures",
    "target": "blue",
    "model": {"name": "tiny_resnet"},
    "data": {"validation": 0.25},
    "rounds": 2,
}


def _config(method: str, device: str, engine: str = "inline", **local: Any) -> Config:
    table = {**TINY, **PICTURES, "local": {"lr": 0.01, "batch_size": 8, **local}}
    return make_config({**table, "method": method, "engine": {"name": engine, "device": device}})


def _run(config: Config) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    trial = Experiment(config, build_federation(config))
    with closing(trial.engine):
        state, records = trial.initial_state(), []
        while state.round < config.rounds:
            state, record = trial.advance(state)
            records.append(record)
            kept = [tensor for client in trial.federation.clients for tensor in trial.engine.states.of(client.id).values()]
            for tensor in (state.shared, trial.engine.matrix(1), trial.federation.dataset.inputs, *(t for t in kept if t.numel() > 1)):
                assert tensor.device.type == config.engine.device
    return state.shared.cpu(), records


@pytest.fixture
def exact() -> Iterator[None]:
    """Without TF32, which rounds to three digits."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("engine", ["inline", "vectorised"])
@pytest.mark.parametrize("method", NAMES)
def test_methods_train_there_as_on_the_processor(method: str, engine: str) -> None:
    try:
        there, records = _run(_config(method, "cuda", engine))
    except UserError as refusal:
        if engine == "vectorised" and "cannot train" in str(refusal):
            pytest.skip(str(refusal))
        raise
    here, _ = _run(_config(method, "cpu"))
    assert all(not record["dropped"] for record in records)
    if method not in ("fedsr+omg", "stablefdg+omg", "fedadg"):  # these draw noise, which is another on another device
        assert float((there - here).norm()) <= 1e-2 * float(here.norm())


def _watched(stage: Stage, visit: Visit) -> Plan:
    """Torch refuses to wait in all steps but the first, for which positions are drawn, and the last."""
    steps, drawn = plan(stage, visit)

    def batches() -> Iterator[list[Tensor]]:
        for step, batch in enumerate(drawn):
            torch.cuda.set_sync_debug_mode("error" if 0 < step < steps - 1 else "default")
            yield batch

    return Plan(steps, batches())


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("engine", ["inline", "vectorised"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedrod", "fedpac", "fedas", "fediir"])
def test_no_batch_waits(method: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = _config(method, "cuda", engine, epochs=3, schedule="cosine", **({} if method == "scaffold" else {"clip": 1.0}))
    trial = Experiment(config, build_federation(config))
    state, _ = trial.advance(trial.initial_state())
    monkeypatch.setattr(loop, "plan", _watched)
    monkeypatch.setattr(together, "plan", _watched)
    try:
        _, record = trial.advance(state)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not record["dropped"]
