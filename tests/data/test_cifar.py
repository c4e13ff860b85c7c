"""CIFAR-10 and CIFAR-100 from files in the published layout, and pickles that nobody should load."""

import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import files

from fedomg.core.errors import UserError
from fedomg.data.dataset import Dataset
from fedomg.data.sources import cifar, numbers_pickle


def test_cifar10(tmp_path: Path) -> None:
    files.write_cifar10(tmp_path)
    dataset = cifar.load(cifar.CIFAR10, tmp_path)
    assert dataset.inputs.shape == (60, 3, 32, 32)
    assert dataset.inputs.dtype == torch.uint8
    assert dataset.labels.tolist() == [*range(10)] * 6
    assert dataset.class_names[:3] == ("airplane", "automobile", "bird")
    assert dataset.inputs[7, :, 31, 0].tolist() == [7, 100, 200]
    assert dataset.mean == dataset.std == (0.5, 0.5, 0.5)
    assert dataset.domain_names == ("cifar10",)


def test_cifar100_has_its_fine_labels(tmp_path: Path) -> None:
    files.write_cifar100(tmp_path)
    dataset = cifar.load(cifar.CIFAR100, tmp_path)
    assert dataset.inputs.shape == (200, 3, 32, 32)
    assert dataset.labels.tolist() == [*range(100)] * 2
    assert dataset.class_names[99] == "fine99"


def test_the_root_may_be_the_folder_itself(tmp_path: Path) -> None:
    assert len(cifar.load(cifar.CIFAR10, files.write_cifar10(tmp_path)).labels) == 60


def test_files_of_python_2(tmp_path: Path) -> None:
    folder = files.write_cifar10(tmp_path)
    (folder / "data_batch_3").write_bytes(files.python2_batch(5))
    dataset = cifar.load(cifar.CIFAR10, tmp_path)
    assert dataset.labels[20:25].tolist() == [0, 1, 2, 3, 4]
    assert dataset.inputs[24, :, 0, 0].tolist() == [4, 100, 200]


@pytest.mark.parametrize("protocol", range(5))
def test_files_of_every_protocol(tmp_path: Path, protocol: int) -> None:
    folder = files.write_cifar10(tmp_path)
    batch = files.cifar_batch(10, "labels")
    batch["labels"] = [np.int64(label) for label in batch["labels"]]
    (folder / "test_batch").write_bytes(pickle.dumps(batch, protocol))
    dataset = cifar.load(cifar.CIFAR10, tmp_path)
    assert dataset.labels[50:].tolist() == [*range(10)]
    assert dataset.inputs[53, :, 0, 0].tolist() == [3, 100, 200]


