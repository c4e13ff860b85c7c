"""Any folder of images laid out as `domain/class/image`."""

import io
import struct
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from fedomg.core.errors import UserError
from fedomg.data.dataset import Dataset

LAYOUT = "expected ROOT/DOMAIN/CLASS/IMAGE"
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})

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
class _File:
    path: Path
    domain: str
    class_name: str


def load(root: Path, size: int) -> Dataset:
    """Every image as RGB, resized to `size` x `size`; domains and classes are the sorted folder names.

    A class may be missing in some domains. Hidden files and files that are no images are passed over.
    """
    if size < 1:
        raise UserError(f"images cannot be resized to {size} pixels: choose a size of 1 or more")
    files = list(_find(root))
    domain_names = tuple(sorted({file.domain for file in files}))
    class_names = tuple(sorted({file.class_name for file in files}))
    inputs = torch.empty((len(files), 3, size, size), dtype=torch.uint8)
    kept: list[_File] = []
    skipped: list[str] = []
    for file in files:
        image = _load_image(file.path, size)
        if image is None:
            skipped.append(file.path.relative_to(root).as_posix())
        else:
            inputs[len(kept)] = image
            kept.append(file)
    _require_examples(root, domain_names, kept, skipped)
    return Dataset(
        inputs=inputs[: len(kept)],
        labels=torch.tensor([class_names.index(file.class_name) for file in kept]),
        domains=torch.tensor([domain_names.index(file.domain) for file in kept]),
        class_names=class_names,
        domain_names=domain_names,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        skipped=tuple(skipped),
    )


def _find(root: Path) -> Iterator[_File]:
    """All images in the order of their paths; a domain without any is an error."""
    domains = _folders(root)
    if not domains:
        raise UserError(f"data folder {root} holds no domain folders: {LAYOUT}")
    for domain in domains:
        empty = True
        for class_folder in _folders(domain):
            for path in _images(class_folder):
                yield _File(path, domain.name, class_folder.name)
                empty = False
        if empty:
            raise UserError(f'domain "{domain.name}" of {root} holds no images: {LAYOUT}; add images or remove the folder')


def _folders(folder: Path) -> list[Path]:
    with _readable(folder):
        return [path for path in _entries(folder) if path.is_dir()]


def _images(folder: Path) -> list[Path]:
    with _readable(folder):
        return [path for path in _entries(folder) if path.suffix.lower() in SUFFIXES and (path.is_file() or path.is_symlink())]


def _entries(folder: Path) -> list[Path]:
    """What is in a folder and not hidden, by name."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"data folder {folder} does not exist: check the path") from None
    except NotADirectoryError:
        raise UserError(f"data folder {folder} is a file: name the folder that holds the domain folders") from None
    except (OSError, ValueError) as error:
        raise UserError(f"data folder {folder} cannot be read ({_reason(error)}): check the path and its permissions") from None


def _load_image(path: Path, size: int) -> Tensor | None:
    """The picture as (3, size, size), or None if it cannot be decoded to its last row."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:  # a link that leads nowhere
        return None
    except OSError as error:
        raise UserError(f"image {path} cannot be read ({_reason(error)}): check its permissions") from None
    try:
        picture = _decode(content)
    except UNDECODABLE:
        return None
    return torch.from_numpy(np.array(picture.resize((size, size), Image.Resampling.BILINEAR))).permute(2, 0, 1)


def _decode(content: bytes) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks on odd metadata
        warnings.simplefilter("error", Image.DecompressionBombWarning)
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


def _require_examples(root: Path, domain_names: tuple[str, ...], kept: list[_File], skipped: list[str]) -> None:
    left = Counter(file.domain for file in kept)
    for domain in domain_names:
        if not left[domain]:
            broken = sum(path.startswith(f"{domain}/") for path in skipped)
            raise UserError(f'domain "{domain}" of {root} holds no image that decodes ({broken} skipped): mend it or remove the folder')
    classes = {file.class_name for file in kept}
    if len(classes) < 2:
        raise UserError(f'all images of {root} are of one class, "{classes.pop()}", and nothing can be learned from that: {LAYOUT}')


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
