"""Generated files in the layouts of the paper's data sets, for trying its tables and figures out where the data are not at hand.

A picture is a pattern of its class in a colour of its domain, with noise: something can be learned, and no number says anything
about the data sets whose place they take.
"""

import pickle
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedomg.core.cache import entry
from fedomg.data.sources import celeba, cifar, family, idx

SIDE = 24
EACH = 4
"""Pictures of a class and domain."""
DIGITS = 600
FACES = (96, 32, 32)
HOME_CLASSES = 65

Bytes = NDArray[np.uint8]


def make(folder: Path) -> Path:
    """A root with a stand-in for every data set of the paper, made once."""
    return entry(folder, "stand-ins", _make)


def _make(root: Path) -> None:
    draws = np.random.default_rng(0)
    for set_, name, classes in (
        (family.PACS, "PACS", family.PACS.classes),
        (family.VLCS, "VLCS", family.VLCS.classes),
        (family.OFFICE_HOME, "OfficeHome", [f"class{number:02d}" for number in range(HOME_CLASSES)]),
    ):
        _write_domains(root / name, set_.domains, classes, draws)
    _write_faces(root / celeba.FOLDERS[1], draws)
    for digits in (idx.MNIST, idx.EMNIST):
        _write_digits(root / digits.folder / "raw", digits, draws)
    for photographs, count in ((cifar.CIFAR10, 10), (cifar.CIFAR100, 100)):
        _write_photographs(root / photographs.folder, photographs, count, draws)


def pictures(labels: Sequence[int], tint: Sequence[int], draws: np.random.Generator, side: int) -> Bytes:
    """(n, side, side, channels): stripes whose direction and width are those of the class."""
    across, down = np.meshgrid(np.arange(side), np.arange(side))
    classes = np.asarray(labels).reshape(-1, 1, 1)
    stripes = np.sin((across * np.cos(classes) + down * np.sin(classes)) * (0.5 + classes % 5 / 4))
    grey = 110 + 70 * stripes + 25 * draws.standard_normal(stripes.shape)
    coloured = grey[..., None] * (0.4 + np.asarray(tint) / 255)
    found: Bytes = coloured.clip(0, 255).astype(np.uint8)
    return found


def _write_domains(root: Path, domains: Sequence[str], classes: Sequence[str], draws: np.random.Generator) -> None:
    for domain in domains:
        tint = draws.integers(0, 255, 3).tolist()
        for label, name in enumerate(classes):
            folder = root / domain / name
            folder.mkdir(parents=True)
            for number, picture in enumerate(pictures([label] * EACH, tint, draws, SIDE)):
                Image.fromarray(picture).save(folder / f"{number}.png")


def _write_faces(root: Path, draws: np.random.Generator) -> None:
    """Every eighth man and every other woman is blond."""
    (root / celeba.PICTURES[0]).mkdir(parents=True)
    attributes, places = ["image_id,Blond_Hair,Male"], ["image_id,partition"]
    parts = [part for part, count in enumerate(FACES) for _ in range(count)]
    for number, part in enumerate(parts):
        male = number % 2
        blond = (number // 2) % (8 if male else 2) == 0
        file = f"{number:06d}.jpg"
        (picture,) = pictures([int(blond)], (200 * male, 120, 120), draws, SIDE)
        Image.fromarray(picture).save(root / celeba.PICTURES[0] / file)
        attributes.append(f"{file},{1 if blond else -1},{1 if male else -1}")
        places.append(f"{file},{part}")
    for name, lines in ((celeba.ATTRIBUTES[0], attributes), (celeba.PARTITION[0], places)):
        (root / name).write_text("\n".join(lines) + "\n")


def _write_digits(raw: Path, digits: idx.Family, draws: np.random.Generator) -> None:
    raw.mkdir(parents=True)
    for prefix, count in ((digits.train, DIGITS), (digits.test, DIGITS // 6)):
        labels = (np.arange(count) % len(digits.class_names)).astype(np.uint8)
        images = pictures(labels.tolist(), (150,), draws, 28)[..., 0]
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(struct.pack(">4I", idx.IMAGES_MAGIC, *images.shape) + images.tobytes())
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", idx.LABELS_MAGIC, count) + labels.tobytes())


def _write_photographs(folder: Path, photographs: cifar.Family, classes: int, draws: np.random.Generator) -> None:
    folder.mkdir(parents=True)
    for batch in photographs.batches:
        labels = [number % classes for number in range(2 * DIGITS // len(photographs.batches))]
        images = pictures(labels, (150, 100, 50), draws, cifar.SIDE).transpose(0, 3, 1, 2)
        _dump(folder / batch, {"data": images.reshape(len(labels), -1), photographs.labels_key: labels})
    _dump(folder / photographs.meta, {photographs.names_key: [f"class{number:02d}" for number in range(classes)]})


def _dump(path: Path, value: dict[str, Any]) -> None:
    path.write_bytes(pickle.dumps(value, protocol=2))
