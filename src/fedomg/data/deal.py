"""From a data set and the `[data]` table to a federation."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fedomg.core.errors import UserError
from fedomg.core.rng import generator
from fedomg.data import partition
from fedomg.data.dataset import Dataset
from fedomg.data.federation import Client, Federation, Shares, by_domain, divided, rows_of, source_domains, target_client
from fedomg.data.options import DOMAIN_SHIFT, LABEL_SHIFT, PARTITION_KEYS, DataOptions, resolve


def deal(dataset: Dataset, target: str | None, options: DataOptions, seed: int) -> Federation:
    """Deals a data set as its options say; what they leave open follows from the number of domains."""
    single = len(dataset.domain_names) == 1
    if target is not None and single:
        raise UserError(f'target "{target}" cannot be held out: the data set has a single domain; remove the target')
    settings: dict[str, Any] = resolve(options, LABEL_SHIFT if single else DOMAIN_SHIFT).model_dump()
    shares = Shares(settings["validation"], settings["test"])
    keys = {key: settings[key] for key in PARTITION_KEYS[settings["partition"]]}
    if settings["partition"] == "domain":
        return by_domain(dataset, target, keys["clients_per_domain"], shares, seed)
    sources = source_domains(dataset, target)
    if settings["partition"] == "domain-label":
        parts = _within_domains(dataset, sources, seed, **keys)
    elif settings["partition"] == "domain-mix":
        parts = _mixed(dataset, sources, seed, **keys)
    else:
        parts = _of_the_pool(dataset, sources, seed, LABEL_PARTITIONS[settings["partition"]], **keys)
    clients = tuple(_client(dataset, number, name, rows, shares, seed) for number, (name, rows) in enumerate(parts))
    return Federation(dataset, clients, None if target is None else target_client(dataset, target, len(clients)))


LABEL_PARTITIONS: dict[str, Callable[..., partition.Parts]] = {
    "iid": partition.iid,
    "dirichlet": partition.dirichlet,
    "pathological": partition.pathological,
}


def _of_the_pool(
    dataset: Dataset, sources: list[str], seed: int, part: Callable[..., partition.Parts], **keys: Any
) -> Iterator[tuple[str, Tensor]]:
    """The source domains thrown together and dealt by label."""
    rows = torch.cat([rows_of(dataset, domain) for domain in sources])
    for number, positions in enumerate(part(dataset.labels[rows].numpy(), seed=seed, **keys)):
        yield f"client-{number}", rows[torch.from_numpy(positions)].sort().values


def _mixed(dataset: Dataset, sources: list[str], seed: int, **keys: Any) -> Iterator[tuple[str, Tensor]]:
    """The source domains dealt so that clients differ in how much of each they hold."""
    rows = torch.cat([rows_of(dataset, domain) for domain in sources])
    parts = torch.zeros_like(rows) if dataset.split is None else dataset.split[rows]
    for number, positions in enumerate(partition.domain_mix(dataset.domains[rows].numpy(), parts.numpy(), seed=seed, **keys)):
        yield f"client-{number}", rows[torch.from_numpy(positions)].sort().values


def _within_domains(dataset: Dataset, sources: list[str], seed: int, clients_per_domain: int, **keys: Any) -> Iterator[tuple[str, Tensor]]:
    """Each source domain dealt by label to clients of its own."""
    for domain in sources:
        rows = rows_of(dataset, domain)
        parts = partition.dirichlet(dataset.labels[rows].numpy(), clients_per_domain, seed=seed, place=domain, **keys)
        for number, positions in enumerate(parts):
            yield f"{domain}-{number + 1}", rows[torch.from_numpy(positions)]


def _client(dataset: Dataset, number: int, name: str, rows: Tensor, shares: Shares, seed: int) -> Client:
    """Tests and validation are split off at random, so that they are distributed as the client's training data."""
    draw = generator(seed, "split", number)
    return divided(dataset, number, name, rows, shares, lambda share, rows, role: _random(rows, share, draw))


def _random(rows: Tensor, share: float, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """A share of the rows, rounded up, and the others."""
    shuffled = rows[torch.randperm(len(rows), generator=draw)]
    cut = math.ceil(share * len(rows) - 1e-9)  # 0.1 * 30 is a little more than 3
    return shuffled[:cut].sort().values, shuffled[cut:].sort().values


def label_counts(federation: Federation) -> Tensor:
    """How many examples of each class every client holds, training, validation and test together: (clients, classes)."""
    held = (torch.cat([client.train.labels, client.validation.labels, client.test.labels]) for client in federation.clients)
    return torch.stack([labels.bincount(minlength=federation.classes) for labels in held])


def heterogeneity(counts: Tensor) -> float:
    """The mean total-variation distance of the clients' label distributions to that of all: 0 is IID, near 1 disjoint."""
    held = counts.double()
    own = held / held.sum(dim=1, keepdim=True)
    pooled = held.sum(dim=0) / held.sum()
    return float((own - pooled).abs().sum(dim=1).mean() / 2)
