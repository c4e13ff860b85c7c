"""Data sets by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedomg.core.cache import cache_folder
from fedomg.core.errors import UserError
from fedomg.core.imports import check_import_path, is_import_path
from fedomg.core.names import known, unknown_name
from fedomg.data.dataset import Dataset
from fedomg.data.options import DEALING_KEYS, DOMAIN_SHIFT, FACES, HELD_OUT, LABEL_SHIFT, DataOptions, Defaults, resolve
from fedomg.data.options import FOLDER as FOLDER_DEFAULTS
from fedomg.data.sources import celeba, cifar, domains, download, emoji, family, files, folder, idx, own, rect4


@dataclass(frozen=True)
class Source:
    """`total` is the number of examples that a complete copy holds, and `sizes` those of its domains, where that is known.

    `seeded` says whether the examples depend on the seed. `locate` looks for the files in a root without reading them, and raises where
    they are missing; `fetched_by` is the command that gets them where this package does not.
    """

    name: str
    summary: str
    domains: tuple[str, ...]
    needs_root: bool
    load: Callable[[DataOptions, int], Dataset]
    defaults: Defaults = DOMAIN_SHIFT
    total: int | None = None
    sizes: Mapping[str, int] | None = None
    seeded: bool = False
    locate: Callable[[Path], object] | None = None
    fetched_by: str = ""


def _root(name: str, options: DataOptions, holds: str) -> Path:
    if options.root is None:
        raise UserError(f'data set "{name}" needs the folder that holds {holds}: set data.root (or give --root)')
    return Path(options.root).expanduser()


def _folder(options: DataOptions, seed: int) -> Dataset:
    return folder.load(_root("folder", options, "domain/class/image"), _size(options, FOLDER_DEFAULTS), cache_folder(options.cache))


def _size(options: DataOptions, defaults: Defaults) -> int:
    size = options.size or defaults.size
    assert size is not None
    return size


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
    seeded=True,
)
FOLDER = Source(
    name="folder",
    summary="any folder in the layout domain/class/image",
    domains=(),
    needs_root=True,
    load=_folder,
    defaults=FOLDER_DEFAULTS,
)


def _held_out(set_: family.Family, summary: str, holds: str, fetch: str) -> Source:
    """A set of which one domain at a time is held out; `fetch` is the function of DomainBed that gets it."""

    def load(options: DataOptions, seed: int) -> Dataset:
        root, size = _root(set_.name, options, holds), _size(options, HELD_OUT)
        return domains.load(set_, root, size, options.published_split, cache_folder(options.cache))

    return Source(
        set_.name,
        summary,
        set_.domains,
        needs_root=True,
        load=load,
        defaults=HELD_OUT,
        sizes=set_.sizes,
        locate=lambda root: domains.find(set_, root),
        fetched_by=f"python -c \"from domainbed.scripts.download import {fetch}; {fetch}('{{root}}')\" (in a clone of DomainBed)",
    )


def _celeba(options: DataOptions, seed: int) -> Dataset:
    return celeba.load(_root("celeba", options, "celebA_v1.0"), _size(options, FACES), cache_folder(options.cache))


FROM_FILES = (
    FOLDER,
    _held_out(family.PACS, "photos, paintings, cartoons and sketches of 7 classes", "PACS", "download_pacs"),
    _held_out(family.VLCS, "photographs of 5 classes from four collections", "VLCS", "download_vlcs"),
    _held_out(
        family.OFFICE_HOME, "65 classes of things, as art, clip art, product pictures and photos", "OfficeHome", "download_office_home"
    ),
    Source(
        name="celeba",
        summary="faces: blond hair or not, by worst group of hair and gender",
        domains=celeba.DOMAINS,
        needs_root=True,
        load=_celeba,
        defaults=FACES,
        total=celeba.TOTAL,
        locate=celeba.locate,
        fetched_by="python -c \"import wilds; wilds.get_dataset('celebA', root_dir='{root}', download=True)\"",
    ),
)


def _published(
    name: str,
    summary: str,
    total: int,
    holds: str,
    read: Callable[[Path], Dataset],
    locate: Callable[[Path], Path],
    fetch: Callable[[Path], None],
) -> Source:
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

    return Source(name, summary, (name,), needs_root=True, load=load, defaults=LABEL_SHIFT, total=total, locate=locate)


PUBLISHED = (
    _published(
        "mnist",
        "handwritten digits, 10 classes, 1 x 28 x 28",
        70_000,
        "MNIST/raw",
        lambda root: idx.load(idx.MNIST, root),
        lambda root: idx.locate(idx.MNIST, root),
        download.images("MNIST"),
    ),
    _published(
        "emnist",
        "handwritten digits of the EMNIST split mnist, 10 classes, 1 x 28 x 28",
        70_000,
        "EMNIST/raw",
        lambda root: idx.load(idx.EMNIST, root),
        lambda root: idx.locate(idx.EMNIST, root),
        download.images("EMNIST", split="mnist"),
    ),
    _published(
        "fashion-mnist",
        "pictures of clothes, 10 classes, 1 x 28 x 28",
        70_000,
        "FashionMNIST/raw",
        lambda root: idx.load(idx.FASHION, root),
        lambda root: idx.locate(idx.FASHION, root),
        download.images("FashionMNIST"),
    ),
    _published(
        "cifar10",
        "small photographs, 10 classes, 3 x 32 x 32",
        60_000,
        cifar.CIFAR10.folder,
        lambda root: cifar.load(cifar.CIFAR10, root),
        lambda root: cifar.locate(cifar.CIFAR10, root),
        download.archive("CIFAR10"),
    ),
    _published(
        "cifar100",
        "small photographs, 100 fine classes, 3 x 32 x 32",
        60_000,
        cifar.CIFAR100.folder,
        lambda root: cifar.load(cifar.CIFAR100, root),
        lambda root: cifar.locate(cifar.CIFAR100, root),
        download.archive("CIFAR100"),
    ),
)

SOURCES = {source.name: source for source in (EMOJI, RECT4, *FROM_FILES, *PUBLISHED)}


def known_dataset(name: str) -> str:
    """The name itself, where it is one of ours or the import path of the user's own."""
    return check_import_path("data set", name) if is_import_path(name) else known("data set", name, SOURCES)


