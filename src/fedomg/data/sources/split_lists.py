"""Lists that divide a set into parts, a picture a line: `relative/path label`. Labels are counted from 1 in some and from 0 in others.

The class of a picture is the folder that it is in; where that is no class, it is the label, counted as the set's published lists
do. Where there are both, they must agree.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fedomg.core.errors import UserError
from fedomg.data.dataset import TEST, TRAIN, VALIDATION
from fedomg.data.listing import Picture, files_in
from fedomg.data.sources.family import PARTS, Family, picture_folders

FOLDERS = ("", "splits", "split", "Train val splits and h5py files pre-read")
OF_ALL = "_img_label_list"
TEXT = frozenset({".txt"})


class Line(NamedTuple):
    """What a list says of a picture, and where it says so."""

    file: str
    label: int
    place: str


@dataclass
class Lists:
    """The lists of one domain, by part; `of_all` is one without parts."""

    of_all: Path | None = None
    by_part: dict[int, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Listed:
    root: Path
    pictures: list[Picture]
    left_out: tuple[str, ...]


def find(family: Family, home: Path) -> Listed | None:
    """What the lists in a folder, or in one beside the pictures, name; None where there is no list."""
    for name in FOLDERS:
        folder = home / name
        lists = _lists(family, folder) if folder.is_dir() else {}
        if lists:
            return _read(family, home, folder, lists)
    return None


def _lists(family: Family, folder: Path) -> dict[str, Lists]:
    found: dict[str, Lists] = {}
    for path in files_in(folder, TEXT):
        stem = path.stem.removesuffix("_kfold")
        if stem.endswith(OF_ALL) and (domain := family.domain(stem.removesuffix(OF_ALL))):
            found.setdefault(domain, Lists()).of_all = path
        for word, part in PARTS.items():
            spelled = stem.removesuffix(f"_{word}") if stem.endswith(f"_{word}") else stem.removeprefix(f"{word}_")
            if spelled != stem and (domain := family.domain(spelled)):
                found.setdefault(domain, Lists()).by_part[part] = path
    return found


def _read(family: Family, home: Path, folder: Path, lists: dict[str, Lists]) -> Listed:
    parts: dict[str, dict[Line, int]] = {}
    for domain in family.domains:
        there = lists.get(domain, Lists())
        if there.of_all is None and not {TRAIN, VALIDATION} <= there.by_part.keys():
            lacking = [word for word, part in (("train", TRAIN), ("val or crossval", VALIDATION)) if part not in there.by_part]
            raise UserError(f'data set "{family.name}" lacks a list of domain {domain} in {folder}: {" and ".join(lacking)}')
        parts[domain] = _divide(there)
    left_out = tuple(sorted({line.file for lines in parts.values() for line in lines if line.file in family.bad}))
    lines = [line for of_domain in parts.values() for line in of_domain if line.file not in family.bad]
    root = _root_of(family, home, lines)
    names = dict(zip(lines, _class_names(family, lines), strict=True))
    pictures = [
        Picture(line.file, domain, names[line], part)
        for domain, of_domain in parts.items()
        for line, part in of_domain.items()
        if line in names
    ]
    return Listed(root, pictures, left_out)


def _divide(lists: Lists) -> dict[Line, int]:
    """Each picture of a domain once. One of the test list is a test example only if no other list names it."""
    by_file: dict[str, tuple[Line, int]] = {}
    if lists.by_part:
        for part in (TRAIN, VALIDATION, TEST):
            for line in _lines(lists.by_part[part]) if part in lists.by_part else ():
                known = by_file.setdefault(line.file, (line, part))
                if part == VALIDATION and known[1] == TRAIN:
                    raise UserError(f"{line.place}: {line.file} is for training as well ({known[0].place}); remove one of the lines")
    elif lists.of_all is not None:
        by_file = {line.file: (line, TRAIN) for line in _lines(lists.of_all)}
    return dict(by_file.values())


def _lines(path: Path) -> Iterator[Line]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as a list ({error})") from None
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            file, _, label = line.strip().rpartition(" ")
            if not file or not label.isdecimal():
                raise UserError(f'{path}, line {number}: expected "relative/path label", found "{line.strip()[:80]}"')
            yield Line(file.strip().removeprefix("./"), int(label), f"{path}, line {number}")


def _root_of(family: Family, home: Path, lines: Sequence[Line]) -> Path:
    """The folder that the lists name their pictures from. All of them must be there."""
    places = [*picture_folders(home), home.parent]
    root = next((place for place in places for line in lines[:1] if (place / line.file).is_file()), picture_folders(home)[-1])
    missing = [line for line in lines if not (root / line.file).is_file()]
    if missing:
        raise UserError(
            f'data set "{family.name}" lacks {len(missing):,} of {len(lines):,} listed images in {root}, '
            f"the first is {missing[0].file} ({missing[0].place})"
        )
    return root


def _class_names(family: Family, lines: Sequence[Line]) -> list[str]:
    """The class of each line."""
    names: list[str] = []
    by_label: dict[int, tuple[str, Line]] = {}
    by_name: dict[str, tuple[int, Line]] = {}
    for line in lines:
        name = family.class_name(line.file.split("/")[-2]) if "/" in line.file else None
        if name is None:
            name = _by_label(family, line)
        else:
            _require_agreement(line, name, by_label.setdefault(line.label, (name, line)), by_name.setdefault(name, (line.label, line)))
        names.append(name)
    return names


def _by_label(family: Family, line: Line) -> str:
    index = line.label - family.first_label
    if not 0 <= index < len(family.classes):
        last = family.first_label + len(family.classes) - 1
        raise UserError(f"{line.place}: label {line.label} is none of {family.first_label} to {last}, the classes of {family.name}")
    return family.classes[index]


def _require_agreement(line: Line, name: str, of_label: tuple[str, Line], of_name: tuple[int, Line]) -> None:
    if of_label[0] != name:
        raise UserError(
            f'{line.place}: label {line.label} for a picture of "{name}", but for one of "{of_label[0]}" in {of_label[1].place}'
        )
    if of_name[0] != line.label:
        raise UserError(f'{line.place}: label {line.label} for a picture of "{name}", but label {of_name[0]} in {of_name[1].place}')
