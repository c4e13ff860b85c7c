"""Builds src/fedomg/data/emoji/emoji.npz: the same emoji drawn by different hands, one domain a hand.

    pip install resvg-py==0.5.0 && python tools/build_emoji.py

needs `npm` and a package registry, takes about a minute, and writes the same bytes each time.

**Pictures.** An emoji is kept if every source has drawn it. Pictures are laid on white, averaged down to SIZE x SIZE pixels
and reduced to at most COLOURS colours each, without dithering: an index for each pixel and a palette for each picture
compress to a third of the RGB bytes, and decode to the same bytes everywhere.

**Classes** are the Unicode categories. Flags, components and skin tones are left out.

**Split.** An emoji belongs to one part, training or test, in all domains at once. Otherwise a model would recognise the
emoji and not its class. Variants of one emoji form a group, and a group is never divided. Two emoji are variants if
  1. their code points agree once persons are interchangeable and signs of gender, hair and direction are removed, or
  2. their names agree once words of gender, hair, colour, size, direction, number and state are removed, or
  3. they belong to one family: clock faces, keycaps, hearts, plain shapes, zodiac signs and so on (FAMILIES), or
  4. they look alike: in some domain their pictures differ by less than LOOK_ALIKE grey levels (root mean square).
Groups are visited by size, in a seeded order among equals; one goes to the test part if of the emoji visited so far no more
than TEST_SHARE of any class are then in it.
"""

import functools
import io
import json
import random
import re
import subprocess
import tarfile
import tempfile
import textwrap
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import resvg_py
from numpy.typing import NDArray
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "src" / "fedomg" / "data" / "emoji"

SIZE = 32
COLOURS = 32
SUPERSAMPLING = 4  # vector pictures are rendered this much larger, then averaged down like the others
TEST_SHARE = 0.25
SEED = 2024
LOOK_ALIKE = 10.0

NOTO = "emoji-datasource-google@16.0.0"
TWEMOJI = "emoji-datasource-twitter@16.0.0"
OPENMOJI = "openmoji@17.0.0"
FLUENT_3D = "@lobehub/fluent-emoji-3d@1.1.0"
FLUENT = "fluentui-emoji@1.3.0"
# Only for the text of a licence that the package with the pictures does not carry.
TWEMOJI_LICENCE = "twemoji@14.0.2"
FLUENT_LICENCE = "fluentui-emoji-js@1.2.1"
PACKAGES = (NOTO, TWEMOJI, OPENMOJI, FLUENT_3D, FLUENT, TWEMOJI_LICENCE, FLUENT_LICENCE)

DOMAINS = ("noto", "twemoji", "openmoji", "line", "fluent3d", "contrast")
CLASSES = {
    "Activities": "Activities",
    "Animals & Nature": "Animals",
    "Food & Drink": "Food",
    "Objects": "Objects",
    "People & Body": "People",
    "Smileys & Emotion": "Smileys",
    "Symbols": "Symbols",
    "Travel & Places": "Travel",
}

PRESENTATION = {"fe0f", "200d"}
PERSONS = {"1f468", "1f469", "1f9d1"}
SIGNS = {"2640", "2642", "27a1", "1f9b0", "1f9b1", "1f9b2", "1f9b3"}
QUALIFIERS = {
    "filler": "a and in of s the with",
    "gender": "man mans men woman womans women male female person people boy girl child mother father mr mrs mx",
    "hair": "hair bald beard",
    "colour": "red orange yellow green blue light dark purple pink brown black white grey gray",
    "direction": "oncoming left right up down upwards downwards leftwards rightwards facing tilted horizontal vertical raised lowered",
    "size": "small medium large low high",
    "number": "1st 2nd 3rd one two three",
    "state": "dim bright heavy open closed full half first last quarter new waxing waning crescent gibbous",
}
QUALIFYING_WORDS = frozenset(word for words in QUALIFIERS.values() for word in words.split())
# Same plate, different sign; same body, different hand: pattern of the name or of the subcategory -> family.
FAMILIES = (
    (r"^subcategory (family|person|heart|keycap|geometric|zodiac|monkey-face)$", r"\1"),
    (r"o’clock$|-thirty$", "clock face"),
    (r"^Japanese “.*button$", "Japanese button"),
    (r"button \(blood type\)$", "blood type"),
    (r"^[A-Z]+!? button$", "word button"),
    (r"^[A-Z]+!? arrow$", "word arrow"),
    (r"(reverse|forward|play|pause|stop|record|eject|track|tracks|repeat|repeat single) button$", "player button"),
    (r"^input ", "input"),
    (r"^globe showing ", "globe"),
    (r" banknote$", "banknote"),
    (r"^sun behind ", "sun behind"),
    (r"^cloud with ", "cloud with"),
    (r"^airplane (arrival|departure)$", "airplane on its way"),
    (r" post office$|^post office$", "post office"),
    (r"^houses?( with garden)?$", "house"),
    (r"^(un)?locked\b", "lock"),
    (r"^bell( with slash)?$", "bell"),
    (r"^mobile phone\b", "mobile phone"),
    (r"^camera\b", "camera"),
    (r"^notebook\b", "notebook"),
    (r"box tray$", "tray"),
    (r"\bnest\b", "nest"),
    (r"(guide|service) dog$", "working dog"),
    (r"Claus$", "Claus"),
    (r"^(prince|princess|person with crown)$", "royalty"),
)

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Emoji:
    code: str
    name: str
    category: str
    subcategory: str
    pictures: tuple[Path, ...]


