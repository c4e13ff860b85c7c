"""Tiny data sets and experiments that tests share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedomg.core.params import FlatModel, Group, Tensors
from fedomg.core.records import Broadcast, ClientState
from fedomg.core.rng import Streams
from fedomg.data.dataset import Dataset
from fedomg.data.examples import Examples
from fedomg.data.federation import Client, Federation
from fedomg.engine.inline import InlineEngine
from fedomg.experiment.config import Config, make_config
from fedomg.experiment.experiment import Experiment, build_federation
from fedomg.experiment.site import LocalSite
from fedomg.experiment.state import ServerState
from fedomg.local.loop import Task, Visit

TINY: dict[str, Any] = {
    "dataset": "rect4",
    "data": {"points": 40},
    "model": {"name": "linear"},
    "rounds": 3,
    "local": {"lr": 0.1, "batch_size": 8},
    "engine": {"name": "inline"},
}

SMALL: dict[str, tuple[str, ...]] = {
    "fedadg": ("local.generator_width=16", "local.discriminator_width=8"),
}
"""What makes a method's own networks small."""


def network(method: str) -> str:
    """The choice of a small model with a body, such that the method can work with it."""
    return "model.name=tests.pictures:maps" if method.partition("+")[0] == "stablefdg" else "model.name=mlp"


def tiny(method: str = "fedavg", *overrides: str, **keys: Any) -> Config:
    """A configuration that runs in milliseconds."""
    return make_config({**TINY, "method": method, **keys}, (*SMALL.get(method.partition("+")[0], ()), *overrides))


def experiment(config: Config) -> Experiment:
    return Experiment(config, build_federation(config))


def model_of(trial: Experiment) -> FlatModel:
    """The model that the clients of an experiment in one process work in."""
    assert isinstance(trial.engine, InlineEngine)
    assert isinstance(trial.engine.site, LocalSite)
    return trial.engine.site.model


def run_rounds(trial: Experiment, rounds: int | None = None) -> tuple[ServerState, list[dict[str, Any]]]:
    """The state after some rounds, and their records."""
    state, records = trial.initial_state(), []
    for _ in range(rounds or trial.config.rounds):
        state, record = trial.advance(state)
        records.append(record)
    return state, records


def shared_after(config: Config, rounds: int | None = None) -> Tensor:
    return run_rounds(experiment(config), rounds)[0].shared


def visit_of(trial: Experiment, client: int = 0, state: ClientState | None = None, extras: Tensors | None = None, round: int = 1) -> Visit:
    """A client's turn with the initial model."""
    model = model_of(trial)
    broadcast = Broadcast(round, model.initial_values[Group.SHARED].clone(), model.initial_buffers, extras or {})
    task = Task(model, trial.config.local, trial.config.rounds)
    return Visit(task, trial.federation.clients[client], broadcast, state or {}, Streams(0, round, "view:personalised", client))


def federation_of(inputs: Sequence[Tensor], labels: Sequence[Tensor], classes: int = 2) -> Federation:
    """One client for each pair of inputs and labels; they train and test on the same examples."""
    domains = torch.cat([torch.full((len(part),), index) for index, part in enumerate(labels)])
    names = tuple(f"d{index}" for index in range(len(labels)))
    dataset = Dataset(torch.cat(list(inputs)), torch.cat(list(labels)), domains, tuple(map(str, range(classes))), names)
    clients = []
    for index, name in enumerate(names):
        rows = Examples(dataset, (domains == index).nonzero().flatten())
        clients.append(Client(index, name, train=rows, validation=Examples(dataset, rows.indices[:0]), test=rows))
    return Federation(dataset, tuple(clients), None)


def write_toml(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
