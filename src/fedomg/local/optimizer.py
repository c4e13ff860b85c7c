"""How a step moves: rates, bounds on gradients, optimizers and what they remember. Of one client's vectors, or of several clients' rows."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer

from fedomg.core.params import Group, Tensors
from fedomg.core.records import ClientState
from fedomg.local.options import LocalOptions

if TYPE_CHECKING:
    from fedomg.local.loop import Stage, Visit

Vectors = Mapping[Group, Tensor]
"""What one client trains."""


def stage_options(stage: "Stage", visit: "Visit") -> LocalOptions:
    options = visit.task.options
    kept = ("lr", "batch_size", "drop_last", "precision")
    if stage.plain:
        return LocalOptions(**{key: getattr(options, key) for key in kept})
    return options if stage.optimizer is None else options.model_copy(update={"optimizer": stage.optimizer})


def rate(stage: "Stage", visit: "Visit", options: LocalOptions, done: float) -> float:
    """The learning rate where this share of the stage's steps is done."""
    position = (visit.broadcast.round - 1 + done) / visit.task.rounds
    return (options.lr if stage.lr is None else stage.lr) * options.factor(position)


def open_optimizer(options: LocalOptions, vectors: Sequence[Sequence[Tensor]], recalled: Mapping[Tensor, Tensors]) -> Optimizer:
    """Vectors of one sequence have the same rate, which is set before each step. A vector without gradient is left alone."""
    groups = [{"params": list(members)} for members in vectors]
    optimizer: Optimizer
    if options.optimizer == "adam":
        optimizer = Adam(groups, options.lr, weight_decay=options.weight_decay, fused=True)
    else:
        optimizer = SGD(groups, options.lr, options.momentum, weight_decay=options.weight_decay, fused=True)
    optimizer.state.update(recalled)
    return optimizer


def recall(stage: "Stage", vectors: Vectors, state: ClientState) -> dict[Tensor, Tensors]:
    """What the client remembers of the optimizer of each vector, where it is anything."""
    recalled = {}
    for group, vector in vectors.items():
        prefix = _slot(stage, group)
        kept = {name.removeprefix(prefix): tensor.clone() for name, tensor in state.items() if name.startswith(prefix)}
        if kept:
            recalled[vector] = kept
    return recalled


def remembered(optimizer: Optimizer, stage: "Stage", options: LocalOptions, vectors: Vectors) -> ClientState:
    if options.optimizer_state == "reset":
        return {}
    return {
        _slot(stage, group) + name: value
        for group, vector in vectors.items()
        for name, value in optimizer.state[vector].items()
        if isinstance(value, Tensor)
    }


def _slot(stage: "Stage", group: Group) -> str:
    return f"optimizer/{stage.name}/{group}/"


def bound(gradients: Sequence[Tensor], largest: float) -> None:
    """Shortens gradients, vectors of one client or matrices with a row a client, to a joint length of at most `largest` a client."""
    lengths = torch.stack([torch.linalg.vector_norm(gradient, dim=-1) for gradient in gradients])
    scale = (largest / (torch.linalg.vector_norm(lengths, dim=0) + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient.mul_(scale.unsqueeze(-1))