@pytest.mark.parametrize("dtype", ["<i4", ">i4", ">u2", "f8", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_are_read_as_numpy_wrote_them(tmp_path: Path, dtype: str, order: Any) -> None:
    array = np.array([[0, 1, 2], [3, 4, 5]], dtype, order=order)
    (tmp_path / "a").write_bytes(pickle.dumps({"x": array, "nested": [({"y": array},)], 3: None}, protocol=2))
    found = numbers_pickle.load(tmp_path / "a")
    assert found["x"].tolist() == array.tolist()
    assert found["x"].dtype == array.dtype
    assert found["nested"][0][0]["y"].tolist() == array.tolist()


class _Runs:
    """Pickles as a call of any function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


@pytest.mark.parametrize("protocol", range(5))
def test_a_malicious_file_is_refused_before_anything_runs(tmp_path: Path, protocol: int) -> None:
    folder, trace = files.write_cifar10(tmp_path), tmp_path / "trace"
    batch = files.cifar_batch(10, "labels") | {"filenames": _Runs(os.mkdir, str(trace))}
    content = pickle.dumps(batch, protocol)
    (folder / "data_batch_2").write_bytes(content)
    with pytest.raises(UserError, match=r"data_batch_2 is refused: it asks for (posix|nt)\.mkdir"):
        cifar.load(cifar.CIFAR10, tmp_path)
    assert not trace.exists()
    pickle.loads(content)
    assert trace.exists()  # it was dangerous indeed


@pytest.mark.parametrize(
    "value",
    [
        _Runs(eval, "1"),
        _Runs(getattr, "", "join"),
        _Runs(np.load, "x", None, True),
        _Runs(np.zeros, 3),
        _Runs(bytearray, b"x"),
        OrderedDict(a=1),
        Path("x"),
        np.array([None], object),
        np.array(["2020"], "datetime64[Y]"),
        np.zeros(2, [("a", "i4")]),
        {1, 2},
        b"".join,
    ],
    ids=lambda value: type(value).__name__,
)
def test_nothing_but_numbers_text_and_containers(tmp_path: Path, value: Any) -> None:
    (tmp_path / "a").write_bytes(pickle.dumps({"x": value}, protocol=4))
    with pytest.raises(UserError, match="a is refused: it asks for"):
        numbers_pickle.load(tmp_path / "a")


def test_dotted_names_do_not_lead_into_known_objects(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.")
    with pytest.raises(UserError, match=r"asks for numpy\.ndarray\.tofile"):
        numbers_pickle.load(tmp_path / "a")


@pytest.mark.parametrize("name", [b"numpy\nndarray", b"numpy\ndtype", b"_codecs\nencode", b"numpy.core.multiarray\n_reconstruct"])
def test_the_stand_ins_cannot_be_changed(tmp_path: Path, name: bytes) -> None:
    before = {key: dict(vars(stand_in)) for key, stand_in in numbers_pickle._Unpickler._KNOWN.items()}
    (tmp_path / "a").write_bytes(b"\x80\x02c" + name + b"\nN}U\x05stateK\x01s\x86b.")  # attributes for the class itself
    with pytest.raises(UserError, match="is damaged"):
        numbers_pickle.load(tmp_path / "a")
    assert before == {key: dict(vars(stand_in)) for key, stand_in in numbers_pickle._Unpickler._KNOWN.items()}


@pytest.mark.parametrize("content", [b"", b"<html>", b"\x80\x02}", b"\x80\x63.", b"(" * 100])
def test_what_is_no_pickle(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(UserError, match=r"a is damaged .*fetch it again$"):
        numbers_pickle.load(tmp_path / "a")


def test_a_list_in_the_place_of_a_batch(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(UserError, match="holds no dictionary"):
        numbers_pickle.load(tmp_path / "a")


def _load_with(tmp_path: Path, name: str, **changes: Any) -> Dataset:
    """Cifar-10 with one file changed; a key set to None is left out."""
    folder = files.write_cifar10(tmp_path)
    content = {**pickle.loads((folder / name).read_bytes()), **changes}
    (folder / name).write_bytes(pickle.dumps({key: value for key, value in content.items() if value is not None}, protocol=2))
    return cifar.load(cifar.CIFAR10, tmp_path)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("data_batch_1", {"data": None}, 'data_batch_1 has no "data"'),
        ("data_batch_1", {"labels": None}, 'data_batch_1 has no "labels"'),
        ("batches.meta", {"label_names": None}, 'batches.meta has no "label_names"'),
        ("batches.meta", {"label_names": [1]}, "is no list of names"),
        ("batches.meta", {"label_names": ["one"]}, "not all in 0 ... 0"),
        ("test_batch", {"data": np.zeros((10, 3071), np.uint8)}, "no array of bytes with 3072 columns"),
        ("test_batch", {"data": np.zeros((10, 3072))}, "no array of bytes"),
        ("test_batch", {"data": [1]}, "no array of bytes"),
        ("test_batch", {"labels": [1, 2]}, "holds 2 labels for 10 images"),
        ("test_batch", {"labels": [10] * 10}, "not all in 0 ... 9"),
        ("test_batch", {"labels": [-1] * 10}, "not all in 0 ... 9"),
        ("test_batch", {"labels": ["cat"] * 10}, "no list of integers"),
        ("test_batch", {"labels": [[1], [1, 2]]}, "no list of integers"),
    ],
)
def test_files_with_the_wrong_content(tmp_path: Path, name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        _load_with(tmp_path, name, **changes)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["data_batch_1", "data_batch_5", "test_batch", "batches.meta"])
def test_a_missing_file(tmp_path: Path, name: str) -> None:
    folder = files.write_cifar10(tmp_path)
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"lacks {name} in {folder}.*fedomg data check cifar10 --root {tmp_path} --download"):
        cifar.load(cifar.CIFAR10, tmp_path)
