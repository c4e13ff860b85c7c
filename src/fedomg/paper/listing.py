"""The list of tables and figures: what each needs, whether that is here, and about how long it takes."""

from functools import cache
from pathlib import Path

from rich.table import Table

from fedomg.data.catalogue import SOURCES
from fedomg.experiment.config import Config
from fedomg.models.weights import NONE
from fedomg.paper.items import SCALES, Item, Scale, item, names
from fedomg.paper.reproduce import has_runs, missing_data, weights_place
from fedomg.report.console import console

CORES = 2
MILLISECONDS = {"linear": 0.02, "mlp": 0.1, "cnn": 1.2, "tiny_resnet": 3.0, "mobilenet_v2": 60.0, "resnet18": 90.0, "resnet50": 220.0}
"""To train on one example, on one core; pictures for the last three have 224 pixels a side."""
HEAD = 0.03
DEARER = {
    "fedsam": 2.0,
    "mofedsam": 2.0,
    "fediir": 2.0,
    "fedsr": 4.0,
    "fedpac": 3.0,
    "fedas": 4.0,
    "fedbabu": 1.5,
    "peravg": 1.5,
    "stablefdg": 3.0,
}
"""Methods that take more than one pass over a batch or the data, beside fedavg."""
RUN, ROUND = 1.0, 0.03
"""Seconds that every run and round take."""


def show_items(root: Path) -> None:
    table = Table("name", "what it shows", "needs", "missing", *SCALES, box=None, pad_edge=False, header_style="bold")
    for name in names():
        one = item(name)
        needs, lacking = _needs(one, root)
        times = [_span(_seconds(one, scale)) for scale in SCALES]
        table.add_row(name, one.title, ", ".join(needs) or "-", ", ".join(lacking) or "-", *times)
    console.print(table)
    console.print(
        f"\nData are looked for in {root} (--root). Times are rough, for two cores and all data; smoke needs no data, and small takes "
        "MobileNetV2 in the place of ResNet-18."
    )


def _needs(one: Item, root: Path) -> tuple[list[str], list[str]]:
    """At the paper's scale: data sets and weights, and those that are not here."""
    configs = [planned.config for planned in one.planned("paper")] if has_runs(one) else []
    found: dict[str, bool] = {}
    for config in configs:
        found[config.dataset] = missing_data(config.dataset, root) is not None
        if config.model.weights != NONE:
            found[f"{config.model.name} weights"] = weights_place(config.model.name, config.model.weights, root)[1] is not None
    return list(found), [name for name, gone in found.items() if gone]


def _seconds(one: Item, scale: Scale) -> float:
    if not has_runs(one):
        return 5.0
    runs = one.planned(scale)
    if scale == "smoke":
        return RUN * len(runs) / CORES  # stand-ins have few examples
    total = sum(seconds(planned.config) for planned in runs)
    return total if one.alone else total / CORES


def seconds(config: Config) -> float:
    """About how long a run takes on one core."""
    examples = _examples(config.dataset)
    passes = config.server.participation * config.local.epochs
    if config.local.steps is not None:
        clients = config.data.clients or 4
        passes = config.server.participation * clients * config.local.steps * config.local.batch_size / examples
    evaluations = 0.1 if config.evaluate.global_ == 1 or config.target else 0.02
    dearer = DEARER.get(config.method.partition("+")[0], 1.0)
    cost = HEAD if config.model.frozen_backbone else MILLISECONDS.get(config.model.name, 1.0)
    return RUN + config.rounds * (ROUND + examples * (passes * dearer + evaluations) * cost / 1000)


@cache
def _examples(dataset: str) -> int:
    source = SOURCES[dataset]
    return source.total or sum((source.sizes or {}).values()) or 2000


def _span(seconds: float) -> str:
    """In the largest unit that fits."""
    for unit, length in (("y", 365 * 86_400), ("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:,.0f} {unit}"
    return "< 1 min"
