"""Tiny copies of picture sets, in exactly the layouts in circulation. A picture is of one colour, which tells its domain and class."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from PIL import Image

PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
VLCS_CLASSES = ("bird", "car", "chair", "dog", "person")
PACS = ("art_painting", "cartoon", "photo", "sketch")
VLCS = ("Caltech101", "LabelMe", "SUN09", "VOC2007")
OFFICE_HOME = ("Art", "Clipart", "Product", "Real World")
HOME_CLASSES = ("Alarm_Clock", "Bed", "TV", "Table")


def paint(path: Path, colour: Sequence[int], size: tuple[int, int] = (12, 8)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, tuple(colour)).save(path)
    return path


def colour_of(domain: int, label: int) -> tuple[int, int, int]:
    return 60 * domain, 30 * label, 100


def write_folders(root: Path, domains: Sequence[str], classes: Sequence[str], each: int = 2, suffix: str = ".png") -> Path:
    """DomainBed's layout. Class folders get `each` pictures."""
    for number, domain in enumerate(domains):
        for label, name in enumerate(classes):
            for picture in range(each):
                paint(root / domain / name / f"pic_{picture}{suffix}", colour_of(number, label))
    return root


def write_parts(root: Path, domains: Sequence[str], classes: Sequence[str], parts: Mapping[str, int]) -> Path:
    """Dassl's layout: the parts between domains and classes, with so many pictures a class."""
    for number, domain in enumerate(domains):
        for part, each in parts.items():
            for label, name in enumerate(classes):
                for picture in range(each):
                    paint(root / domain / part / name / f"{part}_{picture}.png", colour_of(number, label))
    return root


def write_list(path: Path, lines: Iterable[tuple[str, int]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{file} {label}\n" for file, label in lines), encoding="utf-8")
    return path


def pictures_of(folder: str, classes: Sequence[str], pictures: Iterable[int], first: int) -> list[tuple[str, int]]:
    """The lines of a list: these pictures of every class."""
    pictures = list(pictures)
    return [(f"{folder}/{name}/pic_{n}.png", label) for label, name in enumerate(classes, first) for n in pictures]


def write_pacs_lists(root: Path, images: str = "images", each: int = 3) -> Path:
    """Labels from 1, and a bad entry that no copy holds. The last picture of a class is for validation; tests are of all."""
    write_folders(root / images, PACS, PACS_CLASSES, each)
    for domain in PACS:
        parts = {"train": range(each - 1), "crossval": range(each - 1, each), "test": range(each)}
        for part, numbers in parts.items():
            bad = [("sketch/dog/n02103406_4068-1.png", 1)] if domain == "sketch" and part != "train" else []
            write_list(root / f"{domain}_{part}_kfold.txt", pictures_of(domain, PACS_CLASSES, numbers, 1) + bad)
    return root


def write_vlcs_lists(root: Path, each: int = 4) -> Path:
    """Labels from 0; train, val and test are disjoint."""
    write_folders(root / "images", VLCS, VLCS_CLASSES, each)
    for domain in VLCS:
        for part, numbers in {"train": range(each - 2), "val": range(each - 2, each - 1), "test": range(each - 1, each)}.items():
            write_list(root / "splits" / f"{domain.lower().removesuffix('101')}_{part}.txt", pictures_of(domain, VLCS_CLASSES, numbers, 0))
    return root


CELEBA_COLUMNS = ("5_o_Clock_Shadow", "Blond_Hair", "Male", "Young")


def write_celeba(root: Path, parts: Sequence[int] = (48, 16, 16), text: bool = False) -> Path:
    """Faces in three parts, in which every eighth man and every other woman is blond; grey levels follow hair, red follows gender."""
    faces = [(index, part) for part, count in enumerate(parts) for index in range(count)]
    rows, places = [], []
    for number, (index, part) in enumerate(faces, 1):
        file, male = f"{number:06d}.jpg", index % 2
        blond = (index // 2) % (8 if male else 2) == 0
        paint(root / "img_align_celeba" / file, (200 * male, 220 * blond, 220 * blond), (178, 218))
        rows.append((file, -1, 1 if blond else -1, 1 if male else -1, 1))
        places.append((file, part))
    if text:
        lines = [str(len(rows)), " ".join(CELEBA_COLUMNS), *("  ".join(map(str, row)) for row in rows)]
        (root / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
        write_list(root / "list_eval_partition.txt", places)
    else:
        header = ",".join(("image_id", *CELEBA_COLUMNS))
        (root / "list_attr_celeba.csv").write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
        table = ["image_id,partition", *(f"{file},{part}" for file, part in places)]
        (root / "list_eval_partition.csv").write_text("\n".join(table) + "\n")
    return root
