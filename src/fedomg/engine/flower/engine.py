"""The server end: one message to each node that hosts clients of an exchange, and their replies in order."""

import time
from collections.abc import Callable, Iterator, Mapping

import torch
from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor

from fedomg.core import wire
from fedomg.core.errors import UserError
from fedomg.core.params import Tensors
from fedomg.core.records import Broadcast, Reply
from fedomg.engine.flower.messages import Requests, SiteOf, read_replies
from fedomg.engine.flower.node import QUERY
from fedomg.engine.pool import Note
from fedomg.engine.states import ClientStates
from fedomg.engine.turn import Turn

SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 1.0


class FlowerEngine:
    """`hosts` says which node each client is served by. `check` raises where the grid has ended.

    Without a deadline, in a simulation, an error of a client ends the run, as it does in one process. With one, among machines, a client
    that fails or does not reply within so many seconds is left out and named; where all are, and they were to train, the run ends.
    """

    def __init__(
        self,
        grid: Grid,
        hosts: Mapping[int, int],
        site: SiteOf,
        parameters: int,
        states: ClientStates,
        check: Callable[[], None] = lambda: None,
        close: Callable[[], None] = lambda: None,
        deadline: float | None = None,
        note: Note = lambda text: None,
    ) -> None:
        self.states = states
        self.close = close
        self._grid = grid
        self._hosts = hosts
        self._site = site
        self._check = check
        self._deadline = deadline
        self._note = note
        self._matrix = torch.empty(0, parameters)

    def matrix(self, rows: int) -> Tensor:
        if len(self._matrix) < rows:
            self._matrix = self._matrix.new_empty(rows, self._matrix.shape[1])
        return self._matrix[:rows]

    def exchange(self, phase: str, messages: Mapping[int, Broadcast], rows: Tensor | None = None) -> list[Reply]:
        if not messages:
            return []
        turn = Turn(phase, messages, with_rows=rows is not None)
        waiting = self._push(turn)
        replies: dict[int, Reply] = {}
        failures: dict[int, str] = {}
        for message in self._arrivals(set(waiting)):
            clients = waiting.pop(message.metadata.reply_to_message_id)
            try:
                replies |= self._taken(turn, message, rows)
            except _FailedError as error:
                if self._deadline is None:
                    raise error.as_it_was() from None
                failures |= dict.fromkeys(clients, str(error))
        failures |= {client: f"no reply within {self._deadline} seconds" for clients in waiting.values() for client in clients}
        return self._with_gaps(turn, replies, failures, rows)

    def _push(self, turn: Turn) -> dict[str, list[int]]:
        """Sends the messages, and says which clients each is for. One that outlives the deadline is not delivered any more."""
        requests = Requests(turn, self._site)
        by_node: dict[int, list[int]] = {}
        for client in turn.clients:
            by_node.setdefault(self._hosts[client], []).append(client)
        waiting = {}
        for node, clients in by_node.items():
            message = Message(requests.to(clients, self.states), node, QUERY, ttl=self._deadline)
            sent = [identifier for identifier in self._grid.push_messages([message]) if identifier]
            waiting[sent[0] if sent else f"never sent to {node}"] = clients
        return waiting

    def _arrivals(self, waiting: set[str]) -> Iterator[Message]:
        """Replies as they come. The pauses grow with the wait, so that they cost little of a short one and little work in a long one."""
        start = time.monotonic()
        while waiting:
            self._check()
            found = list(self._grid.pull_messages(waiting))
            waiting -= {message.metadata.reply_to_message_id for message in found}
            yield from found
            spent = time.monotonic() - start
            if self._deadline is not None and spent > self._deadline:
                return
            if waiting and not found:
                time.sleep(min(LONGEST_PAUSE, max(SHORTEST_PAUSE, spent / 20)))

    def _taken(self, turn: Turn, message: Message, rows: Tensor | None) -> dict[int, Reply]:
        """A node's replies, with the updates in their rows."""
        header, tensors, updates = _read(message, turn.phase)
        replies = {}
        for place, of_client in enumerate(header["replies"]):
            client = of_client["client"]
            sent = wire.part(str(client), tensors)
            replies[client] = wire.to_reply(of_client, sent, _placed(turn, client, rows, updates, place))
            if client in header["changed"]:
                self.states.put(client, wire.part("state", sent))
        for client in header["lost"]:
            self._note(f"client {client} has lost what it remembered, and starts as a client that takes part for the first time")
        return replies

    def _with_gaps(self, turn: Turn, replies: dict[int, Reply], failures: Mapping[int, str], rows: Tensor | None) -> list[Reply]:
        for client in sorted(failures):
            self._note(f"phase {turn.phase!r} of round {turn.first.round} goes on without client {client}: {failures[client]}")
        if rows is not None and not replies:
            raise UserError(
                f"no client has taken part in phase {turn.phase!r} of round {turn.first.round}: {next(iter(failures.values()))}"
            )
        for client in failures:
            replies[client] = Reply(client, usable=False)
            position = turn.rows[client]
            if rows is not None and position is not None:
                rows[position].zero_()
        return [replies[client] for client in turn.clients]


class _FailedError(Exception):
    """What a node says has gone wrong."""

    def __init__(self, text: str, mendable: bool = False) -> None:
        super().__init__(text.strip().splitlines()[-1])
        self._text = text
        self._mendable = mendable

    def as_it_was(self) -> Exception:
        return UserError(self._text) if self._mendable else RuntimeError(self._text)


def _read(message: Message, phase: str) -> tuple[wire.Header, Tensors, Tensor | None]:
    if message.has_error():
        raise _FailedError(f"a client in phase {phase!r}: {message.error.reason}")
    header, tensors, updates = read_replies(message.content)
    if "refused" in header:
        raise _FailedError(header["refused"], mendable=True)
    if "error" in header:
        raise _FailedError(f"a client in phase {phase!r}: {header['error']}")
    return header, tensors, updates


def _placed(turn: Turn, client: int, rows: Tensor | None, updates: Tensor | None, place: int) -> Tensor | None:
    """The client's row of the matrix, with its update."""
    position = turn.rows[client]
    if rows is None or updates is None or position is None:
        return None
    if updates.shape[1:] != rows.shape[1:] or updates.dtype != rows.dtype:
        raise _FailedError(f"client {client} sent {updates.shape[1:]} numbers of {updates.dtype}, not {rows.shape[1:]} of {rows.dtype}")
    return rows[position].copy_(updates[place])
