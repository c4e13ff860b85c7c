"""Messages as bytes: a JSON header and named tensors. Nothing is pickled, and every number arrives with the bits it left with."""

import json
import struct
from collections.abc import Mapping
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from fedomg.core.params import Tensors
from fedomg.core.records import Reply, Tally

Header = Mapping[str, Any]
_LENGTH = struct.Struct("<Q")


def encode(header: Header, tensors: Mapping[str, Tensor]) -> bytes:
    head = json.dumps(header).encode()
    return _LENGTH.pack(len(head)) + head + to_bytes(tensors)


def decode(message: bytes) -> tuple[dict[str, Any], Tensors]:
    start = _LENGTH.size + _LENGTH.unpack_from(message)[0]
    return json.loads(message[_LENGTH.size : start]), load(message[start:])


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors that share memory are written one by one, as safetensors asks for."""
    written: Tensors = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        written[name] = tensor.detach().clone() if storage in storages else tensor.detach()
        storages.add(storage)
    return save({name: tensor.contiguous() for name, tensor in written.items()})


def grouped(**groups: Mapping[str, Tensor]) -> Tensors:
    """Several mappings as one; `part` takes one out again."""
    return {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}


def part(group: str, tensors: Mapping[str, Tensor]) -> Tensors:
    prefix = f"{group}/"
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def from_reply(reply: Reply) -> tuple[Header, Tensors]:
    """All of a reply but its update, which has a way of its own."""
    header = {
        "client": reply.client,
        "samples": reply.samples,
        "steps": reply.steps,
        "loss": reply.loss,
        "usable": reply.usable,
        "tallies": {name: [tally.n, tally.correct, tally.loss_sum] for name, tally in reply.tallies.items()},
    }
    return header, grouped(buffers=reply.buffers, extras=reply.extras)


def to_reply(header: Header, tensors: Mapping[str, Tensor], update: Tensor | None) -> Reply:
    return Reply(
        client=header["client"],
        samples=int(header["samples"]),
        steps=int(header["steps"]),
        loss=float(header["loss"]),
        update=update,
        buffers=part("buffers", tensors),
        extras=part("extras", tensors),
        tallies={name: Tally(*sums) for name, sums in header["tallies"].items()},
        usable=bool(header["usable"]),
    )
