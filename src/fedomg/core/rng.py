"""Random generators derived by SHA-256 from what they are for, so that no draw depends on any other."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


def derive(seed: int, role: str, *place: int | str) -> int:
    """A 63-bit seed for one role in one place; equal arguments give equal seeds on every machine."""
    text = "/".join(map(str, (seed, role, *place)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, role: str, *place: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(derive(seed, role, *place))


@contextmanager
def seeded_global_generator(seed: int, role: str, *place: int | str) -> Iterator[None]:
    """Seeds torch's global generators inside the block and restores them after: dropout and initialisation draw from them.

    `torch.manual_seed` would note a stack trace for each kind of device there might be, milliseconds a client.
    """
    generators = (torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else ()))
    before = [each.get_state() for each in generators]
    derived = derive(seed, role, *place)
    for each in generators:
        each.manual_seed(derived)
    try:
        yield
    finally:
        for each, state in zip(generators, before, strict=True):
            each.set_state(state)


@dataclass(frozen=True)
class Streams:
    """The generators of one client's turn in one phase of one round."""

    seed: int
    round: int
    phase: str
    client: int

    def generator(self, role: str) -> torch.Generator:
        return generator(self.seed, role, self.round, self.phase, self.client)
