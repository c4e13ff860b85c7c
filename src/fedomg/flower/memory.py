"""What clients remember between rounds, on their node's own disk.

The server knows of each state only its number, which counts the changes, and names it with every message. So a node that has lost a state
cannot go on as if it had not, and a server that continues from its last finished round finds the states of that round: those of the round
before stay until the next one is done.
"""

import re
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from fedomg.core import wire
from fedomg.core.errors import UserError
from fedomg.core.records import ClientState
from fedomg.experiment.files import make_folder, write_atomically

_FILE = re.compile(r"(\d+)-(\d+)-(\d+)\.safetensors")


class Memory:
    """A folder with a file for each state: client, number, round."""

    def __init__(self, root: Path, run: str) -> None:
        if not re.fullmatch(r"[0-9a-f]{8,64}", run):
            raise UserError(f'"{run}" is no name of a run')
        self._folder = root / run

    def load(self, client: int, number: int) -> ClientState | None:
        """The state, empty before the first change; nothing where it is lost."""
        if number == 0:
            return {}
        for path, found, _ in self._files(client):
            if found == number:
                try:
                    return load_file(path)
                except (OSError, SafetensorError):
                    return None
        return None

    def save(self, client: int, number: int, round: int, state: ClientState) -> None:
        make_folder(self._folder)
        write_atomically(self._folder / f"{client}-{number}-{round}.safetensors", wire.to_bytes(state))
        older = sorted((found for found in self._files(client) if found[2] < round), key=lambda found: found[1])
        for path, _, _ in older[:-1]:
            path.unlink(missing_ok=True)

    def _files(self, client: int) -> list[tuple[Path, int, int]]:
        """Files of a client, with number and round."""
        matches = ((path, _FILE.fullmatch(path.name)) for path in self._folder.glob(f"{client}-*.safetensors"))
        return [(path, int(match[2]), int(match[3])) for path, match in matches if match]
