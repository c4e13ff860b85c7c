"""PACS, VLCS and OfficeHome: their domains and classes, and how these are spelled in the copies in circulation."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedomg.data.dataset import TEST, TRAIN, VALIDATION
from fedomg.data.listing import folders_in

PARTS = {"train": TRAIN, "crossval": VALIDATION, "val": VALIDATION, "test": TEST}
PICTURE_FOLDERS = ("images", "raw_images", "kfold")


def plain(name: str) -> str:
    """A name without what copies spell differently: case, blanks, underscores."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


@dataclass(frozen=True)
class Family:
    """One of the sets: how its folders are spelled, and how many pictures a domain of a complete copy holds.

    `classes` is empty where they are the folders that are found. `bad` are pictures that lists name and no copy holds whole.
    """

    name: str
    folders: tuple[str, ...]
    sizes: Mapping[str, int]
    spellings: Mapping[str, str]
    classes: tuple[str, ...] = ()
    first_label: int = 0
    bad: frozenset[str] = frozenset()

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(sorted(self.sizes))

    def domain(self, spelled: str) -> str | None:
        names = {plain(name): name for name in self.sizes}
        return names.get(plain(spelled)) or self.spellings.get(plain(spelled))

    def class_name(self, spelled: str) -> str | None:
        """Known by its name or by its number; any name is one where the folders decide."""
        if not self.classes:
            return spelled or None
        numbers = {str(number): name for number, name in enumerate(self.classes)}
        return {plain(name): name for name in self.classes}.get(plain(spelled)) or numbers.get(spelled)


PACS = Family(
    name="pacs",
    folders=("pacs",),
    sizes={"photo": 1_670, "art_painting": 2_048, "cartoon": 2_344, "sketch": 3_929},
    spellings={"art": "art_painting"},
    classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
    first_label=1,
    bad=frozenset({"sketch/dog/n02103406_4068-1.png"}),
)
VLCS = Family(
    name="vlcs",
    folders=("vlcs",),
    sizes={"VOC2007": 3_376, "LabelMe": 2_656, "Caltech101": 1_415, "SUN09": 3_282},
    spellings={"voc": "VOC2007", "pascal": "VOC2007", "caltech": "Caltech101", "sun": "SUN09"},
    classes=("bird", "car", "chair", "dog", "person"),
)
OFFICE_HOME = Family(
    name="officehome",
    folders=("officehome", "officehomedg", "officehomedataset10072016"),
    sizes={"Art": 2_427, "Clipart": 4_365, "Product": 4_439, "Real World": 4_357},
    spellings={"real": "Real World"},
)


def homes(family: Family, root: Path) -> list[Path]:
    """Where the set may be: the root itself, or a folder in it."""
    return [root, *(folder for folder in folders_in(root) if plain(folder.name) in family.folders)]


def picture_folders(home: Path) -> list[Path]:
    return [home, *(path for name in PICTURE_FOLDERS if (path := home / name).is_dir())]
