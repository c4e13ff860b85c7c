"""The state of a run after a round, on disk: safetensors files, and one JSON file that names those that belong together.

The JSON file is replaced last and at once, so a kill at any moment leaves either the old round or the new one.
A client's file is written only in rounds in which its state changed.
"""

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load

from fedomg.core.errors import UserError
from fedomg.core.options import Options
from fedomg.core.params import Tensors
from fedomg.core.wire import to_bytes
from fedomg.engine.states import ClientStates
from fedomg.experiment.files import make_folder, to_json, write_atomically
from fedomg.experiment.state import PARTS, ServerState

MANIFEST = "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """`clients` says in which file each client's state stands."""

    state: ServerState
    clients: dict[int, Path]
    config_hash: str


class _Manifest(Options):
    """What `state.json` holds."""

    round: int = Field(ge=0)
    server: str
    clients: dict[str, str]
    config_hash: str


class CheckpointFolder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clients: dict[str, str] = {}

    def exists(self) -> bool:
        return (self._folder / MANIFEST).is_file()

    def save(self, state: ServerState, states: ClientStates, config_hash: str) -> None:
        """Writes what has changed, and tells the states where they now stand."""
        make_folder(self._folder)
        server = f"server-{state.round}.safetensors"
        self._write(server, _pack(state))
        for client, tensors in states.changed().items():
            name = f"client-{client}-{state.round}.safetensors"
            self._write(name, tensors)
            self._clients[str(client)] = name
        manifest = _Manifest(round=state.round, server=server, clients=self._clients, config_hash=config_hash)
        write_atomically(self._folder / MANIFEST, to_json(manifest.model_dump(), indent=1).encode())
        states.stored(self._paths())
        self._remove_all_but({server, *self._clients.values(), MANIFEST})

    def _paths(self) -> dict[int, Path]:
        return {int(client): self._folder / name for client, name in self._clients.items()}

    def load(self) -> Checkpoint:
        try:
            manifest = _Manifest.model_validate_json((self._folder / MANIFEST).read_bytes())
            state = _unpack(manifest.round, self._read(manifest.server))
            for name in manifest.clients.values():
                with safe_open(self._folder / name, "pt"):
                    pass  # its header is read and compared with the size of the file
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise UserError(f"the checkpoint in {self._folder} cannot be read ({_reason(error)}); start anew in another folder") from None
        self._clients = dict(manifest.clients)
        return Checkpoint(state, self._paths(), manifest.config_hash)

    def _write(self, name: str, tensors: Tensors) -> None:
        write_atomically(self._folder / name, to_bytes(tensors))

    def _read(self, name: str) -> Tensors:
        return load((self._folder / name).read_bytes())

    def _remove_all_but(self, names: set[str]) -> None:
        for path in self._folder.iterdir():
            if path.name not in names:
                path.unlink()


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{MANIFEST}: {'.'.join(map(str, first['loc']))} {first['msg']}"


def _pack(state: ServerState) -> Tensors:
    packed = {"shared": state.shared}
    for part in PARTS:
        packed |= {f"{part}/{name}": tensor for name, tensor in getattr(state, part).items()}
    return packed


def _unpack(round: int, packed: Tensors) -> ServerState:
    parts = {
        part: {name.removeprefix(f"{part}/"): tensor for name, tensor in packed.items() if name.startswith(f"{part}/")} for part in PARTS
    }
    return ServerState(round, packed["shared"], **parts)
