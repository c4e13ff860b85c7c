"""Who holds what: a data set dealt to clients, with one domain held out as the target where asked."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedomg.core.errors import UserError
from fedomg.core.names import unknown_name
from fedomg.core.rng import generator
from fedomg.data.dataset import TEST, VALIDATION, Dataset
from fedomg.data.examples import Examples


@dataclass(frozen=True)
class Client:
    """One owner of data. The held-out target is a client too, one that never trains."""

    id: int
    name: str
    train: Examples
    validation: Examples
    test: Examples


@dataclass(frozen=True)
class Federation:
    dataset: Dataset
    clients: tuple[Client, ...]
    target: Client | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.dataset.shape

    @property
    def classes(self) -> int:
        return len(self.dataset.class_names)

    @property
    def device(self) -> torch.device:
        return self.dataset.labels.device

    @property
    def everyone(self) -> tuple[Client, ...]:
        return self.clients if self.target is None else (*self.clients, self.target)

    def to(self, device: torch.device) -> "Federation":
        """The same federation with its data on a device, once."""
        if device == self.device:
            return self
        dataset = self.dataset.to(device)
        clients = [Client(c.id, c.name, c.train.to(dataset), c.validation.to(dataset), c.test.to(dataset)) for c in self.everyone]
        target = None if self.target is None else clients.pop()
        return Federation(dataset, tuple(clients), target)


def pooled(federation: Federation) -> Federation:
    """All clients' data with one client, for methods that know no federation. The target stays held out."""

    def together(parts: list[Examples]) -> Examples:
        return Examples(federation.dataset, torch.cat([part.indices for part in parts]).sort().values)

    clients, target = federation.clients, federation.target
    parts = [together([getattr(client, part) for client in clients]) for part in ("train", "validation", "test")]
    return Federation(federation.dataset, (Client(0, "all", *parts),), None if target is None else replace(target, id=1))


@dataclass(frozen=True)
class Shares:
    """How the rows of a domain are used: a fraction for validation, and one for tests where the data set fixes none."""

    validation: float
    test: float


def by_domain(dataset: Dataset, target: str | None, clients_per_domain: int, shares: Shares, seed: int) -> Federation:
    """Each source domain is one client, or is dealt evenly to several; the target domain is all held out."""
    clients: list[Client] = []
    for name in source_domains(dataset, target):
        for part, rows in enumerate(_deal(dataset, name, clients_per_domain, seed)):
            label = name if clients_per_domain == 1 else f"{name}-{part + 1}"
            clients.append(_client(dataset, len(clients), label, rows, shares, seed))
    held_out = None if target is None else target_client(dataset, target, len(clients))
    return Federation(dataset, tuple(clients), held_out)


def source_domains(dataset: Dataset, target: str | None) -> list[str]:
    """All domains but the target."""
    if target is not None and target not in dataset.domain_names:
        raise UserError(unknown_name("domain", target, dataset.domain_names) + " (key: target)")
    sources = [name for name in dataset.domain_names if name != target]
    if not sources:
        raise UserError(f'no source domain is left: "{target}" is the only domain of the data set')
    return sources


def rows_of(dataset: Dataset, domain: str) -> Tensor:
    rows = (dataset.domains == dataset.domain_names.index(domain)).nonzero().flatten()
    if not len(rows):
        raise UserError(f'domain "{domain}" holds no example; remove it or give it images')
    return rows


def _deal(dataset: Dataset, domain: str, parts: int, seed: int) -> Iterator[Tensor]:
    """Every class of the domain dealt evenly, so that the parts differ by chance alone."""
    rows = rows_of(dataset, domain)
    if parts > len(rows):
        raise UserError(f'domain "{domain}" has {len(rows)} examples, too few for {parts} clients (key: data.clients_per_domain)')
    order = torch.cat(list(_shuffled_by_class(dataset, rows, seed, "deal")))
    for part in range(parts):
        yield order[part::parts].sort().values


def _client(dataset: Dataset, client: int, name: str, rows: Tensor, shares: Shares, seed: int) -> Client:
    def split_off(share: float, rows: Tensor, role: str) -> tuple[Tensor, Tensor]:
        return _stratified(dataset, rows, share, seed, role)

    return divided(dataset, client, name, rows, shares, split_off)


SplitOff = Callable[[float, Tensor, str], tuple[Tensor, Tensor]]
"""Takes a share of the rows for a role; returns those and the others."""


def divided(dataset: Dataset, client: int, name: str, rows: Tensor, shares: Shares, split_off: SplitOff) -> Client:
    """A client's rows in their parts: those that the data set fixes, then shares of the rest."""
    test, rows = _fixed(dataset, rows, TEST) or split_off(shares.test, rows, "test")
    validation, train = _fixed(dataset, rows, VALIDATION) or split_off(shares.validation, rows, "validation")
    require_training_data(name, train)
    return Client(client, name, Examples(dataset, train), Examples(dataset, validation), Examples(dataset, test))


def _fixed(dataset: Dataset, rows: Tensor, part: int) -> tuple[Tensor, Tensor] | None:
    """The rows of a part and the others, where the data set fixes this part."""
    if dataset.split is None or not (dataset.split == part).any():
        return None
    members = dataset.split[rows] == part
    return rows[members], rows[~members]


def require_training_data(name: str, train: Tensor) -> None:
    if not len(train):
        raise UserError(f'client "{name}" is left without training examples; lower data.validation or data.test, or use fewer clients')


def target_client(dataset: Dataset, domain: str, client: int) -> Client:
    """The whole domain is test data, or its test part where the data set fixes one that divides more than pictures."""
    rows = rows_of(dataset, domain)
    test = rows if dataset.split is None or dataset.whole_target else rows[dataset.split[rows] == TEST]
    nothing = Examples(dataset, rows[:0])
    return Client(client, domain, nothing, nothing, Examples(dataset, test))


def _stratified(dataset: Dataset, rows: Tensor, share: float, seed: int, role: str) -> tuple[Tensor, Tensor]:
    """Splits off a share of every class, by a shuffle that depends on the seed and on the rows alone."""
    taken: list[Tensor] = [rows[:0]]
    kept: list[Tensor] = [rows[:0]]
    for members in _shuffled_by_class(dataset, rows, seed, role):
        cut = round(share * len(members))
        taken.append(members[:cut])
        kept.append(members[cut:])
    return torch.cat(taken).sort().values, torch.cat(kept).sort().values


def _shuffled_by_class(dataset: Dataset, rows: Tensor, seed: int, role: str) -> Iterator[Tensor]:
    draw = generator(seed, role, int(rows[0]) if len(rows) else 0)
    for label in range(len(dataset.class_names)):
        members = rows[dataset.labels[rows] == label]
        yield members[torch.randperm(len(members), generator=draw)]
