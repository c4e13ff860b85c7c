"""The one local training loop: it owns batches, schedule, clipping, BatchNorm mode, optimizers and generators."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedomg.core.params import FlatModel, Group
from fedomg.core.records import Broadcast, ClientState
from fedomg.core.rng import Streams
from fedomg.data.examples import Batch
from fedomg.data.federation import Client
from fedomg.local.batches import plan
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

    @property
    def classes(self) -> int:
        return len(self.client.train.dataset.class_names)


Loss = Callable[[Visit, list[Batch]], Tensor]
"""The loss of one step, to be differentiated."""


def cross_entropy(visit: Visit, batches: list[Batch]) -> Tensor:
    """The mean over the first batch."""
    inputs, labels = batches[0]
    return F.cross_entropy(visit.model.module(inputs), labels)


Term = Callable[[Tensor], Tensor]
"""What the shared parameters add to their own gradient, as vectors."""

Gradient = Callable[[Visit, list[Batch]], Tensor]
"""Adds the gradient of one step to the zeroed gradient vectors and returns the loss, detached."""

Move = Callable[[list[Batch]], Tensor]
"""Moves the model along the gradient of these batches, by the optimizer, and returns the loss."""

Step = Callable[[Visit, list[Batch], Move], Tensor]
"""One step of the loop: moves of which the model is the result, and their loss."""

Turns = Callable[[Visit, list[Batch]], Iterator[Tensor]]
"""The losses of one step that several optimizers take in turn: each is descended before the next is asked for."""


@dataclass(frozen=True)
class Stage:
    """A stretch of local training: which groups move, along which gradient, for how long.

    The gradient is that of the loss, plus the term; a method that computes it otherwise gives `gradient` in place of both.
    `epochs`, `steps`, `lr` and `optimizer` are those of the configuration where they are None. A `plain` stage is SGD at a constant
    rate, without momentum, decay and clipping, whatever the configuration says. Each step gets a batch from each of `orders` independent
    shuffles of the client's examples, or one from each domain. A step is one move along the gradient; a method that moves otherwise
    gives `step`. Before step number `restart` the optimizer forgets. What is put into `memory` the client keeps. Stages of different
    name remember different optimizers. Where `rivals` take part, each moves its own groups by an optimizer of its own: in every step
    they descend the first of the losses of `turns`, in order, and the stage itself descends the last.
    """

    loss: Loss = cross_entropy
    term: Term | None = None
    gradient: Gradient | None = None
    step: Step | None = None
    turns: Turns | None = None
    rivals: tuple["Stage", ...] = ()
    groups: tuple[Group, ...] = (Group.SHARED, Group.PERSONAL)
    epochs: int | None = None
    steps: int | None = None
    lr: float | None = None
    optimizer: Literal["sgd", "adam"] | None = None
    orders: int = 1
    by_domain: bool = False
    plain: bool = False
    restart: int | None = None
    memory: ClientState = field(default_factory=dict)
    name: str = "fit"


@dataclass(frozen=True)
class Progress:
    """What a stage did; `distance` is the sum of its learning rates over its steps."""

    steps: int = 0
    loss: float = math.nan
    distance: float = 0.0


def train(stage: Stage, visit: Visit, state: ClientState) -> tuple[Progress, ClientState]:
    """Runs one stage on the model in the visit's task; returns what the stage and its optimizers want remembered."""
    visit.model.module.train()
    together = (*stage.rivals, stage)
    visit.model.train_only({group for each in together for group in each.groups})
    movers = [_Mover(each, visit, state) for each in together]
    own, gradient = movers[-1], stage.gradient or partial(descend, stage)

    def move(batches: list[Batch]) -> Tensor:
        return own.along(partial(gradient, visit, batches))

    steps, drawn = plan(stage, visit)
    chance = visit.streams.generator(f"augment/{stage.name}")
    total, distance = torch.zeros((), device=visit.model.shared.device), 0.0
    for step, drawn_now in enumerate(drawn):
        position = (visit.broadcast.round - 1 + step / steps) / visit.task.rounds
        distance += [mover.set_rate(position) for mover in movers][-1]
        if step == stage.restart:
            own.optimizer.state.clear()
        batches = [visit.client.train.batch(positions, chance) for positions in drawn_now]
        if stage.turns is not None:
            total += _take_turns(stage.turns(visit, batches), movers)
        else:
            total += move(batches) if stage.step is None else stage.step(visit, batches, move)
    if not steps:
        return Progress(), stage.memory
    kept = {name: tensor for mover in movers for name, tensor in mover.remembered().items()}
    return Progress(steps, float(total) / steps, distance), kept | stage.memory


