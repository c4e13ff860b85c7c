"""Reads what stands in the TOML file of a table or figure: what it shows, and which runs it is made of at each scale.

A file is a sweep with a header `[reproduce]` and changes for a scale, `[scale.small]`. It may take over the runs of another file by
`like`, and change some of its keys; or it consists of several `[[part]]`s, each like a file of its own.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

from fedomg.core.errors import UserError
from fedomg.core.names import known
from fedomg.experiment.config import Table, flat, overridden
from fedomg.experiment.sweep import Planned, plan

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
HEADER, PART, LIKE, SCALE = "reproduce", "part", "like", "scale"


@dataclass(frozen=True)
class Item:
    """`kind` says what is made of the runs, and `options` are that function's. `alone`: runs are timed, so nothing runs beside them."""

    name: str
    title: str
    kind: str
    options: Mapping[str, Any]
    alone: bool
    parts: tuple[Table, ...]

    def planned(self, scale: Scale, overrides: Sequence[str] = ()) -> list[Planned]:
        """Its runs, each once."""
        found: dict[str, Planned] = {}
        for part in self.parts:
            for run in plan(overridden(at_scale(part, scale), overrides)):
                found.setdefault(run.config.hash(), run)
        return list(found.values())

    def changes(self, scale: Scale) -> dict[str, Any]:
        """The settings in which a scale departs from the paper's."""
        found: dict[str, Any] = {}
        for part in self.parts:
            full, here = flat(at_scale(part, "paper")), flat(at_scale(part, scale))
            found |= {key: here[key] for key in here if here[key] != full.get(key)}
        return found


def known_scale(name: str) -> Scale:
    return next(scale for scale in SCALES if scale == known("scale", name, SCALES))


def names() -> list[str]:
    """All tables, then all figures, in the paper's order."""
    found = (file.name.removesuffix(".toml") for file in resources.files(__package__).iterdir() if file.name.endswith(".toml"))
    return sorted(found, key=lambda name: (name.startswith("figure"), int(re.sub(r"\D", "", name))))


@cache
def item(name: str) -> Item:
    header = _file(known("table or figure", name, names()))[HEADER]
    options = {key: value for key, value in header.items() if key not in ("title", "kind", "alone", LIKE)}
    return Item(name, header["title"], header["kind"], options, header.get("alone", False), tuple(_parts(name)))


def at_scale(part: Table, scale: Scale) -> Table:
    """The sweep of a part, with what the scale changes."""
    return merged({key: value for key, value in part.items() if key != SCALE}, part.get(SCALE, {}).get(scale, {}))


def merged(below: Table, above: Table) -> Table:
    """Tables are merged key by key; any other value takes the place of the one below."""
    both = {key: merged(below[key], above[key]) for key in below.keys() & above.keys() if _tables(below[key], above[key])}
    return {**below, **above, **both}


def _tables(*values: Any) -> bool:
    return all(isinstance(value, dict) for value in values)


def _parts(name: str) -> list[Table]:
    table = _file(name)
    own = {key: value for key, value in table.items() if key not in (HEADER, PART)}
    found = []
    for part in table.get(PART, [{}]):
        changes = merged(own, {key: value for key, value in part.items() if key != LIKE})
        like = part.get(LIKE, table[HEADER].get(LIKE))
        found += [merged(base, changes) for base in (_parts(like) if like else [{}])]
    return found


@cache
def _file(name: str) -> Table:
    text = resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{name}.toml of this package is not valid TOML: {error}") from None
