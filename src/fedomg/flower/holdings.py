"""Who holds what in a federation of machines: each node describes its clients, and the server numbers them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from pydantic import NonNegativeInt, TypeAdapter

from fedomg.core.errors import UserError
from fedomg.data.catalogue import load_dataset
from fedomg.data.dataset import Dataset
from fedomg.data.deal import deal
from fedomg.data.examples import Examples
from fedomg.data.federation import Client, Federation, target_client
from fedomg.experiment.config import Config


@dataclass(frozen=True)
class Holder:
    """A client or the held-out target as its node describes it: no more than how many examples it has for what."""

    name: str
    train: NonNegativeInt
    validation: NonNegativeInt
    test: NonNegativeInt
    target: bool


@dataclass(frozen=True)
class Holdings:
    """What a node holds."""

    holders: list[Holder]
    shape: list[int]
    classes: list[str]


HOLDINGS = TypeAdapter(Holdings)
"""Takes them from another machine's words."""


def of_this_node(config: Config, root: Path) -> Federation:
    """The domains in a node's folder, dealt to clients of its own; the held-out one is tested on wherever it is."""
    data = config.data.model_copy(update={"root": str(root), "partition": config.data.partition or "domain"})
    dataset = load_dataset(config.dataset, data, config.seed)
    if config.target is not None and dataset.domain_names == (config.target,):
        return Federation(dataset, (), target_client(dataset, config.target, 0))
    return deal(dataset, config.target if config.target in dataset.domain_names else None, data, config.seed)


def described(federation: Federation) -> Holdings:
    holders = [Holder(c.name, len(c.train), len(c.validation), len(c.test), c is federation.target) for c in federation.everyone]
    return Holdings(holders, list(federation.shape), list(federation.dataset.class_names))


def numbered(federation: Federation, numbers: Mapping[str, int]) -> Federation:
    """The same with the numbers that the server has given."""
    clients = tuple(replace(client, id=numbers[client.name]) for client in federation.clients)
    target = None if federation.target is None else replace(federation.target, id=numbers[federation.target.name])
    return Federation(federation.dataset, clients, target)


def together(found: Mapping[int, Holdings], target: str | None) -> tuple[Federation, dict[int, int]]:
    """What the server knows of a federation, without a single example, and which node each client is on.

    Clients are numbered in the order of their names, noto-2 before noto-10; the held-out target comes last.
    """
    if not found:
        raise UserError("no node has said what it holds")
    first = next(iter(found.values()))
    for node, holdings in found.items():
        if (holdings.shape, holdings.classes) != (first.shape, first.classes):
            raise UserError(
                f"nodes differ in images or classes: {first.shape} with {first.classes}, but {holdings.shape} with {holdings.classes} on "
                f"node {node}; every node needs a folder for each class, and data.size must be the same"
            )
    everyone = sorted(((holder, node) for node, holdings in found.items() for holder in holdings.holders), key=_place)
    names = [holder.name for holder, _ in everyone]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f'several nodes hold a client called "{name}"; rename its domain folder on all of them but one')
    if target is not None and not any(holder.target for holder, _ in everyone):
        raise UserError(f'no node holds the target "{target}"')
    empty = torch.empty(0, dtype=torch.int64)
    dataset = Dataset(torch.empty(0, *first.shape), empty, empty, tuple(first.classes), tuple(names))
    clients = [_elsewhere(dataset, number, holder) for number, (holder, _) in enumerate(everyone)]
    held_out = clients.pop() if everyone[-1][0].target else None
    if not clients:
        raise UserError("no node holds training data")
    return Federation(dataset, tuple(clients), held_out), {number: node for number, (_, node) in enumerate(everyone)}


def _place(held: tuple[Holder, int]) -> tuple[bool, list[str | int]]:
    """Text and digits of a name in turn, so that names compare part by part."""
    return held[0].target, [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", held[0].name)]


def _elsewhere(dataset: Dataset, number: int, holder: Holder) -> Client:
    """A client whose rows are on another machine: here they can be counted and not read."""
    rows = (Examples(dataset, torch.arange(count)) for count in (holder.train, holder.validation, holder.test))
    return Client(number, holder.name, *rows)
