"""Folders of what is costly to make and read often. An entry is whole or absent, whoever is killed and however many make it at once."""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedomg.core.errors import UserError

try:
    import fcntl
except ImportError:  # a system without such locks: whoever is second makes the entry in vain
    fcntl = None  # type: ignore[assignment]


def cache_folder(named: str | None = None) -> Path:
    """The folder that the user names, or the one that the system has for caches."""
    if named is not None:
        return Path(named).expanduser()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "fedomg"


def entry(folder: Path, name: str, make: Callable[[Path], None], needs: int = 0) -> Path:
    """The folder `name` in a cache. Where it is missing, `make` fills a folder beside it, which is then renamed.

    One process makes an entry while the others wait. `needs` is the space in bytes that it will take.
    """
    place = folder / name
    if place.is_dir():
        return place
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder / f"{name}.lock") as alone:
            if not place.is_dir():
                _make(place, make, needs, alone)
    return place


def _make(place: Path, make: Callable[[Path], None], needs: int, alone: bool) -> None:
    if alone:
        for left in place.parent.glob(f"{place.name}.new-*"):  # of a process that was killed
            shutil.rmtree(left, ignore_errors=True)
    free = shutil.disk_usage(place.parent).free
    if free < needs:
        raise UserError(
            f"the cache in {place.parent} needs {needs / 2**20:,.0f} MiB, {free / 2**20:,.0f} are free: name another folder as data.cache"
        )
    beside = place.with_name(f"{place.name}.new-{secrets.token_hex(4)}")
    beside.mkdir()
    try:
        make(beside)
        beside.rename(place)
    except OSError:
        if not place.is_dir():  # nobody else was faster
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Holds the lock; it ends with the process that holds it."""
    if fcntl is None:
        yield False
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield True


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"the cache in {folder} cannot be written ({error.strerror}): name another folder as data.cache") from None
