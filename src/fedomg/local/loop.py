"""The one local training loop: it owns batches, schedule, clipping, BatchNorm mode, optimizers and generators."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice

import torch
from torch import Generator, Tensor

from fedomg.core.params import FlatModel, Group
from fedomg.core.records import Broadcast, ClientState
from fedomg.core.rng import Streams
from fedomg.data.examples import Batch, Examples
from fedomg.data.federation import Client
from fedomg.local.options import LocalOptions


@dataclass(frozen=True)
class Task:
    """What a client needs beside its data: the model to work in, and how it trains."""

    model: FlatModel
    options: LocalOptions
    rounds: int


@dataclass(frozen=True)
class Visit:
    """One client's turn: everything that a step may read."""

    task: Task
    client: Client
    broadcast: Broadcast
    state: ClientState
    streams: Streams

    @property
    def model(self) -> FlatModel:
        return self.task.model


Gradient = Callable[[Visit, list[Batch]], Tensor]
"""Adds the gradient of one step to the zeroed gradient vectors and returns the loss, detached."""


@dataclass(frozen=True)
class Stage:
    """A stretch of local training: which groups move, along which gradient, for how long."""

    gradient: Gradient
    groups: tuple[Group, ...] = (Group.SHARED, Group.PERSONAL)
    epochs: int | None = None
    batches: int = 1


@dataclass(frozen=True)
class Progress:
    steps: int
    loss: float


def train(stage: Stage, visit: Visit, state: ClientState) -> tuple[Progress, ClientState]:
    """Runs one stage on the model in the visit's task; returns what the optimizer wants remembered."""
    options, model = visit.task.options, visit.model
    model.module.train()
    model.train_only(stage.groups)
    trained = [group for group in stage.groups if len(model.values[group])]
    optimizer = _open_optimizer(options, model, trained, state)
    steps, batches = _batches(stage, visit)
    total = torch.zeros(())
    for step, pieces in enumerate(batches):
        _set_rate(optimizer, visit, step / steps)
        for group in trained:
            model.gradients[group].zero_()
        total += stage.gradient(visit, pieces)
        if options.clip is not None:
            torch.nn.utils.clip_grad_norm_([model.values[group] for group in trained], options.clip)
        optimizer.step()
    mean = float(total) / steps if steps else math.nan
    return Progress(steps, mean), _optimizer_state(options, optimizer, trained)


def _batches(stage: Stage, visit: Visit) -> tuple[int, Iterator[list[Batch]]]:
    """The number of steps, and the batches of each.

    The last partial batch is dropped, unless the client would have none without it: one that holds fewer
    examples than a batch still learns. A batch of one is of no use to BatchNorm.
    """
    options, examples = visit.task.options, visit.client.train
    whole, rest = divmod(len(examples), options.batch_size)
    partial = rest > 0 and (whole == 0 or not options.drop_last) and not (rest == 1 and visit.model.has_batchnorm)
    used = whole + partial
    if not used:
        return 0, iter(())
    steps = options.steps if options.steps is not None else -(-used // stage.batches) * (stage.epochs or options.epochs)
    draw = visit.streams.generator("batches")
    pieces = (piece for _ in count() for piece in _epoch(examples, options.batch_size, used, stage.batches, draw))
    return steps, islice(pieces, steps)


def _epoch(examples: Examples, size: int, used: int, a_step: int, draw: Generator) -> Iterator[list[Batch]]:
    """One shuffled pass, with so many batches for each step."""
    pieces = torch.randperm(len(examples), generator=draw).split(size)[:used]
    for start in range(0, used, a_step):
        yield [examples.batch(positions) for positions in pieces[start : start + a_step]]


def _open_optimizer(options: LocalOptions, model: FlatModel, groups: list[Group], state: ClientState) -> torch.optim.Optimizer:
    for group in groups:
        model.values[group].grad = model.gradients[group]
    vectors = [model.values[group] for group in groups]
    optimizer: torch.optim.Optimizer
    if options.optimizer == "adam":
        optimizer = torch.optim.Adam(vectors, options.lr, weight_decay=options.weight_decay)
    else:
        optimizer = torch.optim.SGD(vectors, options.lr, momentum=options.momentum, weight_decay=options.weight_decay)
    for group in groups:
        prefix = f"optimizer/{group}/"
        kept = {name.removeprefix(prefix): tensor.clone() for name, tensor in state.items() if name.startswith(prefix)}
        if kept:
            optimizer.state[model.values[group]] = kept
    return optimizer


def _optimizer_state(options: LocalOptions, optimizer: torch.optim.Optimizer, groups: list[Group]) -> ClientState:
    if options.optimizer_state == "reset":
        return {}
    entries = zip(groups, optimizer.param_groups[0]["params"], strict=True)
    return {
        f"optimizer/{group}/{name}": value
        for group, vector in entries
        for name, value in optimizer.state[vector].items()
        if isinstance(value, Tensor)
    }


def _set_rate(optimizer: torch.optim.Optimizer, visit: Visit, done: float) -> None:
    options = visit.task.options
    if options.schedule == "constant":
        return
    rate = options.lr * options.factor((visit.broadcast.round - 1 + done) / visit.task.rounds)
    for group in optimizer.param_groups:
        group["lr"] = rate