def known_target(name: str, target: str) -> str:
    """The domain under its own name, however it is spelled; what a data set calls its domains is not always known beforehand."""
    domains = () if is_import_path(name) else SOURCES[name].domains
    found = {family.plain(domain): domain for domain in domains}.get(family.plain(target), target)
    if len(domains) > 1 and found not in domains:
        raise UserError(unknown_name("domain", target, domains) + " (key: target)")
    return found


def with_defaults(name: str, options: DataOptions) -> DataOptions:
    """The options with the data set's defaults filled in. Those of the user's own follow from its domains, once it is read."""
    return options if is_import_path(name) else resolve(options, SOURCES[name].defaults)


def load_dataset(name: str, options: DataOptions, seed: int) -> Dataset:
    dataset = own.load(name, seed) if is_import_path(name) else SOURCES[known_dataset(name)].load(options, seed)
    augmentation = options.augment or "none"
    if augmentation != "none" and not _augments(dataset):
        raise UserError(f'data.augment = "{augmentation}" needs square colour pictures of bytes, and data set "{name}" has none; remove it')
    return replace(dataset, augmentation=augmentation)


def missing(name: str, root: Path) -> str | None:
    """What a data set of this package lacks in a root, and the command that gets it, in one line; None where its files are there."""
    source = SOURCES[name]
    if source.locate is None:
        return None
    try:
        source.locate(root)
    except UserError as error:
        return str(error) + (f"; to get it: {source.fetched_by.format(root=root)}" if source.fetched_by else "")
    return None


def _augments(dataset: Dataset) -> bool:
    """Whether all that is done to training pictures can be done to these."""
    shape = dataset.shape
    return dataset.inputs.dtype == torch.uint8 and len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2]


def domain_names(name: str, options: DataOptions, seed: int) -> tuple[str, ...]:
    """Where they stand in the files alone, these are read."""
    return declared_domains(name) or load_dataset(name, options, seed).domain_names


def declared_domains(name: str) -> tuple[str, ...]:
    """The domains that are known without reading anything."""
    return () if is_import_path(name) else SOURCES[name].domains


def examples_key(name: str, options: DataOptions, seed: int) -> str:
    """Equal for configurations that load the same examples, however these are then dealt to clients."""
    seeded = is_import_path(name) or SOURCES[name].seeded
    return f"{name} {options.model_dump_json(exclude=DEALING_KEYS)} {seed if seeded else ''}"


def check_complete(name: str, dataset: Dataset) -> None:
    """What a damaged or partial copy lacks is an error in one line."""
    if dataset.skipped:
        raise UserError(f'data set "{name}" holds {len(dataset.skipped)} images that cannot be decoded: {", ".join(dataset.skipped)}')
    source = None if is_import_path(name) else SOURCES[name]
    found = len(dataset.labels) + len(dataset.left_out)
    if source is not None and source.sizes is not None:
        _check_domains(name, dataset, source.sizes)
    elif source is not None and source.total is not None and found != source.total:
        raise UserError(f'data set "{name}" holds {found:,} examples where a complete copy has {source.total:,}; fetch it again')
    sizes = dataset.labels.bincount(minlength=len(dataset.class_names)).tolist()
    empty = [class_name for class_name, size in zip(dataset.class_names, sizes, strict=True) if not size]
    if empty:
        raise UserError(f'data set "{name}" holds no example of: {", ".join(empty)}')


def _check_domains(name: str, dataset: Dataset, sizes: Mapping[str, int]) -> None:
    """A picture that is known to be bad, and left out, lies in the folder of its domain."""
    for number, domain in enumerate(dataset.domain_names):
        left_out = sum(file.split("/")[0] == domain for file in dataset.left_out)
        found = int((dataset.domains == number).sum()) + left_out
        if found != sizes[domain]:
            raise UserError(
                f'data set "{name}": domain {domain} holds {found:,} images where a complete copy has {sizes[domain]:,}; fetch it again'
            )


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
