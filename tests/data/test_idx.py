"""MNIST, EMNIST and Fashion-MNIST from files in torchvision's layout."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests import files

from fedomg.core.errors import UserError
from fedomg.data.examples import Examples
from fedomg.data.sources import idx

PREFIXES = {idx.MNIST: ("train", "t10k"), idx.FASHION: ("train", "t10k"), idx.EMNIST: ("emnist-mnist-train", "emnist-mnist-test")}


def write(root: Path, family: idx.Family = idx.MNIST, packed: bool = False) -> Path:
    raw = root / family.folder / "raw"
    files.write_mnist(raw, *PREFIXES[family], packed=packed)
    return raw


@pytest.mark.parametrize("family", PREFIXES, ids=lambda family: family.name)
@pytest.mark.parametrize("packed", [False, True])
def test_training_and_test_files_are_merged(tmp_path: Path, family: idx.Family, packed: bool) -> None:
    write(tmp_path, family, packed)
    dataset = idx.load(family, tmp_path)
    assert dataset.inputs.shape == (30, 1, 28, 28)
    assert dataset.inputs.dtype == torch.uint8
    assert dataset.labels.dtype == dataset.domains.dtype == torch.int64
    assert dataset.labels.tolist() == [*range(10)] * 3
    assert len(dataset.class_names) == 10
    assert dataset.domain_names == (family.name,)
    assert dataset.domains.sum() == 0


@pytest.mark.parametrize("place", ["", "MNIST", "MNIST/raw"])
def test_the_root_may_be_any_folder_on_the_way(tmp_path: Path, place: str) -> None:
    write(tmp_path)
    assert len(idx.load(idx.MNIST, tmp_path / place).labels) == 30


def test_relatives_under_one_root_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path)
    files.write_mnist(tmp_path / "FashionMNIST" / "raw", counts=(40, 10))
    assert len(idx.load(idx.MNIST, tmp_path).labels) == 30
    assert len(idx.load(idx.FASHION, tmp_path).labels) == 50


def test_emnist_is_turned_upright(tmp_path: Path) -> None:
    write(tmp_path, idx.EMNIST)
    write(tmp_path, idx.MNIST)
    upright, stored = idx.load(idx.EMNIST, tmp_path).inputs, idx.load(idx.MNIST, tmp_path).inputs
    assert bool((upright[:, 0, 5, 0] == 255).all())
    assert torch.equal(upright, stored.transpose(2, 3))
    assert upright.is_contiguous()


def test_normalised_to_plus_and_minus_one(tmp_path: Path) -> None:
    write(tmp_path)
    batch = Examples(idx.load(idx.MNIST, tmp_path), torch.arange(30)).batch(torch.arange(3)).inputs
    assert (batch.min().item(), batch.max().item()) == pytest.approx((-1, 1))


def assert_refused(root: Path, *phrases: str) -> None:
    with pytest.raises(UserError) as refusal:
        idx.load(idx.MNIST, root)
    message = str(refusal.value)
    assert "\n" not in message
    for phrase in phrases:
        assert phrase in message


@pytest.mark.parametrize("name", idx.MNIST.files)
def test_a_missing_file_is_named_with_its_place_and_the_way_to_get_it(tmp_path: Path, name: str) -> None:
    (write(tmp_path) / name).unlink()
    assert_refused(tmp_path, f"lacks {name} (or {name}.gz)", str(tmp_path / "MNIST" / "raw"), f"check mnist --root {tmp_path} --download")


def test_a_root_that_does_not_exist(tmp_path: Path) -> None:
    assert_refused(tmp_path / "gone", "lacks train-images-idx3-ubyte", str(tmp_path / "gone" / "MNIST" / "raw"))


@pytest.mark.parametrize("keep", [0, 3, 15, 16, 1000])
def test_a_truncated_file(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path) / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:keep])
    assert_refused(tmp_path, f"{path} is truncated")


def test_a_truncated_packed_file(tmp_path: Path) -> None:
    path = write(tmp_path, packed=True) / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:60])
    assert_refused(tmp_path, f"{path} cannot be unpacked")


def test_a_packed_file_that_is_none(tmp_path: Path) -> None:
    path = write(tmp_path, packed=True) / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(b"<html>not found</html>")
    assert_refused(tmp_path, f"{path} cannot be unpacked")


def test_more_bytes_than_announced(tmp_path: Path) -> None:
    path = write(tmp_path) / "t10k-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes() + b"\0")
    assert_refused(tmp_path, f"{path} is damaged", "holds 19 bytes where its header announces 18")


def test_labels_in_the_place_of_images(tmp_path: Path) -> None:
    raw = write(tmp_path)
    path = raw / "train-images-idx3-ubyte"
    path.write_bytes(files.idx(np.zeros((20, 28, 28), np.uint8), magic=files.LABELS))
    assert_refused(tmp_path, f"{path} is no IDX file of images", "0x801, not 0x803")


def test_fewer_labels_than_images(tmp_path: Path) -> None:
    path = write(tmp_path) / "train-labels-idx1-ubyte"
    path.write_bytes(files.idx(np.zeros(19, np.uint8)))
    assert_refused(tmp_path, f"{path} holds 19 labels for the 20 images")


def test_labels_of_another_set(tmp_path: Path) -> None:
    path = write(tmp_path) / "train-labels-idx1-ubyte"
    path.write_bytes(files.idx(np.full(20, 46, np.uint8)))
    assert_refused(tmp_path, f"{path} holds the label 46")


def test_test_images_of_another_size(tmp_path: Path) -> None:
    path = write(tmp_path) / "t10k-images-idx3-ubyte"
    path.write_bytes(files.idx(np.zeros((10, 16, 16), np.uint8)))
    assert_refused(tmp_path, f"{path} holds images of 16 x 16 pixels", "28 x 28")


def test_sizes_that_no_memory_could_hold(tmp_path: Path) -> None:
    path = write(tmp_path) / "train-images-idx3-ubyte"
    path.write_bytes(b"\0\0\x08\x03" + b"\xff" * 12)
    assert_refused(tmp_path, f"{path} is truncated")


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)

    def refused(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refused)
    assert_refused(tmp_path, "cannot be read (Permission denied)")