def download(package: str, into: Path) -> Path:
    packed = subprocess.run(["npm", "pack", "--silent", package], cwd=into, check=True, capture_output=True, text=True)
    archive = into / packed.stdout.split()[-1]
    target = archive.with_suffix("")
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="data")
    archive.unlink()
    return target / "package"


def code_of(text: str) -> str:
    return "-".join(part for part in text.lower().split("-") if part not in PRESENTATION)


def pictures_by_code(folder: Path) -> dict[str, Path]:
    return {code_of(path.stem): path for path in folder.iterdir()}


def slug(name: str) -> str:
    plain = re.sub(r"[’'“”.]|[\u0300-\u036f]", "", unicodedata.normalize("NFKD", name.lower()))
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


def contrast_pictures(folder: Path, names: dict[str, str]) -> dict[str, Path]:
    """This source alone names its files by the emoji's name; "default" is the yellow skin, "person" the neutral form."""
    files = {path.stem: path for path in folder.iterdir()}
    found: dict[str, Path] = {}
    for code, name in names.items():
        stem = slug(name)
        for candidate in (stem, f"{stem}-default", f"person-{stem}", f"person-{stem}-default"):
            if candidate in files:
                found[code] = files[candidate]
                break
    return found


def common_emoji(packages: dict[str, Path]) -> list[Emoji]:
    annotations = json.loads((packages[OPENMOJI] / "data" / "openmoji.json").read_text("utf-8"))
    names = {code_of(entry["hexcode"]): str(entry["annotation"]) for entry in annotations}
    sources = (
        pictures_by_code(packages[NOTO] / "img" / "google" / "64"),
        pictures_by_code(packages[TWEMOJI] / "img" / "twitter" / "64"),
        pictures_by_code(packages[OPENMOJI] / "color" / "svg"),
        pictures_by_code(packages[OPENMOJI] / "black" / "svg"),
        pictures_by_code(packages[FLUENT_3D] / "assets"),
        contrast_pictures(packages[FLUENT] / "icons" / "high-contrast", names),
    )
    kept = []
    for entry in json.loads((packages[NOTO] / "emoji.json").read_text("utf-8")):  # skin tones are nested in their base here
        code = code_of(entry["unified"])
        if entry["category"] in CLASSES and all(code in source for source in sources):
            pictures = tuple(source[code] for source in sources)
            kept.append(Emoji(code, names[code], CLASSES[entry["category"]], entry["subcategory"], pictures))
    return sorted(kept, key=lambda emoji: emoji.code)


def open_picture(path: Path) -> Image.Image:
    if path.suffix != ".svg":
        return Image.open(path)
    side = SIZE * SUPERSAMPLING
    # Without system fonts the result does not depend on the machine; the sources draw letters as outlines anyway.
    return Image.open(io.BytesIO(resvg_py.svg_to_bytes(svg_path=str(path), width=side, height=side, skip_system_fonts=True)))


def render(path: Path) -> Pixels:
    picture = open_picture(path).convert("RGBA")
    side = max(picture.size)
    square = Image.new("RGBA", (side, side), "white")
    square.alpha_composite(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    return np.asarray(square.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BOX))


def reduce_colours(pixels: Pixels) -> tuple[Pixels, Pixels]:
    """Indices (SIZE, SIZE) into a palette (COLOURS, 3) that runs from dark to light."""
    reduced = Image.fromarray(pixels).quantize(COLOURS, method=Image.Quantize.MEDIANCUT, kmeans=3, dither=Image.Dither.NONE)
    colours = np.asarray(reduced.getpalette(), np.uint8).reshape(-1, 3)[:COLOURS]
    colours = np.where(colours.min(axis=1, keepdims=True) >= 250, np.uint8(255), colours)  # the background stays pure white
    order = np.argsort(colours.sum(axis=1, dtype=np.int64), kind="stable")
    palette = np.zeros((COLOURS, 3), np.uint8)
    palette[: len(colours)] = colours[order]
    return np.argsort(order).astype(np.uint8)[np.asarray(reduced)], palette


def name_key(name: str) -> str:
    return " ".join(word for word in slug(name).split("-") if word not in QUALIFYING_WORDS)


def variant_keys(emoji: Emoji) -> Iterable[str]:
    """Emoji that share one of these keys are variants of each other."""
    parts = [part for part in emoji.code.split("-") if part not in SIGNS]
    yield "code " + "-".join("person" if part in PERSONS else part for part in parts)
    if name := name_key(emoji.name):
        yield "name " + name
    for pattern, family in FAMILIES:
        for text in (emoji.name, f"subcategory {emoji.subcategory}"):
            if match := re.search(pattern, text):
                yield "family " + match.expand(family)


