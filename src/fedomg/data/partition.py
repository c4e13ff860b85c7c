"""Partitions: the examples of one pool dealt to clients by their labels.

Each function takes the labels and returns, for every client, the positions it holds, in increasing order. Every position is
dealt exactly once, and the same seed gives the same deal.
"""

import heapq
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedomg.core.errors import UserError
from fedomg.core.rng import derive

Indices = NDArray[np.int64]
Parts = list[Indices]

LEAST = 40
ATTEMPTS = 5000
REDRAWS = 1000


def iid(labels: Indices, clients: int, seed: int) -> Parts:
    """Every class dealt evenly: the shares of a class, and the sizes of clients, differ by one example at most."""
    _enough_examples(labels, clients)
    order = np.concatenate([members for _, members in _shuffled_classes(labels, _generator(seed, "iid"))])
    return [np.sort(order[client::clients]) for client in range(clients)]


def dirichlet(labels: Indices, clients: int, alpha: float, least: int | None, repair: bool, seed: int, place: str = "") -> Parts:
    """Each class dealt in shares drawn from Dir(alpha), drawn anew until the smallest client holds `least` examples.

    A client that holds its even share of all examples or more gets nothing of the classes still to come; the others' shares are
    scaled up. This is the partition of PFLlib, with a generator of its own and an end to the attempts.
    """
    _enough_examples(labels, clients, "data.clients_per_domain" if place else "data.clients")
    even = len(labels) / clients
    wanted = min(LEAST, even / 2) if least is None else least
    if wanted > even:
        raise UserError(f"{len(labels)} examples cannot give each of {clients} clients {wanted}; lower data.least or the number of clients")
    draw = _generator(seed, "dirichlet", place)
    class_sizes = np.bincount(labels)
    counts = _draw_counts(class_sizes, clients, alpha, wanted, draw)
    if counts is None and not repair:
        raise UserError(
            f"in {ATTEMPTS} draws with data.alpha = {alpha:g} some of the {clients} clients always held fewer than {wanted:g} examples; "
            "raise data.alpha, lower data.least or the number of clients, or set data.repair = true"
        )
    if counts is None:
        counts = _repaired(_one_draw(class_sizes, clients, alpha, even, draw), int(np.ceil(wanted)))
    return _deal(labels, counts, draw)


def pathological(labels: Indices, clients: int, classes_per_client: int, seed: int) -> Parts:
    """Each client holds exactly so many classes; a class goes to clients in proportion to its size, in even parts."""
    _enough_examples(labels, clients)
    draw = _generator(seed, "pathological")
    class_sizes = np.bincount(labels)
    holders = _holders(class_sizes, clients, classes_per_client)
    counts = np.zeros((len(class_sizes), clients), np.int64)
    for client in range(clients):
        # The classes that still need most clients go first: this never leaves more open places than clients.
        order = np.lexsort((draw.random(len(holders)), -holders))
        counts[order[:classes_per_client], client] = 1
        holders[order[:classes_per_client]] -= 1
    for label, size in enumerate(class_sizes):
        owners = draw.permutation(np.flatnonzero(counts[label]))
        if len(owners):
            counts[label, owners] = size // len(owners) + (np.arange(len(owners)) < size % len(owners))
    return _deal(labels, counts, draw)


def domain_mix(domains: Indices, parts: Indices, clients: int, mix: float, seed: int) -> Parts:
    """Each client has a main domain. A share `mix` of every domain is dealt to all clients alike, the rest to those whose main it is.

    This is the splitter of FedDG_Benchmark: with 1 all clients see the same mixture, with 0 each a single domain. `parts` are dealt
    one by one, in the same mixture; part 0, for training, decides how many clients a domain is the main one of.
    """
    names = np.unique(domains)
    if clients < len(names):
        raise UserError(f"{clients} clients are too few for {len(names)} domains; raise data.clients")
    numbers = np.searchsorted(names, domains)
    mains = _mains(np.bincount(numbers[parts == 0], minlength=len(names)), clients)
    draw = _generator(seed, "domain-mix")
    held: list[list[Indices]] = [[] for _ in range(clients)]
    for part in np.unique(parts):
        rows = np.flatnonzero(parts == part)
        counts = _mixed_counts(np.bincount(numbers[rows], minlength=len(names)), mains, mix)
        for client, positions in enumerate(_deal(numbers[rows], counts, draw)):
            held[client].append(rows[positions])
    return [np.sort(np.concatenate(rows)) for rows in held]


def _mains(sizes: Indices, clients: int) -> Indices:
    """The main domain of each client: one more client at a time for the domain that has most examples a client."""
    owners = np.ones(len(sizes), np.int64)
    for _ in range(clients - len(sizes)):
        owners[np.argmax(sizes / owners)] += 1
    return np.repeat(np.arange(len(sizes)), owners)


