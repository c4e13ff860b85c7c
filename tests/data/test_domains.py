"""PACS, VLCS and OfficeHome in every layout, and one clear line for what is missing."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests import copies
from tests.copies import HOME_CLASSES, OFFICE_HOME, PACS, PACS_CLASSES, VLCS, VLCS_CLASSES

from fedomg.core.errors import UserError
from fedomg.data.catalogue import SOURCES, check_complete, load_dataset
from fedomg.data.dataset import TEST, TRAIN, VALIDATION, Dataset
from fedomg.data.deal import deal
from fedomg.data.federation import Federation
from fedomg.data.options import DataOptions
from fedomg.experiment.config import make_config


def load(name: str, root: Path, published_split: bool = True) -> Dataset:
    return load_dataset(name, DataOptions(root=str(root), size=8, published_split=published_split), seed=0)


def federation(name: str, root: Path, target: str) -> Federation:
    config = make_config({"dataset": name, "target": target, "data": {"root": str(root), "size": 8}})
    return deal(load(name, root), config.target, config.data, seed=0)


def assert_painted(dataset: Dataset) -> None:
    """Every picture carries the colour of its domain and class: the labels are right."""
    expected = torch.stack([60 * dataset.domains, 30 * dataset.labels, torch.full_like(dataset.labels, 100)], dim=1)
    assert torch.equal(dataset.inputs[:, :, 4, 4].long(), expected)


FOLDERS: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "DomainBed's PACS": ("pacs", "PACS", PACS, PACS_CLASSES),
    "PACS in a folder of pictures": ("pacs", "pacs/images", ("art_painting", "cartoon", "photo", "sketch"), PACS_CLASSES),
    "the root itself": ("pacs", ".", ("art painting", "Cartoon", "Photo", "Sketch"), PACS_CLASSES),
    "DomainBed's VLCS": ("vlcs", "VLCS", VLCS, VLCS_CLASSES),
    "VLCS with numbers for classes": ("vlcs", "VLCS", ("CALTECH", "LABELME", "SUN", "PASCAL"), ("0", "1", "2", "3", "4")),
    "DomainBed's OfficeHome": ("officehome", "office_home", OFFICE_HOME, HOME_CLASSES),
    "FedIIR's OfficeHome": ("officehome", "OfficeHome", ("Art", "Clipart", "Product", "Real_World"), HOME_CLASSES),
    "FedSR's OfficeHome": ("officehome", "officehome", ("Art", "Clipart", "Product", "RealWorld"), HOME_CLASSES),
}
NAMES = {"pacs": (PACS, PACS_CLASSES), "vlcs": (VLCS, VLCS_CLASSES), "officehome": (OFFICE_HOME, HOME_CLASSES)}


@pytest.mark.parametrize("layout", FOLDERS)
def test_folders(tmp_path: Path, layout: str) -> None:
    name, place, domains, classes = FOLDERS[layout]
    home = copies.write_folders(tmp_path / place, domains, classes)
    (home / domains[0] / "ImageInfo.csv").write_text("not a class")
    (home / "imagelist.txt").write_text("not a list of a part")
    dataset = load(name, tmp_path)
    assert (dataset.domain_names, dataset.class_names) == NAMES[name]
    assert len(dataset.labels) == 2 * len(domains) * len(classes)
    assert dataset.split is None
    assert_painted(dataset)


PARTED = {
    "vlcs": ("VLCS", ("CALTECH", "LABELME", "SUN", "PASCAL"), VLCS_CLASSES, {"train": 3, "crossval": 1, "test": 2, "full": 6}),
    "officehome": ("office_home_dg", ("art", "clipart", "product", "real_world"), HOME_CLASSES, {"train": 3, "val": 1}),
}


@pytest.mark.parametrize("name", PARTED)
def test_parts_between_domains_and_classes(tmp_path: Path, name: str) -> None:
    folder, domains, classes, parts = PARTED[name]
    copies.write_parts(tmp_path / folder, domains, classes, parts)
    dataset = load(name, tmp_path)
    assert (dataset.domain_names, dataset.class_names) == NAMES[name]
    assert_painted(dataset)
    assert dataset.split is not None
    each = len(domains) * len(classes)
    assert dataset.split.bincount(minlength=3).tolist() == [3 * each, parts.get("test", 0) * each, each]


def test_lists_of_pacs_count_from_one(tmp_path: Path) -> None:
    copies.write_pacs_lists(tmp_path / "PACS")
    dataset = load("pacs", tmp_path)
    assert_painted(dataset)
    assert dataset.class_names == PACS_CLASSES
    assert dataset.left_out == ("sketch/dog/n02103406_4068-1.png",)
    assert dataset.skipped == ()
    assert dataset.split is not None
    assert dataset.split.bincount(minlength=3).tolist() == [4 * 7 * 2, 0, 4 * 7]  # the list of tests is of all: no part of its own


def test_lists_of_vlcs_count_from_zero(tmp_path: Path) -> None:
    copies.write_vlcs_lists(tmp_path / "VLCS")
    dataset = load("vlcs", tmp_path)
    assert_painted(dataset)
    assert dataset.split is not None
    assert dataset.split.bincount(minlength=3).tolist() == [4 * 5 * 2, 4 * 5, 4 * 5]


def test_lists_of_officehome_beside_the_pictures_and_in_a_folder(tmp_path: Path) -> None:
    one, other = (copies.write_folders(tmp_path / name / "OfficeHome", OFFICE_HOME, HOME_CLASSES, 4) for name in ("one", "other"))
    for domain in OFFICE_HOME:
        copies.write_list(one / f"{domain.replace(' ', '_')}_img_label_list.txt", copies.pictures_of(domain, HOME_CLASSES, range(4), 0))
        for part, numbers in {"train": range(3), "val": range(3, 4), "test": range(4)}.items():
            lines = copies.pictures_of(domain, HOME_CLASSES, numbers, 0)
            copies.write_list(other / "splits" / f"{part}_{domain.replace(' ', '')}.txt", lines)
    whole, divided = load("officehome", tmp_path / "one"), load("officehome", tmp_path / "other")
    assert_painted(whole)
    assert_painted(divided)
    assert whole.split is None
    assert divided.split is not None
    assert divided.split.bincount(minlength=3).tolist() == [48, 0, 16]


def test_labels_without_class_folders_count_as_published(tmp_path: Path) -> None:
    for name, domains, classes, first in (("pacs", PACS, PACS_CLASSES, 1), ("vlcs", VLCS, VLCS_CLASSES, 0)):
        home = tmp_path / name
        for number, domain in enumerate(domains):
            lines = []
            for label in range(len(classes)):
                copies.paint(home / "images" / domain / f"x{label}.png", copies.colour_of(number, label))
                lines.append((f"{domain}/x{label}.png", label + first))
            copies.write_list(home / f"{domain}_train.txt", lines)
            copies.write_list(home / f"{domain}_val.txt", [])
        assert_painted(load(name, tmp_path))


def test_the_published_parts_are_kept_and_the_target_is_tested_whole(tmp_path: Path) -> None:
    copies.write_vlcs_lists(tmp_path / "VLCS")
    dealt = federation("vlcs", tmp_path, "sun09")
    split = dealt.dataset.split
    assert split is not None
    assert [client.name for client in dealt.clients] == ["Caltech101", "LabelMe", "VOC2007"]
    for client in dealt.clients:
        assert [len(part) for part in (client.train, client.validation, client.test)] == [10, 5, 5]
        for part, role in ((client.train, TRAIN), (client.validation, VALIDATION), (client.test, TEST)):
            assert (split[part.indices] == role).all()
    assert dealt.target is not None
    assert len(dealt.target.test) == 20
    assert len(dealt.target.train) == len(dealt.target.validation) == 0


def test_the_lists_can_be_left_aside(tmp_path: Path) -> None:
    copies.write_pacs_lists(tmp_path / "PACS", each=10)
    dataset = load("pacs", tmp_path, published_split=False)
    assert dataset.split is None
    assert len(dataset.labels) == 280


def test_without_lists_a_tenth_of_every_class_is_for_validation(tmp_path: Path) -> None:
    copies.write_folders(tmp_path / "PACS", PACS, PACS_CLASSES, 10)
    dealt = federation("pacs", tmp_path, "sketch")
    for client in dealt.clients:
        assert client.train.labels.bincount().tolist() == [9] * 7
        assert client.validation.labels.bincount().tolist() == [1] * 7
        assert len(client.test) == 0


def test_a_copy_is_complete_or_says_where_it_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies.write_pacs_lists(tmp_path / "PACS")
    sizes = {"art_painting": 21, "cartoon": 21, "photo": 21, "sketch": 22}  # with the bad entry, as published
    monkeypatch.setitem(SOURCES, "pacs", dataclasses.replace(SOURCES["pacs"], sizes=sizes))
    check_complete("pacs", load("pacs", tmp_path))
    monkeypatch.setitem(SOURCES, "pacs", dataclasses.replace(SOURCES["pacs"], sizes={**sizes, "photo": 1670}))
    with pytest.raises(UserError, match="domain photo holds 21 images where a complete copy has 1,670"):
        check_complete("pacs", load("pacs", tmp_path))


def _broken(change: Callable[[Path], object]) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        copies.write_pacs_lists(root / "PACS")
        change(root / "PACS")

    return write


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "an empty root": (lambda root: None, r'data set "pacs" is not in .*no folder of a domain \(art_painting, cartoon, photo, sketch\)'),
    "a domain without folder": (
        lambda root: copies.write_folders(root / "PACS", PACS[:3], PACS_CLASSES),
        "lacks the folder of domain sketch in .*PACS",
    ),
    "a folder that is no class": (
        lambda root: copies.write_folders(root / "PACS", PACS, (*PACS_CLASSES, "zebra")),
        'art_painting/zebra: "zebra" is no class of pacs',
    ),
    "a domain without list": (
        _broken(lambda home: (home / "photo_train_kfold.txt").unlink()),
        "lacks a list of domain photo in .*PACS: train",
    ),
    "a picture that is missing": (
        _broken(lambda home: (home / "images/cartoon/dog/pic_0.png").unlink()),
        r"lacks 1 of 84 listed images in .*images, the first is cartoon/dog/pic_0.png \(.*cartoon_train_kfold.txt, line 1\)",
    ),
    "a line that is none": (
        _broken(lambda home: (home / "photo_train_kfold.txt").write_text("photo/dog/pic_0.png\n")),
        'photo_train_kfold.txt, line 1: expected "relative/path label"',
    ),
    "a label for two classes": (
        _broken(lambda home: copies.write_list(home / "photo_train_kfold.txt", [("photo/dog/pic_0.png", 2)])),
        'line 1: label 2 for a picture of "dog", but for one of "elephant" in .*art_painting_train_kfold.txt, line 3',
    ),
    "a picture in two parts": (
        _broken(lambda home: copies.write_list(home / "photo_crossval_kfold.txt", [("photo/dog/pic_0.png", 1)])),
        r"photo_crossval_kfold.txt, line 1: photo/dog/pic_0.png is for training as well \(.*photo_train_kfold.txt, line 1\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, case: str) -> None:
    write, message = REFUSED[case]
    write(tmp_path)
    with pytest.raises(UserError, match=message) as refusal:
        load("pacs", tmp_path)
    assert "\n" not in str(refusal.value)


def test_a_target_is_one_word_however_it_is_spelled() -> None:
    assert make_config({"dataset": "officehome", "target": "real_world"}).target == "Real World"
    assert make_config({"dataset": "vlcs", "target": "sun09"}).target == "SUN09"
    with pytest.raises(UserError, match='did you mean "sketch"'):
        make_config({"dataset": "pacs", "target": "skech"})


def test_broken_pictures_are_named(tmp_path: Path) -> None:
    copies.write_folders(tmp_path / "PACS", PACS, PACS_CLASSES)
    (tmp_path / "PACS/photo/dog/pic_0.png").write_bytes(b"broken")
    dataset = load("pacs", tmp_path)
    assert dataset.skipped == ("photo/dog/pic_0.png",)
    assert_painted(dataset)
    with pytest.raises(UserError, match=r"1 images that cannot be decoded: photo/dog/pic_0\.png"):
        check_complete("pacs", dataset)
