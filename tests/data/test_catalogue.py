"""Data sets by name: their roots, downloads, and what a complete copy holds."""

import dataclasses
import urllib.error
from pathlib import Path
from typing import Any

import pytest
from tests import files

from fedomg.core.errors import UserError
from fedomg.core.torchvision_compat import torchvision
from fedomg.data import catalogue
from fedomg.data.catalogue import SOURCES, check_complete, load_dataset
from fedomg.data.options import DataOptions
from fedomg.data.sources import download

WRITERS: dict[str, Any] = {
    "mnist": lambda root: files.write_mnist(root / "MNIST" / "raw"),
    "emnist": lambda root: files.write_mnist(root / "EMNIST" / "raw", "emnist-mnist-train", "emnist-mnist-test"),
    "fashion-mnist": lambda root: files.write_mnist(root / "FashionMNIST" / "raw"),
    "cifar10": files.write_cifar10,
    "cifar100": files.write_cifar100,
}


@pytest.mark.parametrize("name", WRITERS)
def test_published_sets_are_known_by_name(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path)
    dataset = load_dataset(name, DataOptions(root=str(tmp_path)), seed=0)
    assert dataset.domain_names == (name,)
    assert SOURCES[name].needs_root
    with pytest.raises(UserError, match=f'data set "{name}" holds [0-9]+ examples where a complete copy has [67]0,000'):
        check_complete(name, dataset)


@pytest.mark.parametrize("name", [*WRITERS, "folder"])
def test_a_root_is_needed(name: str) -> None:
    with pytest.raises(UserError, match=f'"{name}" needs the folder.*set data.root'):
        load_dataset(name, DataOptions(), seed=0)


def test_a_class_without_examples_is_incomplete(tmp_path: Path) -> None:
    files.write_mnist(tmp_path, counts=(5, 3))
    dataset = load_dataset("mnist", DataOptions(root=str(tmp_path)), seed=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SOURCES, "mnist", dataclasses.replace(SOURCES["mnist"], total=8))
        with pytest.raises(UserError, match="holds no example of: 5, 6, 7, 8, 9"):
            check_complete("mnist", dataset)


def test_pictures_that_cannot_be_decoded_are_incomplete() -> None:
    dataset = dataclasses.replace(load_dataset("rect4", DataOptions(), seed=0), skipped=("a/b/c.png",))
    with pytest.raises(UserError, match=r"1 images that cannot be decoded: a/b/c\.png"):
        check_complete("rect4", dataset)


@pytest.mark.parametrize(("name", "class_name"), [("mnist", "MNIST"), ("emnist", "EMNIST"), ("fashion-mnist", "FashionMNIST")])
def test_images_are_fetched_only_where_asked_for_and_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, class_name: str
) -> None:
    calls: list[dict[str, Any]] = []

    def fetch(root: Path, **arguments: Any) -> None:
        calls.append(arguments)
        WRITERS[name](root)

    monkeypatch.setattr(torchvision("datasets"), class_name, fetch)
    with pytest.raises(UserError, match="lacks"):
        load_dataset(name, DataOptions(root=str(tmp_path)), seed=0)
    assert not calls
    for _ in range(2):
        assert len(load_dataset(name, DataOptions(root=str(tmp_path), download=True), seed=0).labels) == 30
    assert calls == [{"download": True} | ({"split": "mnist"} if name == "emnist" else {})]


@pytest.mark.parametrize(("name", "archive"), [("cifar10", "cifar-10-python.tar.gz"), ("cifar100", "cifar-100-python.tar.gz")])
def test_batches_are_fetched_and_unpacked_without_being_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, archive: str
) -> None:
    def fetch(url: str, root: Path, filename: str, md5: str) -> None:
        assert url.endswith(archive)
        assert filename == archive
        assert len(md5) == 32
        WRITERS[name](root)

    monkeypatch.setattr(torchvision("datasets.utils"), "download_and_extract_archive", fetch)
    assert len(load_dataset(name, DataOptions(root=str(tmp_path), download=True), seed=0).labels) > 0


@pytest.mark.parametrize("error", [urllib.error.URLError("no\nroute"), RuntimeError("File not found or corrupted.")])
def test_a_network_that_does_not_allow_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(torchvision("datasets"), "MNIST", refused)
    with pytest.raises(UserError, match=f"MNIST cannot be downloaded to {tmp_path}.*put the files there") as refusal:
        download.images("MNIST")(tmp_path)
    assert "\n" not in str(refusal.value)


def test_the_home_folder_may_be_abbreviated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    files.write_cifar10(tmp_path / "sets")
    assert len(load_dataset("cifar10", DataOptions(root="~/sets"), seed=0).labels) == 60


def test_as_plain_values() -> None:
    rows = {row["name"]: row for row in catalogue.catalogue()}
    assert rows["mnist"] == {
        "name": "mnist",
        "domains": ["mnist"],
        "needs_root": True,
        "partition": "dirichlet",
        "summary": "handwritten digits, 10 classes, 1 x 28 x 28",
    }
    assert rows["emoji"]["partition"] == "domain"
