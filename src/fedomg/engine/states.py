"""The clients' states between rounds: in memory, or, once they take more than a limit, in the files of the last checkpoint."""

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file

from fedomg.core.params import nbytes
from fedomg.core.records import ClientState


class ClientStates:
    """A client without a state has an empty one. Files are mapped into memory, so that only what is read of them is loaded."""

    def __init__(self, limit: int = 256 * 2**20) -> None:
        self._limit = limit
        self._held: dict[int, ClientState] = {}
        self._files: dict[int, Path] = {}
        self._changed: set[int] = set()

    def of(self, client: int) -> ClientState:
        if client in self._held:
            return self._held[client]
        return load_file(self._files[client]) if client in self._files else {}

    def put(self, client: int, state: ClientState) -> None:
        self._held[client] = state
        self._changed.add(client)

    def changed(self) -> dict[int, ClientState]:
        """The states that changed since the last call."""
        changed = {client: self.of(client) for client in sorted(self._changed)}
        self._changed.clear()
        return changed

    def stored(self, files: Mapping[int, Path]) -> None:
        """Says in which file each state stands. Beyond the limit those in memory are let go."""
        self._files = dict(files)
        if sum(nbytes(state) for state in self._held.values()) > self._limit:
            self._held = {client: state for client, state in self._held.items() if client not in self._files}

    def restore(self, files: Mapping[int, Path]) -> None:
        """Nothing but these files."""
        self._held.clear()
        self._changed.clear()
        self._files = dict(files)


def changed(before: ClientState, after: ClientState) -> bool:
    """An unchanged state is the same object."""
    return after is not before and bool(after or before)
