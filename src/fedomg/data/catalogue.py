"""Data sets by name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedomg.core.errors import UserError
from fedomg.core.names import known
from fedomg.data.dataset import Dataset
from fedomg.data.options import DataOptions
from fedomg.data.sources import emoji, folder, rect4


@dataclass(frozen=True)
class Source:
    name: str
    summary: str
    domains: tuple[str, ...]
    needs_root: bool
    load: Callable[[DataOptions, int], Dataset]


def _folder(options: DataOptions, seed: int) -> Dataset:
    if options.root is None:
        raise UserError('data set "folder" needs the folder that holds domain/class/image: set data.root')
    return folder.load(Path(options.root), options.size)


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

SOURCES = {source.name: source for source in (EMOJI, RECT4, FOLDER)}


def load_dataset(name: str, options: DataOptions, seed: int) -> Dataset:
    return SOURCES[known("data set", name, SOURCES)].load(options, seed)


def catalogue() -> list[dict[str, Any]]:
    """Every data set as plain values."""
    return [{"name": s.name, "domains": list(s.domains), "needs_root": s.needs_root, "summary": s.summary} for s in SOURCES.values()]
