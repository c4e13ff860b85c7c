"""What an engine is: it carries broadcasts to clients and brings their replies back, sorted by client id."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from fedomg.core.records import Broadcast, ClientState, Reply
from fedomg.engine.states import ClientStates


class Site(Protocol):
    """The client side of every phase: the same object in every engine."""

    def handle(self, phase: str, client: int, broadcast: Broadcast, state: ClientState, row: Tensor | None) -> tuple[Reply, ClientState]:
        """Does one client's work; the update, if the phase has one, is written into `row`."""
        ...


class Engine(Protocol):
    @property
    def states(self) -> ClientStates: ...

    def matrix(self, rows: int) -> Tensor:
        """The update matrix, a row for each client of a cohort. There is one, allocated once, at its largest."""
        ...

    def exchange(self, phase: str, messages: Mapping[int, Broadcast], rows: Tensor | None = None) -> list[Reply]:
        """Replies sorted by client id; with `rows` (from `matrix`) the i-th client's update stands in the i-th row."""
        ...

    def close(self) -> None:
        """Ends whatever the engine has started."""
        ...
