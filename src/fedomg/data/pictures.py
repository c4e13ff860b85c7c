"""Picture files decoded once: as bytes of one size in a cache, found again by the content of the files."""

import hashlib
import io
import json
import os
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import PIL
from PIL import Image, ImageOps
from torch import Tensor

from fedomg.core.cache import entry
from fedomg.core.errors import UserError
from fedomg.data.mapped import MappedFile

T = TypeVar("T")

VERSION = 1
"""Of the decoding. One more whenever the same files would give other bytes."""

PIXELS, CONTENTS = "pixels.bin", "contents.json"
AT_ONCE = 256

# What Pillow raises for a file whose bytes are not the image that they claim to be.
UNDECODABLE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)


@dataclass(frozen=True)
class Size:
    """What every picture is resized to, in pixels."""

    width: int
    height: int


class Pictures(NamedTuple):
    """The pictures that could be decoded, (N, 3, height, width), in the order of the files; and the positions of the others."""

    inputs: Tensor
    file: MappedFile
    broken: tuple[int, ...]


def load_pictures(root: Path, files: Sequence[str], size: Size, cache: Path) -> Pictures:
    """The pictures of these files, which are named relative to the root."""
    paths = [root / file for file in files]
    folder = cache / "pictures"
    key = _key(paths, size, folder / "seen")
    space = len(files) * 3 * size.width * size.height
    place = entry(folder, key, lambda beside: _decode_all(paths, size, beside), space)
    try:
        contents = json.loads((place / CONTENTS).read_bytes())
        file = MappedFile(place / PIXELS, (contents["count"], 3, size.height, size.width))
    except (OSError, ValueError, KeyError):
        raise UserError(f"{place} is damaged: remove the folder, and it is made anew") from None
    return Pictures(file.open(), file, tuple(contents["broken"]))


def _key(paths: Sequence[Path], size: Size, seen: Path) -> str:
    """Names the content of the files and what is made of it. Files that look as they did are not read again."""
    recipe = f"{VERSION} Pillow {PIL.__version__} {size.width}x{size.height}"
    looks = hashlib.sha256(recipe.encode())
    for path in paths:
        looks.update(f"{path.absolute()}\0{_look(path)}\0".encode(errors="surrogateescape"))

    def read_all(beside: Path) -> None:
        found = hashlib.sha256(recipe.encode())
        for digest in _in_order(_digest, paths):
            found.update(digest)
        (beside / "key").write_text(found.hexdigest()[:40])

    return (entry(seen, looks.hexdigest()[:40], read_all) / "key").read_text()


def _look(path: Path) -> str:
    """What changes when a file is written."""
    try:
        found = path.stat()
    except OSError:
        return "absent"
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def _digest(path: Path) -> bytes:
    return hashlib.sha256(_content(path) or b"").digest()


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # a link that leads nowhere
        return None
    except OSError as error:
        raise UserError(f"image {path} cannot be read ({error.strerror}): check its permissions") from None


def _decode_all(paths: Sequence[Path], size: Size, folder: Path) -> None:
    """Written, not mapped: a full disk is an error there, and a dead process here."""
    broken, position = [], 0
    with (folder / PIXELS).open("wb") as file, _strict_about_bombs():
        for picture in _in_order(lambda path: _load(path, size), paths):
            if picture is None:
                broken.append(position)
            else:
                file.write(picture)
            position += 1
        file.flush()
        os.fsync(file.fileno())
    (folder / CONTENTS).write_text(json.dumps({"count": position - len(broken), "broken": broken}))


def _in_order(work: Callable[[Path], T], paths: Sequence[Path]) -> Iterator[T]:
    """Done by several threads, some files ahead of who reads."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        for first in range(0, len(paths), AT_ONCE):
            yield from threads.map(work, paths[first : first + AT_ONCE])


@contextmanager
def _strict_about_bombs() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks on odd metadata
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _load(path: Path, size: Size) -> bytes | None:
    """The bytes of (3, height, width), or None if the picture cannot be decoded to its last row."""
    content = _content(path)
    if content is None:
        return None
    try:
        picture = _decode(content)
    except UNDECODABLE:
        return None
    resized = picture.resize((size.width, size.height), Image.Resampling.BILINEAR)
    return np.asarray(resized).transpose(2, 0, 1).tobytes()


def _decode(content: bytes) -> Image.Image:
    with Image.open(io.BytesIO(content)) as image:
        return _to_rgb(ImageOps.exif_transpose(image))


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):  # Pillow would clip 16 bits to 8, not scale them
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in {"RGBA", "LA", "PA"} or "transparency" in image.info:
        opaque = Image.new("RGBA", image.size, "white")
        opaque.alpha_composite(image.convert("RGBA"))
        return opaque.convert("RGB")
    return image.convert("RGB")
