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
from fedomg.engine.states import ClientStates
from fedomg.engine.turn import Turn

SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 1.0


class FlowerEngine:
    """`hosts` says which node each client is served by. `check` raises where the grid has ended."""

    def __init__(
        self,
        grid: Grid,
        hosts: Mapping[int, int],
        site: SiteOf,
        parameters: int,
        states: ClientStates,
        check: Callable[[], None] = lambda: None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.states = states
        self.close = close
        self._grid = grid
        self._hosts = hosts
        self._site = site
        self._check = check
        self._matrix = torch.empty(0, parameters)

    def matrix(self, rows: int) -> Tensor:
        if len(self._matrix) < rows:
            self._matrix = self._matrix.new_empty(rows, self._matrix.shape[1])
        return self._matrix[:rows]

    def exchange(self, phase: str, messages: Mapping[int, Broadcast], rows: Tensor | None = None) -> list[Reply]:
        if not messages:
            return []
        turn = Turn(phase, messages, with_rows=rows is not None)
        replies: dict[int, Reply] = {}
        for message in self._arrivals(self._push(turn)):
            header, tensors, updates = _read(message, phase)
            for place, of_client in enumerate(header["replies"]):
                client = of_client["client"]
                sent = wire.part(str(client), tensors)
                replies[client] = wire.to_reply(of_client, sent, _placed(turn, client, rows, updates, place))
                if client in header["changed"]:
                    self.states.put(client, wire.part("state", sent))
        return [replies[client] for client in turn.clients]

    def _push(self, turn: Turn) -> set[str]:
        requests = Requests(turn, self._site)
        by_node: dict[int, list[int]] = {}
        for client in turn.clients:
            by_node.setdefault(self._hosts[client], []).append(client)
        outgoing = (Message(requests.to(clients, self.states), node, QUERY) for node, clients in by_node.items())
        return {identifier for message in outgoing for identifier in self._grid.push_messages([message])}

    def _arrivals(self, waiting: set[str]) -> Iterator[Message]:
        """Replies as they come. The pauses grow with the wait, so that they cost little of a short one and little work in a long one."""
        start = time.monotonic()
        while waiting:
            self._check()
            found = list(self._grid.pull_messages(waiting))
            waiting -= {message.metadata.reply_to_message_id for message in found}
            yield from found
            if waiting and not found:
                time.sleep(min(LONGEST_PAUSE, max(SHORTEST_PAUSE, (time.monotonic() - start) / 20)))


def _read(message: Message, phase: str) -> tuple[wire.Header, Tensors, Tensor | None]:
    """A reply; what went wrong at a client ends the run here as it does in one process."""
    if message.has_error():
        raise RuntimeError(f"a client in phase {phase!r}: {message.error.reason}")
    header, tensors, updates = read_replies(message.content)
    if "refused" in header:
        raise UserError(header["refused"])
    if "error" in header:
        raise RuntimeError(f"a client in phase {phase!r}: {header['error']}")
    return header, tensors, updates


def _placed(turn: Turn, client: int, rows: Tensor | None, updates: Tensor | None, place: int) -> Tensor | None:
    """The client's row of the matrix, with its update."""
    position = turn.rows[client]
    if rows is None or updates is None or position is None:
        return None
    return rows[position].copy_(updates[place])
