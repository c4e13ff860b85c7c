"""Which examples each step of local training sees."""

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Generator, Tensor

if TYPE_CHECKING:
    from fedomg.local.loop import Stage, Visit


AHEAD = 2**16
"""How many positions are drawn at a time: they go to the device together, not batch by batch."""


class Plan(NamedTuple):
    """The number of steps, and for each step the positions in the client's training data of each of its batches."""

    steps: int
    batches: Iterator[list[Tensor]]


def plan(stage: "Stage", visit: "Visit") -> Plan:
    """Endless shuffled passes, cut to the length of the stage.

    The last partial batch of a pass is dropped, unless there would be none without it: a client that holds fewer examples than a
    batch still learns. A batch of one is of no use to BatchNorm. With a batch from each domain, a pass is over when as many
    examples have been drawn as the client holds.
    """
    options = visit.task.options
    pools = _pools(stage, visit)
    lengths = [_batches_a_pass(len(pool), options.batch_size, options.drop_last, visit.model.has_batchnorm) for pool in pools]
    pools, lengths = [pool for pool, length in zip(pools, lengths, strict=True) if length], [length for length in lengths if length]
    if not pools:
        return Plan(0, iter(()))
    a_pass = max(1, sum(lengths) // len(lengths))
    steps = a_pass * stage.epochs if stage.epochs is not None else stage.steps or options.steps or a_pass * options.epochs
    draws = [visit.streams.generator(f"batches/{stage.name}/{order}") for order in range(len(pools))]
    shuffled = partial(_shuffled, size=options.batch_size, steps=steps, device=visit.client.train.indices.device)
    passes = [shuffled(pool, length=length, draw=draw) for pool, length, draw in zip(pools, lengths, draws, strict=True)]
    return Plan(steps, (list(batches) for batches in zip(*passes, strict=True)))


def _pools(stage: "Stage", visit: "Visit") -> list[Tensor]:
    """Where each batch of a step is drawn from: the whole training data, or one of its domains."""
    examples = visit.client.train
    everything = torch.arange(len(examples))
    if not stage.by_domain:
        return [everything] * stage.orders
    domains = examples.dataset.domains[examples.indices].cpu()
    return [everything[domains == domain] for domain in domains.unique()]


def _batches_a_pass(examples: int, size: int, drop_last: bool, has_batchnorm: bool) -> int:
    whole, rest = divmod(examples, size)
    return whole + (rest > 0 and (whole == 0 or not drop_last) and not (rest == 1 and has_batchnorm))


def _shuffled(pool: Tensor, size: int, length: int, steps: int, draw: Generator, device: torch.device) -> Iterator[Tensor]:
    """As many batches as there are steps, of one shuffled pass after another."""
    left = steps
    while left:
        passes = min(max(1, AHEAD // len(pool)), math.ceil(left / length))
        drawn = torch.stack([pool[torch.randperm(len(pool), generator=draw)] for _ in range(passes)]).to(device)
        batches = [batch for order in drawn for batch in order.split(size)[:length]][:left]
        left -= len(batches)
        yield from batches
