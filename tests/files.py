"""Tiny files in the layouts in which image sets are published."""

import gzip
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

IMAGES, LABELS = 0x803, 0x801


def idx(array: NDArray[np.uint8], magic: int | None = None) -> bytes:
    """An IDX file: magic number with the number of dimensions, their sizes, the bytes."""
    header = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim if magic is None else magic, *array.shape)
    return header + array.tobytes()


def write_mnist(raw: Path, train: str = "train", test: str = "t10k", counts: tuple[int, int] = (20, 10), packed: bool = False) -> None:
    """Labels run through the digits; an image holds its label in its first row and column 1, and a mark in row 0, column 5."""
    raw.mkdir(parents=True, exist_ok=True)
    for prefix, count in ((train, counts[0]), (test, counts[1])):
        labels = (np.arange(count) % 10).astype(np.uint8)
        images = np.zeros((count, 28, 28), np.uint8)
        images[:, 0, 1], images[:, 0, 5] = labels, 255
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            path = raw / f"{prefix}-{kind}-ubyte{'.gz' * packed}"
            path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))


def cifar_batch(count: int, key: str, classes: int = 10) -> dict[str, Any]:
    """Labels run through the classes; red, green and blue of an image are its label, 100 and 200."""
    labels = [index % classes for index in range(count)]
    data = np.repeat(np.array([[label, 100, 200] for label in labels], np.uint8), 1024, axis=1)
    return {"batch_label": "a batch", "data": data, key: labels, "filenames": [f"{index}.png" for index in range(count)]}


def write_cifar10(root: Path, count: int = 10) -> Path:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (folder / name).write_bytes(pickle.dumps(cifar_batch(count, "labels"), protocol=2))
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names, "num_cases_per_batch": count, "num_vis": 3072}, protocol=2))
    return folder


def write_cifar100(root: Path, count: int = 100) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "test"):
        batch = cifar_batch(count, "fine_labels", 100)
        batch["coarse_labels"] = [label // 5 for label in batch["fine_labels"]]
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    names = {"fine_label_names": [f"fine{n}" for n in range(100)], "coarse_label_names": [f"coarse{n}" for n in range(20)]}
    (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))
    return folder


def python2_batch(count: int, classes: int = 10) -> bytes:
    """A batch as Python 2 wrote it, opcode by opcode: byte strings throughout, and the older name of numpy's module."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<I", len(value)) + value

    def integer(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    batch = cifar_batch(count, "labels", classes)
    dtype = b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR"
    state = b"(K\x01(" + integer(count) + integer(3072) + b"t" + dtype + b"\x89" + text(batch["data"].tobytes()) + b"tb"
    labels = b"](" + b"".join(map(integer, batch["labels"])) + b"e"
    return b"\x80\x02}(" + text(b"data") + empty + state + text(b"labels") + labels + b"u."
