"""Mistakes that published code of these methods makes, and that must not be made here."""

from functools import partial

import pytest
import torch
from tests.support import experiment, federation_of, network, run_rounds, tiny

from fedomg import methods
from fedomg.core.records import Broadcast
from fedomg.core.rng import Streams
from fedomg.experiment.evaluate import VIEW
from fedomg.experiment.experiment import Experiment
from fedomg.local.loop import Task, Visit

LABEL_SHIFT = ("fedavg", "fedprox", "scaffold", "peravg", "fedrod", "fedbabu", "fedpac", "fedas")
FEDERATED = [entry.name for entry in methods.ENTRIES.values() if entry.kind == "federated"]


@pytest.mark.parametrize("name", FEDERATED)
def test_training_phases_ask_the_cohort_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics of clients that are not sampled would cost a pass over all data every round, and nobody reads them."""
    trial = experiment(tiny(name, "server.participation=0.5", "data.clients_per_domain=2", network(name)))
    asked: dict[str, set[int]] = {}
    exchange = trial.engine.exchange

    def counted(phase: str, messages: dict[int, Broadcast], rows: torch.Tensor | None = None) -> object:
        asked.setdefault(phase, set()).update(messages)
        return exchange(phase, messages, rows)

    monkeypatch.setattr(trial.engine, "exchange", counted)
    _, (record,) = run_rounds(trial, 1)
    assert len(record["cohort"]) == 4
    training = {phase: clients for phase, clients in asked.items() if not phase.startswith(VIEW)}
    assert training
    assert all(clients <= set(record["cohort"]) for clients in training.values()), training


@pytest.mark.parametrize("name", LABEL_SHIFT)
def test_a_client_with_less_than_a_batch_trains_once_a_pass(name: str) -> None:
    """Loaders that drop the last batch leave it out silently; PerAvg's published code also trains twice a round."""
    trial = _few_examples(name, 5, 17)
    _, (record,) = run_rounds(trial, 1)
    few, more = (record["clients"][client] for client in ("0", "1"))
    stages = 2 if name in ("fedpac", "fedas") else 1
    assert few["steps"] == stages
    assert few["norm"] > 0
    assert more["steps"] == 2 * stages


def test_class_counts_are_those_of_the_whole_split() -> None:
    """A batched count that drops the last batch may miss the one example of a class, whose loss is then infinite."""
    trial = _few_examples("fedrod", 17)
    client = trial.federation.clients[0]
    _, (record,) = run_rounds(trial, 1)
    assert record["clients"]["0"]["loss"] is not None
    task = Task(trial.engine.site.model, trial.config.local, 1)  # type: ignore[attr-defined]
    visit = Visit(task, client, Broadcast(1, torch.empty(0), {}, {}), {}, Streams(0, 1, "fit", 0))
    loss = trial._trainer.stages(visit)[0].loss
    assert isinstance(loss, partial)
    torch.testing.assert_close(loss.keywords["log_counts"].exp(), torch.tensor([16.0, 1.0]))


def _few_examples(name: str, *sizes: int) -> Experiment:
    """Clients of so many examples, the last of which alone is of class 1, and batches of eight."""
    inputs = [torch.randn(size, 2, generator=torch.Generator().manual_seed(size)) for size in sizes]
    labels = [torch.tensor([0] * (size - 1) + [1]) for size in sizes]
    config = tiny(name, "local.batch_size=8", "model.name=mlp", "evaluate.adapted=never", "evaluate.personalised=never")
    return Experiment(config, federation_of(inputs, labels))
