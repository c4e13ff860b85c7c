"""Finding the files of a data set that others have published, and saying in one line what is missing where."""

from collections.abc import Sequence
from pathlib import Path

from fedomg.core.errors import UserError


class MissingFileError(UserError):
    """A file of a data set is not there; the set could be fetched."""


def find(name: str, root: Path, places: Sequence[str], needed: Sequence[str], packings: Sequence[str] = ()) -> Path:
    """The first place under the root that holds any of the needed files. It must hold all of them, plain or packed."""
    folders = [root / place for place in places]
    folder = next((f for f in folders if any(_exists(f / file, packings) for file in needed)), folders[0])
    for file in needed:
        if not _exists(folder / file, packings):
            also = "".join(f" (or {file}{packing})" for packing in packings)
            raise MissingFileError(
                f'data set "{name}" lacks {file}{also} in {folder}: put it there, or run: fedomg data check {name} --root {root} --download'
            )
    return folder


def either(path: Path, packing: str) -> Path:
    """The plain file, or else the packed one."""
    return path if path.is_file() else path.with_name(path.name + packing)


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check its permissions") from None


def _exists(path: Path, packings: Sequence[str]) -> bool:
    return any(path.with_name(path.name + packing).is_file() for packing in ("", *packings))
