"""One exchange, as engines that send messages see it."""

from collections.abc import Mapping
from functools import cached_property

from fedomg.core import wire
from fedomg.core.params import Tensors
from fedomg.core.records import Broadcast


class Turn:
    def __init__(self, phase: str, messages: Mapping[int, Broadcast], with_rows: bool) -> None:
        self.phase = phase
        self.clients = sorted(messages)
        self.first = messages[self.clients[0]]
        self.with_rows = with_rows
        self.rows = {client: position if with_rows else None for position, client in enumerate(self.clients)}
        self._parts = {client: wire.grouped(buffers=message.buffers, extras=message.extras) for client, message in messages.items()}

    @cached_property
    def common(self) -> Tensors:
        """What all clients are sent, the very same tensors: it needs to be sent once to each process."""
        first, *others = self._parts.values()
        return {name: tensor for name, tensor in first.items() if all(parts.get(name) is tensor for parts in others)}

    def own(self, client: int) -> Tensors:
        return {name: tensor for name, tensor in self._parts[client].items() if name not in self.common}
