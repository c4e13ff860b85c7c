"""The pool engine: clients take turns in several worker processes, one torch thread each.

Data, broadcast and update matrix are in shared memory; a worker writes a client's update straight into its row. Everything else
crosses as bytes (`core.wire`). Workers are started once a run and compute the same bits as the in-process engine, in whatever order they
finish. They leave when their pipe to this process ends, however it ends, and the shared memory has no name that could outlive them.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch
from torch import Tensor

from fedomg.core import wire
from fedomg.core.errors import UserError
from fedomg.core.params import Tensors
from fedomg.core.processes import Spawned
from fedomg.core.records import Broadcast, Reply
from fedomg.engine.states import ClientStates
from fedomg.engine.turn import Turn
from fedomg.engine.worker import Blueprint, Worker, require_shared_memory

ATTEMPTS = 3
Note = Callable[[str], None]


class PoolEngine:
    """`sizes` says how much work each client is: the largest are dealt first. `kind` is how workers start."""

    def __init__(
        self,
        blueprint: Blueprint,
        parameters: int,
        rows: int,
        sizes: Mapping[int, int],
        workers: int,
        states: ClientStates,
        note: Note,
        kind: type[BaseProcess] = Spawned,
    ) -> None:
        self.states = states
        self._sizes = sizes
        self._note = note
        require_shared_memory(blueprint, 4 * parameters * (rows + 1))
        for tensor in blueprint.tensors.values():
            tensor.share_memory_()
        self._board, self._matrix = torch.empty(parameters), torch.empty(rows, parameters)
        self._board.share_memory_()
        self._matrix.share_memory_()
        self._blueprint = blueprint
        self._kind = kind
        self._workers = [self._start() for _ in range(workers)]

    def _start(self) -> Worker:
        return Worker(self._blueprint, self._board, self._matrix, self._kind)

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def ready(self) -> bool:
        """Whether no exchange has to wait for a worker that is starting."""
        return all(worker.ready() for worker in self._workers)

    def matrix(self, rows: int) -> Tensor:
        return self._matrix[:rows]

    def exchange(self, phase: str, messages: Mapping[int, Broadcast], rows: Tensor | None = None) -> list[Reply]:
        if not messages:
            return []
        turn = Turn(phase, messages, with_rows=rows is not None)
        self._board.copy_(turn.first.shared)
        waiting = deque(sorted(turn.clients, key=lambda client: (-self._sizes.get(client, 0), client)))
        replies: dict[int, Reply] = {}
        deaths: Counter[int] = Counter()
        while len(replies) < len(messages):
            self._deal(turn, waiting)
            for worker in self._finished():
                client = worker.client
                assert client is not None
                try:
                    replies[client] = self._reply(turn, client, *worker.receive())
                except (EOFError, OSError):
                    deaths[client] += 1
                    waiting.appendleft(client)
                    self._replace(worker, f"while it had client {client} in phase {phase!r}", deaths[client])
        return [replies[client] for client in turn.clients]

    def _deal(self, turn: Turn, waiting: deque[int]) -> None:
        """Gives every idle worker a client."""
        for place in range(len(self._workers)):
            while waiting and self._workers[place].client is None:
                try:
                    self._give(self._workers[place], turn, waiting[0])
                    waiting.popleft()
                except OSError:
                    self._replace(self._workers[place], "while it was idle", deaths=0)

    def _give(self, worker: Worker, turn: Turn, client: int) -> None:
        if worker.turn is not turn:
            worker.send({}, turn.common)
            worker.turn = turn
        header = {"phase": turn.phase, "client": client, "round": turn.first.round, "row": turn.rows[client]}
        worker.send(header, {**turn.own(client), **wire.grouped(state=self.states.of(client))})
        worker.client = client

    def _finished(self) -> list[Worker]:
        busy = {worker.connection: worker for worker in self._workers if worker.client is not None}
        return [busy[found] for found in wait(list(busy)) if isinstance(found, Connection)]

    def _reply(self, turn: Turn, client: int, header: wire.Header, tensors: Tensors) -> Reply:
        if "refused" in header:
            raise UserError(header["refused"])
        if "error" in header:
            error = RuntimeError(f"client {client} in phase {turn.phase!r}: {header['error']}")
            error.add_note(header["traceback"])
            raise error
        if header["changed"]:
            self.states.put(client, wire.part("state", tensors))
        row = turn.rows[client]
        return wire.to_reply(header, tensors, None if row is None else self._matrix[row])

    def _replace(self, worker: Worker, when: str, deaths: int) -> None:
        how = worker.end()
        if deaths == ATTEMPTS:
            raise UserError(f"{deaths} workers in turn have ended ({how}) {when}; where memory is short, lower the number of workers")
        self._note(f"worker {worker.pid} has ended ({how}) {when}: another takes its place")
        self._workers[self._workers.index(worker)] = self._start()

    def close(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers = []
