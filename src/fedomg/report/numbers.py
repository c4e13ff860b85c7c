"""What the paper prints: every number of its tables, and those that its text states of the figures. They lie in `numbers.csv`."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from fedomg.core.names import known
from fedomg.experiment.select import Rule

AVERAGE = "average"
"""The target under which the mean over all targets of a data set stands."""

_SETTINGS = ("data.alpha", "server.participation")


@dataclass(frozen=True)
class Number:
    """One number as printed; accuracies are in percent.

    `settings` are the keys in which the columns or sections of the table differ. A table of one setting names none.
    """

    table: str
    quantity: str
    dataset: str | None
    target: str | None
    settings: Mapping[str, float]
    method: str
    value: float
    deviation: float | None
    digits: int


@dataclass(frozen=True)
class Reference:
    """How a table of the paper is laid out, and how its numbers were read from its runs."""

    title: str
    view: str
    headline: Rule
    """The rule of our own numbers."""
    published: Rule
    """The rule by which the paper's numbers were picked, as far as its code tells: what its numbers are compared with."""
    columns_by: tuple[str, ...] = ()
    sections_by: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


_LABEL_SHIFT_NOTE = (
    "The published code takes the highest test accuracy over rounds, on models that some methods adapt to each client and others do not."
)
_UNSEEN = Reference("Accuracy on unseen domains", "target", "selected", "selected")

REFERENCES: Mapping[str, Reference] = {
    "table1": Reference(
        "Label shift, 100 clients",
        *("personalised", "mean_last_10", "best", ("data.alpha",), ()),
        notes=(_LABEL_SHIFT_NOTE, "The paper's caption says 20 % participation; its numbers are those that Table 5 gives for all clients."),
    ),
    "table2": Reference(
        _UNSEEN.title,
        *("target", "selected", "selected"),
        notes=("Some of the paper's averages are not the means of its columns (PACS: FedAvg 82.7, the mean is 82.2).",),
    ),
    "table5": Reference(
        "Label shift, 100 clients, by participation",
        *("personalised", "mean_last_10", "best", ("data.alpha",), ("server.participation",)),
        notes=(_LABEL_SHIFT_NOTE,),
    ),
    **{
        f"table{number}": Reference(
            f"Centralised and federated methods on {name}",
            *("target", "selected", "selected"),
            notes=("The paper's centralised rows name a ResNet-18 and have the size of published results of a ResNet-50.",),
        )
        for number, name in ((6, "VLCS"), (7, "PACS"), (8, "OfficeHome"))
    },
}


def reference(table: str) -> Reference:
    return REFERENCES[known("table of accuracies in the paper", table, REFERENCES)]


@cache
def all_numbers() -> tuple[Number, ...]:
    """Every number of the file, in the paper's order."""
    text = resources.files("fedomg.report").joinpath("numbers.csv").read_text(encoding="utf-8")
    return tuple(map(_number, csv.DictReader(text.splitlines())))


def numbers(table: str) -> list[Number]:
    """The numbers of one table or figure, in the paper's order."""
    tables = {number.table for number in all_numbers()}
    return [number for number in all_numbers() if number.table == known("table or figure with numbers in the paper", table, tables)]


def _number(row: Mapping[str, str]) -> Number:
    return Number(
        *(row["table"], row["quantity"], row["dataset"] or None, row["target"] or None),
        settings={key: float(row[key]) for key in _SETTINGS if row[key]},
        method=row["method"],
        value=float(row["value"]),
        deviation=float(row["deviation"]) if row["deviation"] else None,
        digits=len(row["value"].partition(".")[2]),
    )
