"""Local training of several clients at once: each is a row of every tensor, and what a step computes it computes for all rows.

The loss of a stage is mapped over the rows by `torch.func.vmap`. The gradient is that of the sum of the clients' losses, in which no client
sees another. Batches, rates, bounds and optimizers are those of the local loop, so that the results differ by rounding alone. Clients
whose batches differ in size are mapped apart, and who is through is left out of the steps of the others.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils.rnn import pad_sequence

from fedomg.core.params import FlatModel, Group, Tensors, views
from fedomg.core.records import ClientState
from fedomg.data.examples import Batch, read
from fedomg.local.alike import Apart, Mapped, alike, anyone
from fedomg.local.batches import plan
from fedomg.local.loop import Progress, Stage, Visit, augmentation
from fedomg.local.optimizer import Vectors, bound, open_optimizer, rate, recall, remembered, stage_options
from fedomg.local.options import LocalOptions

STACKED: tuple[Group, ...] = tuple(group for group in Group if group is not Group.FROZEN)
Fitted = tuple[Progress, ClientState]


class Stack:
    """The models of several clients, a row for each; they take turns in `model` for all that is not training."""

    def __init__(self, model: FlatModel, clients: int) -> None:
        self.model = model
        self.values = {group: model.values[group].new_empty(clients, len(model.values[group])) for group in STACKED}
        self.buffers = {name: buffer.new_empty(clients, *buffer.shape) for name, buffer in model.buffers.items()}

    def put(self, row: int) -> None:
        """The row becomes what the model is."""
        for group, values in self.values.items():
            values[row].copy_(self.model.values[group])
        for name, buffer in self.model.buffers.items():
            self.buffers[name][row].copy_(buffer)

    def take(self, row: int) -> None:
        """The model becomes what the row is."""
        for group, values in self.values.items():
            self.model.values[group].copy_(values[row])
        for name, buffer in self.model.buffers.items():
            buffer.copy_(self.buffers[name][row])


def fit_together(stages: Sequence[Sequence[Stage]], visits: Sequence[Visit], stack: Stack) -> list[Fitted]:
    """Trains all rows of the stack through their stages, as `Trainer.fit` trains one model."""
    fitted: dict[int, Fitted] = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # vmap's own, of small operations that it does row by row
        for rows in alike(stages):
            done: list[Fitted] = [(Progress(), {}) for _ in rows]
            for column in zip(*(stages[row] for row in rows), strict=True):
                now = _train(column, [visits[row] for row in rows], stack, rows)
                done = [(before.then(after), {**old, **new}) for (before, old), (after, new) in zip(done, now, strict=True)]
            fitted |= zip(rows, done, strict=True)
    return [fitted[row] for row in range(len(stages))]


def _train(stages: Sequence[Stage], visits: Sequence[Visit], stack: Stack, rows: Sequence[int]) -> list[Fitted]:
    """What `train` does for one client, for those in these rows."""
    options, device = stage_options(stages[0], visits[0]), stack.model.shared.device
    trained = [group for group in stages[0].groups if stack.values[group].shape[1]]
    feed = _Feed(stages, visits, rows)
    slope = _Slope(stages, visits, stack, trained)
    moves = _Moves(stages[0], options, visits, [{group: stack.values[group][row] for group in trained} for row in rows], feed.steps)
    totals, distances = torch.zeros(len(rows), device=device), [0.0] * len(rows)
    for step in range(max(feed.steps)):
        for some, batches in feed.batches(step):
            with options.arithmetic(device):
                losses, gradients = slope.at(some, batches)
            if options.clip is not None:
                bound(list(gradients.values()), options.clip)
            totals[some.index] += losses
            moves.along(some, gradients)
        for number, pace in moves.step(step):
            distances[number] += pace
    return [
        (Progress(steps, total / steps, distance), moves.remembered(number)) if steps else (Progress(), {})
        for number, (steps, total, distance) in enumerate(zip(feed.steps, totals.tolist(), distances, strict=True))
    ]


class _Some:
    """Some of the clients that train together, by number, and their rows of the stack."""

    def __init__(self, numbers: Sequence[int], rows: Sequence[int], device: torch.device) -> None:
        self.numbers = numbers
        self.index = _index(numbers, device)
        self.rows = _index([rows[number] for number in numbers], device)


def _index(numbers: Sequence[int], device: torch.device) -> slice | Tensor:
    """A slice where it can be: then nothing is copied."""
    first, last = numbers[0], numbers[-1]
    return slice(first, last + 1) if list(numbers) == list(range(first, last + 1)) else torch.tensor(numbers, device=device)


class _Feed:
    """The batches of all clients, step by step."""

    def __init__(self, stages: Sequence[Stage], visits: Sequence[Visit], rows: Sequence[int]) -> None:
        plans = [plan(stage, visit) for stage, visit in zip(stages, visits, strict=True)]
        self.steps = [steps for steps, _ in plans]
        self._drawn = [batches for _, batches in plans]
        self._chances = [visit.streams.generator(augmentation(stages[0])) for visit in visits]
        examples = [visit.client.train for visit in visits]
        self._dataset = examples[0].dataset
        self._held = pad_sequence([own.indices for own in examples], batch_first=True)
        self._some = cache(lambda numbers: _Some(numbers, rows, self._held.device))

    def batches(self, step: int) -> Iterator[tuple[_Some, list[Batch]]]:
        """The clients that have this step, in groups whose batches are of the same sizes."""
        drawn = {number: next(self._drawn[number]) for number, steps in enumerate(self.steps) if step < steps}
        groups: dict[tuple[int, ...], list[int]] = {}
        for number, batches in drawn.items():
            groups.setdefault(tuple(map(len, batches)), []).append(number)
        for numbers in groups.values():
            some = self._some(tuple(numbers))
            held = self._held[some.index]
            positions = (torch.stack(order) for order in zip(*(drawn[number] for number in numbers), strict=True))
            yield some, [self._read(numbers, held.gather(1, order)) for order in positions]

    def _read(self, numbers: Sequence[int], rows: Tensor) -> Batch:
        if self._dataset.augmentation == "none":
            return read(self._dataset, rows)
        own = [read(self._dataset, mine, self._chances[number]) for number, mine in zip(numbers, rows, strict=True)]
        return Batch(torch.stack([batch.inputs for batch in own]), torch.stack([batch.labels for batch in own]))


class _Within(nn.Module):
    """Calls a function while the module's tensors are others, and says what its buffers are afterwards."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: partial[Tensor]) -> tuple[Tensor, Tensors]:
        return function(), dict(self.module.named_buffers())


