"""Which pictures a data set has: found in folders and lists before any is decoded."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from fedomg.core.errors import UserError
from fedomg.data.dataset import TRAIN, Dataset
from fedomg.data.pictures import Size, load_pictures

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


@dataclass(frozen=True)
class Picture:
    """One file, named relative to the root of the listing."""

    file: str
    domain: str
    class_name: str
    part: int = TRAIN


@dataclass(frozen=True)
class Listing:
    """`divided` says that the data set itself fixes which pictures are TRAIN, VALIDATION and TEST."""

    root: Path
    pictures: tuple[Picture, ...]
    domain_names: tuple[str, ...]
    class_names: tuple[str, ...]
    divided: bool = False
    left_out: tuple[str, ...] = ()


def to_dataset(listing: Listing, size: int, cache: Path) -> Dataset:
    """Every picture as RGB, resized to a square; those that do not decode are left out and named."""
    files = [picture.file for picture in listing.pictures]
    inputs, file, broken = load_pictures(listing.root, files, Size(size, size), cache)
    skipped = set(broken)
    kept = [picture for position, picture in enumerate(listing.pictures) if position not in skipped]
    _require_examples(listing, kept)
    classes = {name: label for label, name in enumerate(listing.class_names)}
    domains = {name: number for number, name in enumerate(listing.domain_names)}
    return Dataset(
        inputs=inputs,
        labels=torch.tensor([classes[picture.class_name] for picture in kept]),
        domains=torch.tensor([domains[picture.domain] for picture in kept]),
        class_names=listing.class_names,
        domain_names=listing.domain_names,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        split=torch.tensor([picture.part for picture in kept]) if listing.divided else None,
        skipped=tuple(files[position] for position in broken),
        left_out=listing.left_out,
        file=file,
        whole_target=True,
    )


def _require_examples(listing: Listing, kept: list[Picture]) -> None:
    listed = Counter(picture.domain for picture in listing.pictures)
    left = Counter(picture.domain for picture in kept)
    for domain in listing.domain_names:
        if not left[domain]:
            raise UserError(
                f'domain "{domain}" of {listing.root} holds no image that decodes ({listed[domain]} skipped): mend it or remove the folder'
            )
    classes = {picture.class_name for picture in kept}
    if len(classes) < 2:
        raise UserError(f'all images of {listing.root} are of one class, "{classes.pop()}", and nothing can be learned from that')


def folders_in(folder: Path) -> list[Path]:
    with _readable(folder):
        return [path for path in _entries(folder) if path.is_dir()]


def files_in(folder: Path, suffixes: frozenset[str] = SUFFIXES) -> list[Path]:
    """Files and links; a link may lead nowhere."""
    with _readable(folder):
        return [path for path in _entries(folder) if path.suffix.lower() in suffixes and (path.is_file() or path.is_symlink())]


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
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UserError(f"data folder {folder} cannot be read ({reason}): check the path and its permissions") from None
