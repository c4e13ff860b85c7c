"""The default on a processor: in this process, until the run has taken as long as starting workers takes; then in workers."""

import time
from collections.abc import Callable, Mapping

from torch import Tensor

from fedomg.core.errors import UserError
from fedomg.core.records import Broadcast, Reply
from fedomg.engine.base import Engine
from fedomg.engine.pool import Note, PoolEngine

WORTH = 5.0
"""Seconds of work in one process after which a run is taken to be long. So a run never takes twice what the better choice would."""


class AutoEngine:
    """Both engines compute the same bits, so that nobody notices the change but by the clock."""

    def __init__(self, inline: Engine, start_pool: Callable[[], PoolEngine], note: Note) -> None:
        self._engine = inline
        self._start_pool = start_pool
        self._note = note
        self._starting: PoolEngine | None = None
        self._spent = 0.0
        self._settled = False
        self.states = inline.states

    def matrix(self, rows: int) -> Tensor:
        """Where the change happens: between two exchanges, before the matrix is handed out."""
        if not self._settled and self._spent > WORTH:
            self._change()
        return self._engine.matrix(rows)

    def _change(self) -> None:
        try:
            self._starting = self._starting or self._start_pool()
            if self._starting.ready():
                self._engine, self._starting, self._settled = self._starting, None, True
        except UserError as error:
            self._settled = True
            self._note(f"the run stays in one process: {error}")

    def exchange(self, phase: str, messages: Mapping[int, Broadcast], rows: Tensor | None = None) -> list[Reply]:
        start = time.perf_counter()
        replies = self._engine.exchange(phase, messages, rows)
        self._spent += time.perf_counter() - start
        return replies

    def close(self) -> None:
        self._engine.close()
        if self._starting is not None:
            self._starting.close()
