"""What a table of results is made of, before it is printed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedomg.experiment.select import Rule, Spread
from fedomg.report.numbers import Number
from fedomg.report.paired import Comparison


@dataclass(frozen=True)
class Column:
    """One view of one target, or of the mean over the `averaged` targets; `settings` are the keys that make it a column of its own."""

    view: str
    dataset: str | None
    target: str | None
    settings: tuple[tuple[str, object], ...] = ()
    averaged: tuple[str, ...] = ()

    @property
    def levels(self) -> tuple[str, str, str, str]:
        """The parts of its heading, from the outermost to the innermost."""
        return settings_text(self.settings), self.dataset or "", self.target or "", self.view.replace("_", " ")


@dataclass(frozen=True)
class Cell:
    """Our number, our number as the paper's was read, and the paper's; `rank` 1 is the best of its column, 2 the second."""

    ours: Spread | None = None
    as_published: Spread | None = None
    paper: Number | None = None
    rank: int = 0

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, in percent, both read in one way."""
        return None if self.as_published is None or self.paper is None else 100 * self.as_published.mean - self.paper.value


@dataclass(frozen=True)
class Line:
    """One method in one section of the table."""

    section: tuple[tuple[str, object], ...]
    method: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """`heads` says which levels of the columns' headings differ; what they share stands in the caption."""

    title: str
    caption: str
    rule: Rule
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    digits: int = 1
    published: Rule | None = None
    comparisons: tuple[Comparison, ...] = ()

    @property
    def heads(self) -> list[int]:
        """The levels of the columns' headings in which columns differ, or the innermost that says something."""
        levels = [column.levels for column in self.columns]
        differing = [level for level in range(4) if len({one[level] for one in levels}) > 1]
        return differing or [max(level for level in range(4) if levels[0][level])]

    @property
    def seeds(self) -> int:
        """The most seeds of any number: those with fewer say so."""
        return max((cell.ours.n for line in self.lines for cell in line.cells if cell.ours), default=0)


def settings_text(settings: Sequence[tuple[str, object]]) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in settings)


def ranked(lines: Sequence[Line], digits: int) -> list[Line]:
    """The best and the second best of each column among the methods of one section, as printed: equal digits share a place."""
    places = []
    for line in lines:
        rivals = [other for other in lines if other.section == line.section]
        places.append(
            replace(
                line,
                cells=tuple(replace(cell, rank=_rank(cell, [r.cells[i] for r in rivals], digits)) for i, cell in enumerate(line.cells)),
            )
        )
    return places


def _rank(cell: Cell, rivals: Sequence[Cell], digits: int) -> int:
    means = sorted({round(100 * rival.ours.mean, digits) for rival in rivals if rival.ours}, reverse=True)
    if cell.ours is None or sum(rival.ours is not None for rival in rivals) < 2:
        return 0
    place = means.index(round(100 * cell.ours.mean, digits)) + 1
    return place if place <= 2 else 0