class _Mover:
    """An optimizer, and the groups that it moves."""

    def __init__(self, stage: Stage, visit: Visit, state: ClientState) -> None:
        self._stage, self._options, self._model = stage, _options(stage, visit), visit.model
        self._groups = [group for group in stage.groups if len(visit.model.values[group])]
        self.optimizer = _open_optimizer(stage, self._options, visit.model, self._groups, state)

    def along(self, gradient: Callable[[], Tensor]) -> Tensor:
        """Moves along the gradient that this call adds, and returns its loss."""
        for group in self._groups:
            self._model.gradients[group].zero_()
        with self._options.arithmetic(self._model.shared.device):
            loss = gradient()
        if self._options.clip is not None:
            torch.nn.utils.clip_grad_norm_([self._model.values[group] for group in self._groups], self._options.clip)
        self.optimizer.step()
        return loss

    def set_rate(self, position: float) -> float:
        return _set_rate(self.optimizer, self._stage, self._options, position)

    def remembered(self) -> ClientState:
        return _optimizer_state(self._stage, self._options, self.optimizer, self._groups)


def _take_turns(losses: Iterator[Tensor], movers: Sequence[_Mover]) -> Tensor:
    """Each mover descends its loss; returns that of the last."""

    def descend_the_next() -> Tensor:
        loss = next(losses)
        loss.backward()
        return loss.detach()

    return [mover.along(descend_the_next) for mover in movers][-1]


def descend(stage: Stage, visit: Visit, batches: list[Batch]) -> Tensor:
    """Adds the gradient of the stage's loss and term to the gradient vectors; returns the loss, detached."""
    loss = stage.loss(visit, batches)
    loss.backward()
    if stage.term is not None:
        visit.model.gradients[Group.SHARED].add_(stage.term(visit.model.shared))
    return loss.detach()


def _options(stage: Stage, visit: Visit) -> LocalOptions:
    options = visit.task.options
    kept = ("lr", "batch_size", "drop_last", "precision")
    if stage.plain:
        return LocalOptions(**{key: getattr(options, key) for key in kept})
    return options if stage.optimizer is None else options.model_copy(update={"optimizer": stage.optimizer})


def _open_optimizer(
    stage: Stage, options: LocalOptions, model: FlatModel, groups: list[Group], state: ClientState
) -> torch.optim.Optimizer:
    for group in groups:
        model.values[group].grad = model.gradients[group]
    vectors = [model.values[group] for group in groups]
    optimizer: torch.optim.Optimizer
    if options.optimizer == "adam":
        optimizer = torch.optim.Adam(vectors, _rate(stage, options), weight_decay=options.weight_decay, fused=True)
    else:
        optimizer = torch.optim.SGD(vectors, _rate(stage, options), options.momentum, weight_decay=options.weight_decay, fused=True)
    for group in groups:
        prefix = _slot(stage, group)
        kept = {name.removeprefix(prefix): tensor.clone() for name, tensor in state.items() if name.startswith(prefix)}
        if kept:
            optimizer.state[model.values[group]] = kept
    return optimizer


def _optimizer_state(stage: Stage, options: LocalOptions, optimizer: torch.optim.Optimizer, groups: list[Group]) -> ClientState:
    if options.optimizer_state == "reset":
        return {}
    entries = zip(groups, optimizer.param_groups[0]["params"], strict=True)
    return {
        _slot(stage, group) + name: value
        for group, vector in entries
        for name, value in optimizer.state[vector].items()
        if isinstance(value, Tensor)
    }


def _slot(stage: Stage, group: Group) -> str:
    return f"optimizer/{stage.name}/{group}/"


def _rate(stage: Stage, options: LocalOptions) -> float:
    return options.lr if stage.lr is None else stage.lr


def _set_rate(optimizer: torch.optim.Optimizer, stage: Stage, options: LocalOptions, position: float) -> float:
    """Sets and returns the learning rate at a position in [0, 1) of the whole run."""
    rate = _rate(stage, options) * options.factor(position)
    for group in optimizer.param_groups:
        group["lr"] = rate
    return rate
