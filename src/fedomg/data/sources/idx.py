"""MNIST and its relatives, from the IDX files in which they are published and as torchvision lays them out.

Training and test files are merged: every client gets a part of all.
"""

import gzip
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedomg.core.errors import UserError
from fedomg.data.dataset import Dataset
from fedomg.data.sources import files

DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
IMAGES_MAGIC, LABELS_MAGIC = 0x803, 0x801

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Family:
    """One of the sets: where torchvision puts it, and how its files are called."""

    name: str
    folder: str
    train: str
    test: str
    class_names: tuple[str, ...]
    transposed: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(prefix + kind for prefix in (self.train, self.test) for kind in ("-images-idx3-ubyte", "-labels-idx1-ubyte"))


MNIST = Family("mnist", "MNIST", "train", "t10k", DIGITS)
FASHION = Family("fashion-mnist", "FashionMNIST", "train", "t10k", CLOTHES)
EMNIST = Family("emnist", "EMNIST", "emnist-mnist-train", "emnist-mnist-test", DIGITS, transposed=True)


def load(family: Family, root: Path) -> Dataset:
    """`root` holds the family's folder, or is that folder, or its `raw`."""
    folder = locate(family, root)
    paths = [files.either(folder / name, ".gz") for name in family.files]
    train, test = (_read_pair(images, labels, len(family.class_names)) for images, labels in (paths[:2], paths[2:]))
    if train[0].shape[1:] != test[0].shape[1:]:
        raise UserError(f"{paths[2]} holds images of {_size(test[0])} pixels, {paths[0]} of {_size(train[0])}: they are of different sets")
    inputs, labels = (np.concatenate(parts) for parts in zip(train, test, strict=True))
    if family.transposed:
        inputs = np.ascontiguousarray(inputs.swapaxes(1, 2))
    return Dataset(
        inputs=torch.from_numpy(inputs).unsqueeze(1),
        labels=torch.from_numpy(labels.astype(np.int64)),
        domains=torch.zeros(len(labels), dtype=torch.int64),
        class_names=family.class_names,
        domain_names=(family.name,),
        mean=(0.5,),
        std=(0.5,),
    )


def locate(family: Family, root: Path) -> Path:
    """The folder of the files, which are all there."""
    return files.find(family.name, root, (f"{family.folder}/raw", family.folder, "raw", "."), family.files, (".gz",))


def _size(images: Bytes) -> str:
    return " x ".join(map(str, images.shape[1:]))


def _read_pair(images_path: Path, labels_path: Path, classes: int) -> tuple[Bytes, Bytes]:
    images, labels = _read(images_path, IMAGES_MAGIC), _read(labels_path, LABELS_MAGIC)
    if len(images) != len(labels):
        raise UserError(f"{labels_path} holds {len(labels)} labels for the {len(images)} images of {images_path.name}: fetch both again")
    if len(labels) and labels.max() >= classes:
        raise UserError(f"{labels_path} holds the label {labels.max()}, where the set has {classes} classes: it belongs to another set")
    return images, labels


def _read(path: Path, magic: int) -> Bytes:
    """The array of one file. The last byte of the magic number is the number of dimensions, whose sizes follow."""
    content = _content(path)
    dimensions = magic & 0xFF
    header = 4 * (1 + dimensions)
    if len(content) < header:
        raise UserError(f"{path} is truncated: it ends within its header; fetch it again")
    found, *shape = struct.unpack(f">{1 + dimensions}I", content[:header])
    if found != magic:
        kind = "images" if magic == IMAGES_MAGIC else "labels"
        raise UserError(f"{path} is no IDX file of {kind}: its magic number is {found:#x}, not {magic:#x}; fetch it again")
    expected = header + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        what = "truncated" if len(content) < expected else "damaged"
        raise UserError(f"{path} is {what}: it holds {len(content)} bytes where its header announces {expected}; fetch it again")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _content(path: Path) -> bytes:
    content = files.read(path)
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be unpacked ({error}): fetch it again") from None
