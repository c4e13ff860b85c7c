"""What arrives from a node. It is of another machine: nothing is made of it before it is known to be what was asked for."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import shorten

from flwr.app import Error, Message, RecordDict
from torch import Tensor

from fedomg.core import wire
from fedomg.core.errors import UserError
from fedomg.core.imports import reason
from fedomg.core.params import Tensors, is_finite
from fedomg.core.records import ClientState, Reply
from fedomg.engine.flower.messages import read_replies
from fedomg.engine.turn import Turn

LATE = "no reply in time"
LONGEST = 400
_RAISED, _LATE = 2, (3, 4)
_TOLD = {1: "its ClientApp cannot be loaded", **dict.fromkeys(_LATE, LATE), 5: "its node has gone", 8: "its ClientApp has died"}
"""Flower's numbers of errors."""
_EXCEPTION = re.compile(r"<class '(?:[\w.]*\.)?(\w+)'>:<'(.*)'>", re.DOTALL)


class FailedError(Exception):
    """What has gone wrong at a node, in one line of bounded length; `whole` is all that it says of it."""

    def __init__(self, text: str, whole: str = "", mendable: bool = False) -> None:
        super().__init__(shorten(text, LONGEST))
        self._whole = whole or text
        self._mendable = mendable

    def as_it_was(self) -> Exception:
        return UserError(self._whole) if self._mendable else RuntimeError(self._whole)


@dataclass(frozen=True)
class Arrived:
    """A client's reply, its state where that has changed, and whether it has lost the one it had."""

    reply: Reply
    state: ClientState | None
    lost: bool


def is_late(message: Message) -> bool:
    """Whether this only says that there is no reply any more."""
    return message.has_error() and message.error.code in _LATE


def told(error: Error) -> str:
    """In one line what Flower reports in the place of a reply."""
    if error.code in _TOLD:
        return _TOLD[error.code]
    text = str(error.reason)
    if found := _EXCEPTION.fullmatch(text):
        text = f"{found[1]}: {found[2]}" if found[2] else found[1]
    return shorten(f"its ClientApp has raised {text}" if error.code == _RAISED else f"error {error.code}: {text}", LONGEST)


@contextmanager
def reading(message: Message) -> Iterator[RecordDict]:
    """The content of a reply. Whatever goes wrong with it is the node's failure."""
    if message.has_error():
        raise FailedError(told(message.error))
    try:
        yield message.content
    except FailedError:
        raise
    except Exception as error:
        raise FailedError(f"its reply cannot be read: {reason(error)}") from None


def arrived_in(message: Message, turn: Turn, clients: Sequence[int], rows: Tensor | None) -> dict[int, Arrived]:
    """A node's replies, with the updates in their rows."""
    with reading(message) as content:
        header, tensors, updates = read_replies(content)
        if "refused" in header:
            raise FailedError(header["refused"], mendable=True)
        if "error" in header:
            raise FailedError(header["reason"], f"a client in phase {turn.phase!r}: {header['error']}")
        found = [of_client["client"] for of_client in header["replies"]]
        if found != list(clients):
            raise FailedError(f"it has replied for the clients {found}, not {list(clients)}")
        placed = [None] * len(clients) if rows is None else _placed(updates, rows, [turn.rows[client] for client in clients])
        return {
            client: _arrived(header, of_client, wire.part(str(client), tensors), update)
            for client, of_client, update in zip(clients, header["replies"], placed, strict=True)
        }


def _arrived(header: wire.Header, of_client: wire.Header, sent: Tensors, update: Tensor | None) -> Arrived:
    client = of_client["client"]
    state = wire.part("state", sent) if client in header["changed"] else None
    return Arrived(wire.to_reply(of_client, sent, update), state, client in header["lost"])


def _placed(updates: Tensor | None, rows: Tensor, positions: Sequence[int | None]) -> list[Tensor | None]:
    """The clients' rows of the matrix, with their updates."""
    expected = (len(positions), rows.shape[1])
    if updates is None or tuple(updates.shape) != expected or updates.dtype != rows.dtype:
        raise FailedError(f"its update is {_kind(updates)}, not {rows.dtype} of the shape {expected}")
    return [None if position is None else rows[position].copy_(update) for position, update in zip(positions, updates, strict=True)]


def _kind(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{tensor.dtype} of the shape {tuple(tensor.shape)}"


def flaws(replies: Sequence[Reply]) -> dict[int, str]:
    """Which clients' replies cannot be used, and why. What is sent beside the model has the layout that most of them give it."""
    layouts = {reply.client: tuple((name, _kind(tensor)) for name, tensor in _beside(reply)) for reply in replies}
    expected = Counter(layouts.values()).most_common(1)[0][0] if layouts else ()
    found = {}
    for reply in replies:
        if flaw := _flaw(reply) or _departure(dict(layouts[reply.client]), dict(expected)):
            found[reply.client] = flaw
    return found


def _flaw(reply: Reply) -> str | None:
    if not reply.usable:
        return "its training has not stayed finite"
    if reply.samples < (0 if reply.update is None else 1):
        return f"it says that it has {reply.samples} examples"
    if reply.update is not None and not is_finite(reply.update):
        return "its update is not finite"
    for name, tensor in _beside(reply):
        if not is_finite(tensor):
            return f'its "{name}" is not finite'
    return None


def _departure(found: Mapping[str, str], expected: Mapping[str, str]) -> str | None:
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            return f'its "{name}" is {found.get(name, "missing")}, but {expected.get(name, "missing")} with the others'
    return None


def _beside(reply: Reply) -> Iterator[tuple[str, Tensor]]:
    """Buffers and what the method adds, in order."""
    yield from sorted({**reply.buffers, **reply.extras}.items())
