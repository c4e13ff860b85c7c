"""The server end: one message to each node that hosts clients of an exchange, and their replies in order."""

import time
from collections.abc import Callable, Iterator, Mapping

import torch
from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor

from fedomg.core.errors import UserError
from fedomg.core.records import Broadcast, Reply
from fedomg.engine.flower.arrivals import Arrived, FailedError, arrived_in, flaws, is_late
from fedomg.engine.flower.messages import Requests, SiteOf
from fedomg.engine.flower.node import QUERY
from fedomg.engine.pool import Note
from fedomg.engine.states import ClientStates
from fedomg.engine.turn import Turn

SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 1.0


class FlowerEngine:
    """`hosts` says which node each client is served by, `called` how it is named to the user. `check` raises where the grid has ended.

    Without a deadline, in a simulation, an error of a client ends the run, as it does in one process. With one, among machines, a client
    that fails, does not reply within so many seconds or sends what cannot be used is left out and named; where all are, and they were to
    train, the run ends. What a client remembers changes only with a reply that is taken.
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
        called: Callable[[int], str] = str,
    ) -> None:
        self.states = states
        self.close = close
        self._grid = grid
        self._hosts = hosts
        self._site = site
        self._check = check
        self._deadline = deadline
        self._note = note
        self._called = called
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
        arrived: dict[int, Arrived] = {}
        failures: dict[int, str] = {}
        for message in self._arrivals(set(waiting)):
            clients = waiting.pop(message.metadata.reply_to_message_id)
            try:
                arrived |= arrived_in(message, turn, clients, rows)
            except FailedError as error:
                if self._deadline is None:
                    raise error.as_it_was() from None
                failures |= dict.fromkeys(clients, str(error))
        if self._deadline is not None:
            failures |= flaws([one.reply for one in arrived.values()])
            failures |= {client: f"no reply within {self._deadline:g} seconds" for clients in waiting.values() for client in clients}
        replies = {client: self._taken(client, one) for client, one in sorted(arrived.items()) if client not in failures}
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
            yield from (message for message in found if self._deadline is None or not is_late(message))
            spent = time.monotonic() - start
            left = LONGEST_PAUSE if self._deadline is None else self._deadline - spent
            if left <= 0:
                return
            if waiting and not found:
                time.sleep(min(LONGEST_PAUSE, max(SHORTEST_PAUSE, spent / 20), left))

    def _taken(self, client: int, arrived: Arrived) -> Reply:
        if arrived.state is not None:
            self.states.put(client, arrived.state)
        if arrived.lost:
            self._note(f"client {self._called(client)} has lost what it remembered, and starts as one that takes part for the first time")
        return arrived.reply

    def _with_gaps(self, turn: Turn, replies: dict[int, Reply], failures: Mapping[int, str], rows: Tensor | None) -> list[Reply]:
        turn_is = f"phase {turn.phase!r} of round {turn.first.round}"
        for client in sorted(failures):
            self._note(f"{turn_is} goes on without client {self._called(client)}: {failures[client]}")
        if rows is not None and not replies:
            raise UserError(f"no client has taken part in {turn_is}: {next(iter(failures.values()))}")
        for client in failures:
            replies[client] = Reply(client, usable=False)
            position = turn.rows[client]
            if rows is not None and position is not None:
                rows[position].zero_()
        return [replies[client] for client in turn.clients]
