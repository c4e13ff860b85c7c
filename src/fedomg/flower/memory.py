"""What clients remember between rounds, on their node's own disk.

The server knows of each state only its mark: how many changes have led to it, and in which round the last one was. It names the mark with
every message. So a node that has lost a state cannot go on as if it had not, what came of a reply that the server has not taken is never
mistaken for a state, and a server that continues from its last finished round finds the states of that round: those of the round before
stay until the next one is done.
"""

import re
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file

from fedomg.core import wire
from fedomg.core.errors import UserError
from fedomg.core.records import ClientState
from fedomg.experiment.files import make_folder, write_atomically


class Mark(NamedTuple):
    """Which of a client's states; without a change there is none yet."""

    changes: int = 0
    round: int = 0


class Memory:
    """A folder with a file for each state: client, changes, round."""

    def __init__(self, root: Path, run: str) -> None:
        if not re.fullmatch(r"[0-9a-f]{8,64}", run):
            raise UserError(f'"{run}" is no name of a run')
        self._folder = root / run

    def load(self, client: int, mark: Mark) -> ClientState | None:
        """The state, empty before the first change; nothing where it is lost."""
        if mark == Mark():
            return {}
        try:
            return load_file(self._file(client, mark))
        except (OSError, SafetensorError):
            return None

    def save(self, client: int, before: Mark, round: int, state: ClientState) -> Mark:
        """The state that has come of the one before. In its first change of a round all others are of no more use."""
        mark = Mark(before.changes + 1, round)
        make_folder(self._folder)
        write_atomically(self._file(client, mark), wire.to_bytes(state))
        if before.round < round:
            kept = {self._file(client, before), self._file(client, mark)}
            for path in set(self._folder.glob(f"{client}-*.safetensors")) - kept:
                path.unlink(missing_ok=True)
        return mark

    def _file(self, client: int, mark: Mark) -> Path:
        return self._folder / f"{client}-{mark.changes}-{mark.round}.safetensors"
