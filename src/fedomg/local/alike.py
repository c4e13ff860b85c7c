"""What clients have in common: their stages, up to the tensors that these depend on, and what a loss may read of any of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from fedomg.core.params import Group, Tensors
from fedomg.core.rng import Streams
from fedomg.data.federation import Client
from fedomg.local.loop import Stage, Visit


class Apart(Exception):  # noqa: N818 (a finding, which the caller turns into a refusal)
    """Why clients cannot be trained together."""


def alike(stages: Sequence[Sequence[Stage]]) -> list[list[int]]:
    """The clients, by number, in groups whose stages differ in the tensors of their loss and term alone."""
    kinds: list[list[Stage]] = []
    groups: list[list[int]] = []
    for number, own in enumerate(stages):
        kind = [_stage_kind(stage) for stage in own]
        if kind not in kinds:
            kinds.append(kind)
            groups.append([])
        groups[kinds.index(kind)].append(number)
    return groups


def _stage_kind(stage: Stage) -> Stage:
    if any(getattr(stage, name) is not None for name in ("gradient", "step", "turns", "restart")) or stage.rivals or stage.memory:
        raise Apart("its local steps are more than steps along the gradient of a loss")
    if Group.FROZEN in stage.groups:
        raise Apart("it trains a part of the model that is frozen")
    return replace(stage, loss=_kind(stage.loss), term=stage.term and _kind(stage.term))


class _Kind(NamedTuple):
    """A function without its tensors. It is compared, never called."""

    function: Callable[..., Tensor]
    arguments: tuple[Any, ...]
    values: dict[str, Any]
    shapes: dict[str, tuple[torch.Size, torch.dtype]]


def _kind(function: Callable[..., Tensor]) -> Any:
    own = function if isinstance(function, partial) else partial(function)
    if getattr(own.func, "__qualname__", "").rpartition(".")[0].endswith("<locals>"):
        raise Apart("its loss or term is a function made anew for each client, not a functools.partial that names what it depends on")
    tensors = {name: value for name, value in own.keywords.items() if isinstance(value, Tensor)}
    values = {name: value for name, value in own.keywords.items() if name not in tensors}
    return _Kind(own.func, own.args, values, {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()})


class Mapped(NamedTuple):
    """The same function for several clients: what it depends on, a row for each, or once where all have the very same tensor."""

    function: Callable[..., Tensor]
    stacked: Tensors
    common: Tensors

    @classmethod
    def of(cls, functions: Sequence[Callable[..., Tensor]]) -> "Mapped":
        own = [function.keywords if isinstance(function, partial) else {} for function in functions]
        tensors = [name for name, value in own[0].items() if isinstance(value, Tensor)]
        common = {name: own[0][name] for name in tensors if all(keywords[name] is own[0][name] for keywords in own)}
        stacked = {name: torch.stack([keywords[name] for keywords in own]) for name in tensors if name not in common}
        return cls(functions[0], stacked, common)

    def rows(self, index: slice | Tensor) -> Tensors:
        return {name: tensor[index] for name, tensor in self.stacked.items()}


def anyone(visits: Sequence[Visit]) -> Visit:
    """What a loss may read whosever it is. In one exchange all are sent the same model; what else differs is withheld."""
    first = visits[0]
    train = _Withheld("the client's data", dataset=first.client.train.dataset)
    return replace(
        first,
        client=cast(Client, _Withheld("the client", train=train)),
        broadcast=replace(first.broadcast, extras=_Common([visit.broadcast.extras for visit in visits])),
        state=cast(Tensors, _Common([visit.state for visit in visits])),
        streams=cast(Streams, _Withheld("the client's generators")),
    )


class _Withheld:
    def __init__(self, name: str, **known: Any) -> None:
        self._name = name
        vars(self).update(known)

    def __getattr__(self, attribute: str) -> Any:
        raise Apart(f"its loss reads {self._name} ({attribute})")


class _Common(Mapping[str, Tensor]):
    """The entries that are the very same tensor for all."""

    def __init__(self, parts: Sequence[Mapping[str, Tensor]]) -> None:
        names = dict.fromkeys(name for part in parts for name in part)
        self._same = {name: parts[0][name] for name in names if all(part.get(name) is parts[0].get(name) for part in parts)}
        self._differing = names.keys() - self._same.keys()

    def __getitem__(self, name: str) -> Tensor:
        if name in self._differing:
            raise Apart(f'its loss reads "{name}", which is not the same for all clients')
        return self._same[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._same)

    def __len__(self) -> int:
        return len(self._same)