class _Slope:
    """Losses and gradients."""

    def __init__(self, stages: Sequence[Stage], visits: Sequence[Visit], stack: Stack, trained: Sequence[Group]) -> None:
        self._stack, self._trained, self._anyone = stack, trained, anyone(visits)
        self._loss = Mapped.of([stage.loss for stage in stages])
        self._term = Mapped.of([stage.term for stage in stages if stage.term is not None]) if stages[0].term is not None else None
        self._within = _Within(stack.model.module)
        stack.model.module.train()
        stack.model.train_only(())

    def at(self, some: _Some, batches: list[Batch]) -> tuple[Tensor, dict[Group, Tensor]]:
        """Of these clients, a row for each, where they are; their buffers move on."""
        values = {group: matrix[some.rows].detach().requires_grad_(group in self._trained) for group, matrix in self._stack.values.items()}
        buffers = {name: buffer[some.rows] for name, buffer in self._stack.buffers.items()}
        losses, moved = _map(self._one, (values, buffers, self._loss.rows(some.index), batches))
        found = torch.autograd.grad(losses.sum(), [values[group] for group in self._trained], materialize_grads=True)
        gradients = dict(zip(self._trained, found, strict=True))
        if self._term is not None and Group.SHARED in gradients:
            term = partial(self._term.function, **self._term.common)
            with torch.no_grad():
                gradients[Group.SHARED] += _map(lambda row, own: term(row, **own), (values[Group.SHARED], self._term.rows(some.index)))
        for name, buffer in moved.items():
            self._stack.buffers[name][some.rows] = buffer
        return losses.detach(), gradients

    def _one(self, values: Mapping[Group, Tensor], buffers: Tensors, own: Tensors, batches: list[Batch]) -> tuple[Tensor, Tensors]:
        """Of one client, of whom `vmap` makes all."""
        model = self._stack.model
        vectors = {group: vector.detach() for group, vector in values.items()}  # no gradient flows but through the module
        visit = replace(self._anyone, task=replace(self._anyone.task, model=model.over(vectors)))
        tensors = dict(buffers)
        for group, vector in values.items():
            members = model.parameters[group]
            pieces = views(vector, [parameter for _, parameter in members])
            tensors |= {name: piece for (name, _), piece in zip(members, pieces, strict=True)}
        loss = partial(self._loss.function, visit, batches, **own, **self._loss.common)
        answer: tuple[Tensor, Tensors] = functional_call(self._within, {f"module.{name}": t for name, t in tensors.items()}, (loss,))
        return answer


