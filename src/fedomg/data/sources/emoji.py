"""The embedded data set: the same emoji drawn by different hands. A domain is a hand, a class a Unicode category.

The split is by emoji: an emoji of the test part, or a variant of it, is in no domain's training part.
`tools/build_emoji.py` builds the file and says how.
"""

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedomg.core.errors import UserError
from fedomg.data.dataset import TEST, TRAIN, Dataset

FILE = Path(__file__).resolve().parents[1] / "emoji" / "emoji.npz"


@dataclass(frozen=True)
class Emoji:
    """What an example shows. Emoji of one `group` are variants of each other and never divided by the split."""

    code: str
    name: str
    group: int


def load(path: Path = FILE) -> Dataset:
    """All pictures, domain by domain, in each domain the same emoji in the same order."""
    indices, palettes, labels, test, domain_names, class_names = _read(
        path, "indices", "palettes", "labels", "test", "domain_names", "class_names"
    )
    domains, count = indices.shape[:2]
    return Dataset(
        inputs=torch.from_numpy(_paint(indices, palettes)),
        labels=torch.from_numpy(np.tile(labels.astype(np.int64), domains)),
        domains=torch.arange(domains).repeat_interleave(count),
        class_names=tuple(class_names.tolist()),
        domain_names=tuple(domain_names.tolist()),
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        split=torch.from_numpy(np.tile(np.where(test, TEST, TRAIN), domains)),
    )


def examples(path: Path = FILE) -> tuple[Emoji, ...]:
    """Which emoji each example of `load` shows, in the same order."""
    codes, names, groups, domain_names = _read(path, "codes", "names", "groups", "domain_names")
    emoji = tuple(Emoji(*fields) for fields in zip(codes.tolist(), names.tolist(), groups.tolist(), strict=True))
    return emoji * len(domain_names)


def _read(path: Path, *names: str) -> list[NDArray[np.generic]]:
    try:
        with zipfile.ZipFile(path) as archive:
            return [_read_array(archive, name) for name in names]
    except FileNotFoundError:
        raise UserError(f"the embedded data set {path} is missing: install fedomg again, or run tools/build_emoji.py") from None
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"the embedded data set {path} is damaged ({error}): install fedomg again, or run tools/build_emoji.py") from None


def _read_array(archive: zipfile.ZipFile, name: str) -> NDArray[np.generic]:
    with archive.open(f"{name}.npy") as member:
        array: NDArray[np.generic] = np.lib.format.read_array(member, allow_pickle=False)
        return array


def _paint(indices: NDArray[np.generic], palettes: NDArray[np.generic]) -> NDArray[np.generic]:
    """Indices (domains, emoji, S, S) into palettes (domains, emoji, colours, 3) -> pictures (domains * emoji, 3, S, S)."""
    colours, size = palettes.shape[2], indices.shape[3]
    first_colour = np.arange(0, palettes.size // 3, colours, dtype=np.int32).reshape(-1, 1, 1)
    positions = indices.reshape(-1, size, size).astype(np.int32) + first_colour
    return np.stack([channel[positions] for channel in palettes.reshape(-1, 3).T], axis=1)
