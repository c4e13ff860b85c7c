"""CIFAR-10 and CIFAR-100, from the Python batches in which they are published. Training and test batches are merged."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedomg.core.errors import UserError
from fedomg.data.dataset import Dataset
from fedomg.data.sources import files, numbers_pickle

SIDE = 32
ROW = 3 * SIDE * SIDE


@dataclass(frozen=True)
class Family:
    """One of the two sets: its folder, its files, and the keys in them."""

    name: str
    folder: str
    batches: tuple[str, ...]
    meta: str
    labels_key: str
    names_key: str


CIFAR10 = Family(
    name="cifar10",
    folder="cifar-10-batches-py",
    batches=(*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"),
    meta="batches.meta",
    labels_key="labels",
    names_key="label_names",
)
CIFAR100 = Family(
    name="cifar100",
    folder="cifar-100-python",
    batches=("train", "test"),
    meta="meta",
    labels_key="fine_labels",
    names_key="fine_label_names",
)


def load(family: Family, root: Path) -> Dataset:
    """`root` holds the family's folder, or is that folder."""
    folder = locate(family, root)
    class_names = _class_names(folder / family.meta, family)
    batches = [_read(folder / batch, family, len(class_names)) for batch in family.batches]
    inputs, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return Dataset(
        inputs=torch.from_numpy(inputs.reshape(-1, 3, SIDE, SIDE)),
        labels=torch.from_numpy(labels),
        domains=torch.zeros(len(labels), dtype=torch.int64),
        class_names=class_names,
        domain_names=(family.name,),
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    )


def locate(family: Family, root: Path) -> Path:
    """The folder of the files, which are all there."""
    return files.find(family.name, root, (family.folder, "."), (*family.batches, family.meta))


def _class_names(path: Path, family: Family) -> tuple[str, ...]:
    names = _value(numbers_pickle.load(path), family.names_key, path)
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise UserError(f'{path} is damaged: "{family.names_key}" is no list of names; fetch it again')
    return tuple(name.decode("latin1") if isinstance(name, bytes) else name for name in names)


def _read(path: Path, family: Family, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    batch = numbers_pickle.load(path)
    data, labels = _value(batch, "data", path), _labels(_value(batch, family.labels_key, path), path, family, classes)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != ROW:
        raise UserError(f'{path} is damaged: "data" is no array of bytes with {ROW} columns; fetch it again')
    if len(data) != len(labels):
        raise UserError(f"{path} is damaged: it holds {len(labels)} labels for {len(data)} images; fetch it again")
    return data, labels


def _labels(values: Any, path: Path, family: Family, classes: int) -> NDArray[np.int64]:
    plain = values.tolist() if isinstance(values, np.ndarray) else values
    if not isinstance(plain, list) or not all(isinstance(label, int) for label in plain):
        raise UserError(f'{path} is damaged: "{family.labels_key}" is no list of integers; fetch it again')
    labels = np.array(plain, dtype=np.int64)
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise UserError(f"{path} is damaged: its labels are not all in 0 ... {classes - 1}; fetch it again")
    return labels


def _value(batch: dict[str, Any], key: str, path: Path) -> Any:
    if key not in batch:
        raise UserError(f'{path} has no "{key}": it is no file of this set; fetch it again')
    return batch[key]
