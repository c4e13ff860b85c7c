"""No batch makes the processor wait for an accelerator: what synchronises does so once a phase, however many batches that has."""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support import tiny
from tests.synchronisation import synchronisations
from torch import Tensor

from fedomg import methods
from fedomg.data.examples import Batch
from fedomg.experiment.experiment import Experiment, build_federation
from fedomg.local.loop import Stage, Visit, cross_entropy
from fedomg.local.options import LocalOptions
from fedomg.local.trainer import Trainer

VIEWS = ("global", "personalised", "adapted", "target", "worst_group", "validation")
PICTURES = {
    "dataset": "tests.pictures:Pictures",
    "target": "blue",
    "model": {"name": "tiny_resnet"},
    "data": {"validation": 0.5, "test": 0.0},
}


def _found(
    method: str, batch_size: int, trainer: type[Trainer[LocalOptions]] | None = None, engine: str = "inline", **more: Any
) -> Counter[str]:
    """What synchronises in the second round, in which every client trains on 12 pictures."""
    local = {"lr": 0.01, "batch_size": batch_size, **more}
    config = tiny(method, **PICTURES, local=local, engine={"name": engine}, evaluate=dict.fromkeys(VIEWS, "never"))
    built = methods.build(config.method, config.local, config.aggregator)
    if trainer is not None:
        built = replace(built, trainer=trainer(config.local))
    trial = Experiment(config, build_federation(config), built)
    with closing(trial.engine):
        state, _ = trial.advance(trial.initial_state())
        with synchronisations() as found:
            _, record = trial.advance(state)
    assert not record["dropped"]
    return Counter(found)


@pytest.mark.parametrize("method", methods.ENTRIES)
def test_twice_the_batches_synchronise_no_more(method: str) -> None:
    assert _found(method, batch_size=3) == _found(method, batch_size=6)


@pytest.mark.parametrize("more", [{}, {"momentum": 0.9, "clip": 1.0, "schedule": "cosine"}, {"optimizer": "adam"}], ids=",".join)
@pytest.mark.parametrize("engine", ["inline", "vectorised"])
def test_nor_do_optimizers_bounds_and_schedules(engine: str, more: dict[str, Any]) -> None:
    assert _found("fedavg", 3, engine=engine, **more) == _found("fedavg", 6, engine=engine, **more)


@pytest.mark.parametrize("method", ["scaffold", "fedrod", "fedpac", "fedas"])
def test_nor_do_clients_that_train_as_one(method: str) -> None:
    assert _found(method, 3, engine="vectorised") == _found(method, 6, engine="vectorised")


class _Looks(Trainer[LocalOptions]):
    """Looks at the loss of every batch in one of the ways that are counted."""

    def stages(self, visit: Visit) -> Sequence[Stage]:
        return (Stage(_looked_at),)


def _looked_at(visit: Visit, batches: list[Batch]) -> Tensor:
    loss = cross_entropy(visit, batches)
    if float(loss.detach()) > 1e9 or loss.detach().isnan():
        return loss * 0
    return loss.to("cpu")


def test_a_loss_that_looks_at_itself_is_counted() -> None:
    few, many = (_found("fedavg", size, _Looks) for size in (6, 3))
    clients, more_batches = 2, 2
    for name in ("__float__", "__bool__", "to", "_local_scalar_dense"):
        assert many[name] - few[name] >= clients * more_batches, name


def test_a_mask_is_counted() -> None:
    with synchronisations() as found:
        torch.arange(3)[torch.tensor([True, False, True])]
        torch.arange(3)[torch.tensor([0, 2])]
    assert found == ["index"]
