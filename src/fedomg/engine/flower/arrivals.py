"""What arrives from a node. It is of another machine: nothing is made of it before it is known to be what was asked for."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Error, Message
from torch import Tensor

from fedomg.core import wire
from fedomg.core.errors import UserError
from fedomg.core.imports import reason
from fedomg.core.records import ClientState, Reply
from fedomg.engine.flower.messages import read_replies
from fedomg.engine.turn import Turn

LATE = "no reply in time"
_RAISED, _LATE = 2, (3, 4)
_TOLD = {1: "its ClientApp cannot be loaded", **dict.fromkeys(_LATE, LATE), 5: "its node has gone", 8: "its ClientApp has died"}
"""Flower's numbers of errors."""
_EXCEPTION = re.compile(r"<class '(?:[\w.]*\.)?(\w+)'>:<'(.*)'>", re.DOTALL)


class FailedError(Exception):
    """What has gone wrong at a node, in one line; `whole` is all that it says of it."""

    def __init__(self, text: str, whole: str = "", mendable: bool = False) -> None:
        super().__init__(text)
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
    text = " ".join(str(error.reason).split())
    found = _EXCEPTION.fullmatch(text)
    if found:
        text = f"{found[1]}: {found[2]}" if found[2] else found[1]
    return f"its ClientApp has raised {text}" if error.code == _RAISED else f"error {error.code}: {text}"


def arrived_in(message: Message, turn: Turn, clients: Sequence[int], rows: Tensor | None) -> dict[int, Arrived]:
    """A node's replies, with the updates in their rows."""
    if message.has_error():
        raise FailedError(told(message.error))
    try:
        return _read(message, turn, clients, rows)
    except FailedError:
        raise
    except Exception as error:
        raise FailedError(f"its reply cannot be read: {reason(error)}") from None


def _read(message: Message, turn: Turn, clients: Sequence[int], rows: Tensor | None) -> dict[int, Arrived]:
    header, tensors, updates = read_replies(message.content)
    _raise_what_is_told(header, turn.phase)
    found = [reply["client"] for reply in header["replies"]]
    if found != list(clients):
        raise FailedError(f"it has replied for the clients {found}, not {list(clients)}")
    if rows is not None:
        expected = (len(clients), rows.shape[1])
        if updates is None or tuple(updates.shape) != expected or updates.dtype != rows.dtype:
            raise FailedError(f"its update is {_of_kind(updates)}, not {rows.dtype} of the shape {expected}")
    arrived = {}
    for place, of_client in enumerate(header["replies"]):
        client = of_client["client"]
        sent = wire.part(str(client), tensors)
        position = turn.rows[client]
        update = None if rows is None or updates is None or position is None else rows[position].copy_(updates[place])
        state = wire.part("state", sent) if client in header["changed"] else None
        arrived[client] = Arrived(wire.to_reply(of_client, sent, update), state, client in header["lost"])
    return arrived


def _raise_what_is_told(header: wire.Header, phase: str) -> None:
    if "refused" in header:
        raise FailedError(header["refused"], mendable=True)
    if "error" in header:
        raise FailedError(header["reason"], f"a client in phase {phase!r}: {header['error']}")


def _of_kind(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{tensor.dtype} of the shape {tuple(tensor.shape)}"


def flaws(replies: Sequence[Reply]) -> dict[int, str]:
    """Which clients' replies cannot be used, and why. What is sent beside the model has the layout that most of them give it."""
    layouts = {reply.client: tuple((name, _of_kind(tensor)) for name, tensor in _beside(reply)) for reply in replies}
    expected = Counter(layouts.values()).most_common(1)[0][0] if layouts else ()
    found = {}
    for reply in replies:
        if flaw := _flaw(reply) or _departure(dict(layouts[reply.client]), dict(expected)):
            found[reply.client] = flaw
    return found


def _flaw(reply: Reply) -> str | None:
    if not reply.usable:
        return "its training has not stayed finite"
    if reply.samples < 0:
        return f"it says that it has {reply.samples} examples"
    if reply.update is not None and not reply.update.isfinite().all():
        return "its update is not finite"
    for name, tensor in _beside(reply):
        if not tensor.isfinite().all():
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