def look_alikes(pictures: Pixels) -> Iterable[tuple[int, int]]:
    limit = LOOK_ALIKE**2 * SIZE * SIZE * 3
    for domain in pictures:
        flat = domain.reshape(len(domain), -1).astype(np.float64)
        norms = (flat**2).sum(axis=1)
        squares = norms[:, None] + norms - 2 * flat @ flat.T  # whole numbers below 2**53: exact in any order of summation
        for first, second in np.argwhere(np.triu(squares < limit, k=1)):
            yield int(first), int(second)


def variant_groups(emoji: list[Emoji], pictures: Pixels) -> list[list[int]]:
    parent = list(range(len(emoji)))

    def root(index: int) -> int:
        while parent[index] != index:
            index = parent[index]
        return index

    def join(first: int, second: int) -> None:
        low, high = sorted((root(first), root(second)))
        parent[high] = low

    owner: dict[str, int] = {}
    for index, one in enumerate(emoji):
        for key in variant_keys(one):
            join(index, owner.setdefault(key, index))
    for first, second in look_alikes(pictures):
        join(first, second)
    groups: dict[int, list[int]] = {}
    for index in range(len(emoji)):
        groups.setdefault(root(index), []).append(index)
    return list(groups.values())


def choose_test(emoji: list[Emoji], groups: list[list[int]]) -> NDArray[np.bool_]:
    """Large groups first, so that groups of every size land in both parts."""
    chosen = np.zeros(len(emoji), np.bool_)
    shuffled = list(groups)
    random.Random(SEED).shuffle(shuffled)
    seen: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for group in sorted(shuffled, key=len, reverse=True):
        wanted = Counter(emoji[index].category for index in group)
        seen += wanted
        if all(taken[category] + wanted[category] <= TEST_SHARE * seen[category] for category in wanted):
            taken += wanted
            chosen[group] = True
    return chosen


def encode(emoji: list[Emoji]) -> dict[str, NDArray[np.generic]]:
    pictures = np.stack([np.stack([render(one.pictures[domain]) for one in emoji]) for domain in range(len(DOMAINS))])
    reduced = [[reduce_colours(picture) for picture in domain] for domain in pictures]
    groups = variant_groups(emoji, pictures)
    group_of = np.zeros(len(emoji), np.uint16)
    for number, group in enumerate(groups):
        group_of[group] = number
    classes = tuple(CLASSES.values())
    return {
        "indices": np.stack([np.stack([indices for indices, _ in domain]) for domain in reduced]),
        "palettes": np.stack([np.stack([palette for _, palette in domain]) for domain in reduced]),
        "labels": np.asarray([classes.index(one.category) for one in emoji], np.uint8),
        "test": choose_test(emoji, groups),
        "groups": group_of,
        "codes": np.asarray([one.code for one in emoji]),
        "names": np.asarray([one.name for one in emoji]),
        "domain_names": np.asarray(DOMAINS),
        "class_names": np.asarray(classes),
    }


def write(arrays: dict[str, NDArray[np.generic]], path: Path) -> None:
    """As numpy.savez_compressed, with the strongest compression and a fixed date."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, np.ascontiguousarray(array), allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            archive.writestr(entry, content.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=9)


def copy_licences(packages: dict[str, Path], into: Path) -> None:
    sources = {
        "noto-Apache-2.0.txt": ROOT / "LICENSE",  # the licence's own text, the same for every work under it
        "twemoji-CC-BY-4.0.txt": packages[TWEMOJI_LICENCE] / "LICENSE-GRAPHICS",
        "openmoji-CC-BY-SA-4.0.txt": packages[OPENMOJI] / "LICENSE.txt",
        "fluent-MIT.txt": packages[FLUENT_LICENCE] / "LICENSE",
        "emoji-data-MIT.txt": packages[NOTO] / "LICENSE",
    }
    into.mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        lines = textwrap.dedent(source.read_text("utf-8")).strip("\n").splitlines()
        (into / name).write_text("\n".join(line.rstrip() for line in lines) + "\n", "utf-8")


def report(arrays: dict[str, NDArray[np.generic]], path: Path) -> None:
    labels, test = arrays["labels"], arrays["test"].astype(np.bool_)
    print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB, {len(DOMAINS)} domains of {len(labels)} emoji, ", end="")
    print(f"{len(np.unique(arrays['groups']))} groups, {int(np.count_nonzero(test))} emoji in the test part")
    for label, name in enumerate(CLASSES.values()):
        here = labels == label
        print(f"  {name:<11}{np.count_nonzero(here & ~test):>5} train{np.count_nonzero(here & test):>5} test")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        fetch: Callable[[str], Path] = functools.partial(download, into=Path(folder))
        packages = {package: fetch(package) for package in PACKAGES}
        arrays = encode(common_emoji(packages))
        copy_licences(packages, FOLDER / "licenses")
    path = FOLDER / "emoji.npz"
    write(arrays, path)
    report(arrays, path)


if __name__ == "__main__":
    main()
