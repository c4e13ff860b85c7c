"""What crosses a Flower grid. The model and the updates are one flat float32 array each, all else is bytes as `core.wire` writes them.

Flower stores and sends an array once, however many messages hold it: what all clients of an exchange are sent stands in arrays of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

from fedomg.core import wire
from fedomg.core.params import Tensors
from fedomg.core.records import Broadcast, ClientState, Reply
from fedomg.engine.states import ClientStates
from fedomg.engine.turn import Turn

SHARED, COMMON, OWN, ROWS, REPLIES = "shared", "common", "own", "rows", "replies"


@dataclass(frozen=True)
class SiteOf:
    """What a node makes its site from: a factory by import path, and its configuration as JSON."""

    factory: str
    configuration: str


class Requests:
    """The messages of one exchange, one for each node, with all of its clients."""

    def __init__(self, turn: Turn, site: SiteOf) -> None:
        self._turn = turn
        self._shared = from_tensor(turn.first.shared)
        self._common = from_bytes(wire.encode({"factory": site.factory, "configuration": site.configuration}, turn.common))

    def to(self, clients: Sequence[int], states: ClientStates) -> RecordDict:
        header = {"phase": self._turn.phase, "round": self._turn.first.round, "clients": list(clients), "rows": self._turn.with_rows}
        own = _by_client({client: {**self._turn.own(client), **wire.grouped(state=states.of(client))} for client in clients})
        return _record({SHARED: self._shared, COMMON: self._common, OWN: from_bytes(wire.encode(header, own))})


@dataclass(frozen=True)
class Request:
    """A message as its node reads it."""

    site: SiteOf
    phase: str
    with_rows: bool
    broadcasts: dict[int, Broadcast]
    states: dict[int, ClientState]

    @property
    def parameters(self) -> int:
        return len(next(iter(self.broadcasts.values())).shared)


def read_request(content: RecordDict) -> Request:
    arrays = content.array_records[_RECORD]
    site, common = wire.decode(to_bytes(arrays[COMMON]))
    header, own = wire.decode(to_bytes(arrays[OWN]))
    shared = to_tensor(arrays[SHARED])
    broadcasts, states = {}, {}
    for client in header["clients"]:
        sent = {**common, **wire.part(str(client), own)}
        broadcasts[client] = Broadcast(header["round"], shared, wire.part("buffers", sent), wire.part("extras", sent))
        states[client] = wire.part("state", sent)
    return Request(SiteOf(**site), header["phase"], header["rows"], broadcasts, states)


def write_replies(replies: Sequence[Reply], rows: Tensor | None, states: Mapping[int, ClientState], lost: Sequence[int] = ()) -> RecordDict:
    """`states` are those that have changed, `lost` the clients whose state could not be found."""
    headers, tensors = [], {}
    for reply in replies:
        header, sent = wire.from_reply(reply)
        headers.append(header)
        tensors[reply.client] = {**sent, **wire.grouped(state=states.get(reply.client, {}))}
    arrays = {} if rows is None else {ROWS: from_tensor(rows)}
    told = {"replies": headers, "changed": sorted(states), "lost": list(lost)}
    return _record({**arrays, REPLIES: from_bytes(wire.encode(told, _by_client(tensors)))})


def write_failure(**told: str) -> RecordDict:
    return _record({REPLIES: from_bytes(wire.encode(told, {}))})


def read_replies(content: RecordDict) -> tuple[wire.Header, Tensors, Tensor | None]:
    arrays = content.array_records[_RECORD]
    return *wire.decode(to_bytes(arrays[REPLIES])), to_tensor(arrays[ROWS]) if ROWS in arrays else None


def from_tensor(tensor: Tensor) -> Array:
    return Array(tensor.detach().cpu().numpy())


def to_tensor(array: Array) -> Tensor:
    return torch.from_numpy(array.numpy())


def from_bytes(data: bytes) -> Array:
    return Array(np.frombuffer(data, dtype=np.uint8))


def to_bytes(array: Array) -> bytes:
    return array.numpy().tobytes()


_RECORD = "fedomg"


def _record(arrays: dict[str, Array]) -> RecordDict:
    return RecordDict({_RECORD: ArrayRecord(arrays)})


def _by_client(tensors: dict[int, Tensors]) -> Tensors:
    return wire.grouped(**{str(client): of_client for client, of_client in tensors.items()})
