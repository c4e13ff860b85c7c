"""One worker process of the pool engine: both its ends."""

import multiprocessing
import shutil
import traceback
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedomg.core import wire
from fedomg.core.errors import UserError
from fedomg.core.imports import import_object, reason
from fedomg.core.params import Tensors, nbytes
from fedomg.core.processes import Spawned, end, follow_the_parent, interrupts_kept_from_children, script_kept_from_children
from fedomg.core.records import Broadcast
from fedomg.engine.base import Site
from fedomg.engine.states import changed

SHARED_MEMORY = Path("/dev/shm")
PATIENCE = 0.5


@dataclass(frozen=True)
class Blueprint:
    """What a worker makes its site from: a factory by import path, its configuration as JSON, and the data."""

    factory: str
    configuration: str
    tensors: Tensors


def require_shared_memory(blueprint: Blueprint, more: int) -> None:
    """Says beforehand what would otherwise end in a bus error, in containers above all."""
    needed = nbytes({name: tensor for name, tensor in blueprint.tensors.items() if not tensor.is_shared()}) + more
    if SHARED_MEMORY.is_dir() and (free := shutil.disk_usage(SHARED_MEMORY).free) < needed:
        raise UserError(
            f"the workers need {needed / 2**20:,.0f} MiB of shared memory, {SHARED_MEMORY} has {free / 2**20:,.0f}: give it more "
            "(docker run --shm-size), or set workers = 1"
        )


class Worker:
    """A worker as the engine sees it. `client` is what it is busy with, `turn` the exchange it was last told of."""

    def __init__(self, blueprint: Blueprint, board: Tensor, matrix: Tensor, kind: type[BaseProcess]) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        self._process = kind(target=serve, args=(theirs, blueprint, board, matrix), name="fedomg worker", daemon=True)
        with interrupts_kept_from_children(), nullcontext() if kind is Spawned else script_kept_from_children():
            self._process.start()
        theirs.close()
        self.client: int | None = None
        self.turn: object = None
        self._ready = False

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def ready(self) -> bool:
        return self._ready or (self.connection.poll() and self._greeted())

    def _greeted(self) -> bool:
        """Waits until the worker has made its site. One that cannot would not the next time either."""
        try:
            header, _ = self.receive()
        except (EOFError, OSError):
            raise UserError(
                f'a worker could not start ({self.end()}); a script that starts runs must do so under `if __name__ == "__main__":`, '
                "and where memory is short, lower the number of workers"
            ) from None
        if "error" in header:
            raise RuntimeError(f"a worker could not start: {header['error']}")
        self._ready = True
        return True

    def send(self, header: wire.Header, tensors: Tensors) -> None:
        if not self._ready:
            self._greeted()
        self.connection.send_bytes(wire.encode(header, tensors))

    def receive(self) -> tuple[dict[str, Any], Tensors]:
        message = self.connection.recv_bytes()
        self.client = None
        return wire.decode(message)

    def end(self) -> str:
        """Ends the process, if it has not ended by itself, and says how it did."""
        self.connection.close()
        return end(self._process, PATIENCE)


# ---------------------------------------------------------------------------------------------------------- in the worker


def serve(connection: Connection, blueprint: Blueprint, board: Tensor, matrix: Tensor) -> None:
    """Answers until the pipe ends."""
    follow_the_parent()
    torch.set_num_threads(1)
    with suppress(EOFError, OSError):
        try:
            site: Site = import_object("site", blueprint.factory)(blueprint.configuration, blueprint.tensors)
        except Exception:
            connection.send_bytes(wire.encode({"error": traceback.format_exc()}, {}))
            return
        connection.send_bytes(wire.encode({}, {}))
        common: Tensors = {}
        while True:
            header, tensors = wire.decode(connection.recv_bytes())
            if not header:
                common = tensors
            else:
                connection.send_bytes(_answer(site, header, {**common, **tensors}, board, matrix))


def _answer(site: Site, header: wire.Header, tensors: Tensors, board: Tensor, matrix: Tensor) -> bytes:
    broadcast = Broadcast(header["round"], board, wire.part("buffers", tensors), wire.part("extras", tensors))
    before, row = wire.part("state", tensors), header["row"]
    try:
        reply, after = site.handle(header["phase"], header["client"], broadcast, before, None if row is None else matrix[row])
    except UserError as error:
        return wire.encode({"refused": str(error)}, {})
    except Exception as error:
        return wire.encode({"error": reason(error), "traceback": traceback.format_exc()}, {})
    new = changed(before, after)
    answer, sent = wire.from_reply(reply)
    return wire.encode({**answer, "changed": new}, {**sent, **wire.grouped(state=after if new else {})})
