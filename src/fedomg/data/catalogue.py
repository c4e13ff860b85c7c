"""Data sets by name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedomg.core.errors import UserError
from fedomg.core.imports import check_import_path, is_import_path
from fedomg.core.names import known
from fedomg.data.dataset import Dataset
from fedomg.data.options import DOMAIN_SHIFT, LABEL_SHIFT, DataOptions, Defaults, resolve
from fedomg.data.sources import cifar, download, emoji, files, folder, idx, own, rect4


@dataclass(frozen=True)
class Source:
    """`total` is the number of examples that a complete copy holds, where that is known."""

    name: str
    summary: str
    domains: tuple[str, ...]
    needs_root: bool
    load: Callable[[DataOptions, int], Dataset]
    defaults: Defaults = DOMAIN_SHIFT
    total: int | None = None


def _root(name: str, options: DataOptions, holds: str) -> Path:
    if options.root is None:
        raise UserError(f'data set "{name}" needs the folder that holds {holds}: set data.root (or give --root)')
    return Path(options.root).expanduser()


def _folder(options: DataOptions, seed: int) -> Dataset:
    return folder.load(_root("folder", options, "domain/class/image"), options.size)


def _rect4(options: DataOptions, seed: int) -> Dataset:
    return rect4.load(seed, options.points, options.shift)


EMOJI = Source(
    name="emoji",
    summary="the same emoji drawn by different hands; part of the package",
    domains=("contrast", "fluent3d", "line", "noto", "openmoji", "twemoji"),
    needs_root=False,
    load=lambda options, seed: emoji.load(),
)
RECT4 = Source(
    name="rect4",
    summary="the paper's toy: four rectangles in the plane, two classes",
    domains=("domain1", "domain2", "domain3", "domain4"),
    needs_root=False,
    load=_rect4,
)
FOLDER = Source(name="folder", summary="any folder in the layout domain/class/image", domains=(), needs_root=True, load=_folder)


def _published(name: str, summary: str, total: int, holds: str, read: Callable[[Path], Dataset], fetch: Callable[[Path], None]) -> Source:
    """A label-shift set in its published files, fetched where the user asks for it and a file is missing."""

    def load(options: DataOptions, seed: int) -> Dataset:
        root = _root(name, options, holds)
        try:
            return read(root)
        except files.MissingFileError:
            if not options.download:
                raise
        fetch(root)
        return read(root)

    return Source(name, summary, (name,), needs_root=True, load=load, defaults=LABEL_SHIFT, total=total)


PUBLISHED = (
    _published(
        "mnist",
        "handwritten digits, 10 classes, 1 x 28 x 28",
        70_000,
        "MNIST/raw",
        lambda root: idx.load(idx.MNIST, root),
        download.images("MNIST"),
    ),
    _published(
        "emnist",
        "handwritten digits of the EMNIST split mnist, 10 classes, 1 x 28 x 28",
        70_000,
        "EMNIST/raw",
        lambda root: idx.load(idx.EMNIST, root),
        download.images("EMNIST", split="mnist"),
    ),
    _published(
        "fashion-mnist",
        "pictures of clothes, 10 classes, 1 x 28 x 28",
        70_000,
        "FashionMNIST/raw",
        lambda root: idx.load(idx.FASHION, root),
        download.images("FashionMNIST"),
    ),
    _published(
        "cifar10",
        "small photographs, 10 classes, 3 x 32 x 32",
        60_000,
        cifar.CIFAR10.folder,
        lambda root: cifar.load(cifar.CIFAR10, root),
        download.archive("CIFAR10"),
    ),
    _published(
        "cifar100",
        "small photographs, 100 fine classes, 3 x 32 x 32",
        60_000,
        cifar.CIFAR100.folder,
        lambda root: cifar.load(cifar.CIFAR100, root),
        download.archive("CIFAR100"),
    ),
)

SOURCES = {source.name: source for source in (EMOJI, RECT4, FOLDER, *PUBLISHED)}


def known_dataset(name: str) -> str:
    """The name itself, where it is one of ours or the import path of the user's own."""
    return check_import_path("data set", name) if is_import_path(name) else known("data set", name, SOURCES)


def with_defaults(name: str, options: DataOptions) -> DataOptions:
    """The options with the data set's defaults filled in. Those of the user's own follow from its domains, once it is read."""
    return options if is_import_path(name) else resolve(options, SOURCES[name].defaults)


def load_dataset(name: str, options: DataOptions, seed: int) -> Dataset:
    return own.load(name, seed) if is_import_path(name) else SOURCES[known_dataset(name)].load(options, seed)


def check_complete(name: str, dataset: Dataset) -> None:
    """What a damaged or partial copy lacks is an error in one line."""
    expected = None if is_import_path(name) else SOURCES[name].total
    if expected is not None and len(dataset.labels) != expected:
        raise UserError(f'data set "{name}" holds {len(dataset.labels):,} examples where a complete copy has {expected:,}; fetch it again')
    sizes = dataset.labels.bincount(minlength=len(dataset.class_names)).tolist()
    empty = [class_name for class_name, size in zip(dataset.class_names, sizes, strict=True) if not size]
    if empty:
        raise UserError(f'data set "{name}" holds no example of: {", ".join(empty)}')
    if dataset.skipped:
        raise UserError(f'data set "{name}" holds {len(dataset.skipped)} images that cannot be decoded: {", ".join(dataset.skipped)}')


def catalogue() -> list[dict[str, Any]]:
    """Every data set as plain values."""
    return [
        {
            "name": s.name,
            "domains": list(s.domains),
            "needs_root": s.needs_root,
            "partition": s.defaults.partition,
            "summary": s.summary,
        }
        for s in SOURCES.values()
    ]