def _mixed_counts(sizes: Indices, mains: Indices, mix: float) -> Indices:
    """How many examples of each domain a client gets, (domains, clients); what rounding leaves goes to the first who get some."""
    counts = np.zeros((len(sizes), len(mains)), np.int64)
    for domain, size in enumerate(sizes):
        own = mains == domain
        shares = (1 - mix) * own / own.sum() + mix / len(mains)
        counts[domain] = np.floor(size * shares + 1e-9)
        counts[domain, np.flatnonzero(shares)[: size - counts[domain].sum()]] += 1
    return counts


def _generator(seed: int, *role: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(derive(seed, "partition", *role)))


def _enough_examples(labels: Indices, clients: int, key: str = "data.clients") -> None:
    if clients > len(labels):
        raise UserError(f"{len(labels)} examples are too few for {clients} clients; lower {key}")


def _shuffled_classes(labels: Indices, draw: np.random.Generator) -> Iterator[tuple[int, Indices]]:
    for label in range(labels.max() + 1):
        yield label, draw.permutation(np.flatnonzero(labels == label))


def _deal(labels: Indices, counts: Indices, draw: np.random.Generator) -> Parts:
    """Deals shuffled classes in the given numbers, `counts` (classes, clients)."""
    owner = np.empty(len(labels), np.int64)
    clients = np.arange(counts.shape[1])
    for label, members in _shuffled_classes(labels, draw):
        owner[members] = np.repeat(clients, counts[label])
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner, minlength=len(clients)))[:-1])


def _draw_counts(class_sizes: Indices, clients: int, alpha: float, least: float, draw: np.random.Generator) -> Indices | None:
    """The first draw that gives every client at least so many examples, as counts (classes, clients)."""
    for _ in range(ATTEMPTS):
        counts = _one_draw(class_sizes, clients, alpha, class_sizes.sum() / clients, draw)
        if counts.sum(axis=0).min() >= least:
            return counts
    return None


def _one_draw(class_sizes: Indices, clients: int, alpha: float, cap: float, draw: np.random.Generator) -> Indices:
    counts = np.zeros((len(class_sizes), clients), np.int64)
    held = np.zeros(clients, np.int64)
    for label in np.flatnonzero(class_sizes):
        size = class_sizes[label]
        cuts = np.floor(np.cumsum(_shares(held < cap, alpha, draw)) * size).astype(np.int64)
        cuts[-1] = size
        counts[label] = np.diff(cuts, prepend=0)
        held += counts[label]
    return counts


def _shares(open_: NDArray[np.bool_], alpha: float, draw: np.random.Generator) -> NDArray[np.float64]:
    """Dirichlet shares of the clients that are open, drawn anew where only the others got any."""
    for _ in range(REDRAWS):
        shares = draw.dirichlet(np.full(len(open_), alpha)) * open_
        total = shares.sum()
        if total > 0:
            return np.asarray(shares / total)
    # With a tiny alpha one client takes all, and it may be a full one again and again: the limit is one open client at random.
    return np.asarray(np.arange(len(open_)) == draw.choice(np.flatnonzero(open_)), np.float64)


def _repaired(counts: Indices, least: int) -> Indices:
    """Moves examples from the largest client, out of its largest class, to each client that holds fewer than `least`."""
    held = counts.sum(axis=0)
    for client in np.flatnonzero(held < least):
        while held[client] < least:
            giver = held.argmax()
            label = counts[:, giver].argmax()
            moved = min(least - held[client], held[giver] - least, counts[label, giver])
            counts[label, [giver, client]] += (-moved, moved)
            held[[giver, client]] += (-moved, moved)
    return counts


def _holders(class_sizes: Indices, clients: int, classes_per_client: int) -> Indices:
    """How many clients hold each class: at least one, at most all, in proportion to its size."""
    present = np.flatnonzero(class_sizes)
    places = clients * classes_per_client
    most = np.minimum(class_sizes, clients)
    what = f"{classes_per_client} classes for each of {clients} clients (key: data.classes_per_client)"
    if classes_per_client > len(present):
        raise UserError(f"{what}: the data hold only {len(present)} classes")
    if places < len(present):
        raise UserError(f"{what}: {len(present)} classes do not fit, and their examples would be left over; raise it, or data.clients")
    if places > most.sum():
        raise UserError(f"{what}: the classes are too small to be divided among so many; lower it, or data.clients")
    holders = np.minimum(class_sizes, 1)
    queue = [(-class_sizes[label] / 1, int(label)) for label in present if most[label] > 1]
    heapq.heapify(queue)
    for _ in range(places - len(present)):
        _, label = heapq.heappop(queue)
        holders[label] += 1
        if holders[label] < most[label]:
            heapq.heappush(queue, (-class_sizes[label] / holders[label], label))
    return holders