def _map(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """The function of every row of its arguments."""
    try:
        return vmap(function, randomness="error")(*arguments)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0].partition(". ")[0].strip(". ")
        if "random operation" in reason:
            raise Apart("its loss or its model draws random numbers, such as dropout does") from error
        if "does not require grad" in reason:
            raise Apart("its loss takes a gradient of its own by torch.autograd, and not by torch.func") from error
        if "vmap" in reason.lower() or "batching rule" in reason.lower():
            raise Apart(f"its loss or its model is beyond what torch maps over clients ({reason})") from error
        raise


class _Moves:
    """The optimizer of all clients. Those of the same rates share a call."""

    def __init__(
        self, stage: Stage, options: LocalOptions, visits: Sequence[Visit], vectors: Sequence[Vectors], steps: Sequence[int]
    ) -> None:
        self._stage, self._options, self._visit, self._vectors, self._steps = stage, options, visits[0], vectors, steps
        recalled = [recall(stage, own, visit.state) for own, visit in zip(vectors, visits, strict=True)]
        paced: dict[tuple[int, bool], list[int]] = {}
        for number, known in enumerate(recalled):
            length = max(steps) if options.schedule == "constant" else steps[number]
            paced.setdefault((max(1, length), bool(known)), []).append(number)  # torch's momentum starts for all of a group or for none
        self._paced = [(length, numbers) for (length, _), numbers in paced.items()]
        members = [[vector for number in numbers for vector in vectors[number].values()] for _, numbers in self._paced]
        self._optimizer = open_optimizer(options, members, {vector: kept for known in recalled for vector, kept in known.items()})

    def along(self, some: _Some, gradients: Mapping[Group, Tensor]) -> None:
        for group, matrix in gradients.items():
            for number, gradient in zip(some.numbers, matrix.unbind(), strict=True):
                self._vectors[number][group].grad = gradient

    def step(self, step: int) -> list[tuple[int, float]]:
        """Moves all that have this step, and says at which rate."""
        moved = []
        for (length, numbers), group in zip(self._paced, self._optimizer.param_groups, strict=True):
            group["lr"] = rate(self._stage, self._visit, self._options, step / length)
            moved += [(number, group["lr"]) for number in numbers if step < self._steps[number]]
        self._optimizer.step()
        for number, _ in moved:
            for vector in self._vectors[number].values():
                vector.grad = None
        return moved

    def remembered(self, number: int) -> ClientState:
        return remembered(self._optimizer, self._stage, self._options, self._vectors[number])
