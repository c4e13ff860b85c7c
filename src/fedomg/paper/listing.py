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
MILLISECONDS = {"linear": 0.01, "mlp": 0.03, "cnn": 1.1, "tiny_resnet": 0.5}
PICTURES, SIDE = {"mobilenet_v2": 100.0, "resnet18": 140.0, "resnet50": 350.0}, 224
"""To train on one example, on one core, and for the larger models on one picture with sides of so many pixels."""
HEAD = 0.03
DEARER = {"fedsam": 2.0, "mofedsam": 2.0, "fediir": 2.0, "fedsr": 4.0, "peravg": 1.5, "stablefdg": 3.0}
"""Methods whose step takes more than that of fedavg."""
PASSES = {"fedpac": 2.0, "fedas": 2.0}
"""Methods that pass forwards over all data of a client beside their steps, and how often a round."""
RUN, ROUND = 1.0, 0.03
"""Seconds that every run and round take."""


def show_items(root: Path) -> None:
    table = Table("name", "what it shows", "needs", *SCALES, box=None, pad_edge=False, header_style="bold")
    for name in names():
        one = item(name)
        needs = [f"{need}{'' if here else ' (missing)'}" for need, here in _needs(one, root).items()]
        table.add_row(name, one.title, ", ".join(needs) or "-", *(_span(_seconds(one, scale)) for scale in SCALES))
    console.print(table)
    console.print(
        f"\nData are looked for in {root} (--root). Times are rough, for two idle cores and all data sets; smoke needs none, "
        "and small takes MobileNetV2 in the place of ResNet-18."
    )


def _needs(one: Item, root: Path) -> dict[str, bool]:
    """Data sets and weights at the paper's scale, and whether they are here."""
    configs = [planned.config for planned in one.planned("paper")] if has_runs(one) else []
    found: dict[str, bool] = {}
    for config in configs:
        found[config.dataset] = missing_data(config.dataset, root) is None
        if config.model.weights != NONE:
            found[f"{config.model.name} weights"] = weights_place(config.model.name, config.model.weights, root)[1] is None
    return found


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
    held = examples * (1 - (config.data.test or 0)) * (1 - (config.data.validation or 0)) * config.server.participation
    trained = held * config.local.epochs
    if config.local.steps is not None:
        trained = (config.data.clients or 3) * config.server.participation * config.local.steps * config.local.batch_size
    base = config.method.partition("+")[0]
    trained = trained * DEARER.get(base, 1.0) + held * PASSES.get(base, 0.0) / 3
    tested = examples / 4 if config.target else examples * (config.data.test or 0.1)
    every = config.evaluate.target if config.target else config.evaluate.global_
    evaluations = config.rounds / every if isinstance(every, int) else 1
    cost = HEAD if config.model.frozen_backbone else _example(config)
    return RUN + config.rounds * ROUND + (config.rounds * trained + evaluations * tested / 3) * cost / 1000


def _example(config: Config) -> float:
    """Milliseconds to train a whole model on one example."""
    if full := PICTURES.get(config.model.name):
        return full * ((config.data.size or SIDE) / SIDE) ** 2
    return MILLISECONDS.get(config.model.name, 1.0)


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
