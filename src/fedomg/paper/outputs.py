"""What is made of an item's runs: one function for each `kind` that a file can name."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from fedomg.core.names import known
from fedomg.experiment.config import Config, flat, make_config
from fedomg.experiment.experiment import build_federation
from fedomg.experiment.select import Run, mapping, number
from fedomg.models import build_model
from fedomg.paper import rows
from fedomg.paper.items import Item, Scale
from fedomg.paper.toy import follow, steepness
from fedomg.report import plots, tables, toy
from fedomg.report.numbers import REFERENCES, numbers


@dataclass(frozen=True)
class Order:
    """An item at a scale, its finished runs, and the folder for what is made of them; `title` and `name` tell stand-ins from data."""

    item: Item
    scale: Scale
    runs: Sequence[Run]
    out: Path
    title: str
    name: str

    def option(self, key: str, default: Any = None) -> Any:
        return self.item.options.get(key, default)


Maker = Callable[[Order], list[Path]]


def make(order: Order) -> list[Path]:
    """Writes everything, and returns the paths."""
    order.out.mkdir(parents=True, exist_ok=True)
    return MAKERS[known("kind of output", order.item.kind, MAKERS)](order)


# ------------------------------------------------------------------------------------------------------------------ of runs


def _accuracies(order: Order) -> list[Path]:
    """The paper's table. Runs that cannot stand beside its others, by the key `apart`, have a table of their own."""
    key: str | None = order.option("apart")
    groups: dict[str, list[Run]] = {}
    for run in order.runs:
        groups.setdefault(_toml(run.settings([key])[0]) if key else "", []).append(run)
    main, *others = sorted(groups, key=lambda value: -len(groups[value]))
    written = _accuracies_of(replace(order, runs=groups[main]), order.item.name if order.item.name in REFERENCES else None)
    for value in others:
        suffix = f"-{str(key).rpartition('.')[2]}-{value}"
        own = replace(order, runs=groups[value], title=f"{order.title}: {key} = {value}", name=f"{order.name}{suffix}")
        written += _accuracies_of(own, None, f"table{suffix}")
    return written


def _accuracies_of(order: Order, of_the_paper: str | None, table: str = "table") -> list[Path]:
    written = _table(order, of_the_paper, table)
    if len({run.method for run in order.runs}) > 1:
        layout = REFERENCES.get(order.item.name)
        view, keys = (layout.view, (*layout.sections_by, *layout.columns_by)) if layout else (None, ())
        written += plots.bars(order.runs, order.out, view=view, columns_by=keys, name=order.name)
    return written


def _curves(order: Order) -> list[Path]:
    views: Sequence[str] = order.option("views")
    columns_by = _columns_by(order)
    files = [
        plots.curves(
            order.runs, order.out, view=view, columns_by=columns_by, name=order.name if view == views[0] else f"{order.name}-{view}"
        )
        for view in views
    ]
    return [*_table(order), *(path for made in files for path in made)]


def _swept(order: Order) -> list[Path]:
    return _table(order) + plots.swept(order.runs, order.out, order.option("key"), label=order.option("label"), name=order.name)


def _grid(order: Order) -> list[Path]:
    return _table(order) + plots.grid(order.runs, order.out, name=order.name)


def _invariance(order: Order) -> list[Path]:
    return _table(order) + plots.invariance(order.runs, order.out, name=order.name)


def _table(order: Order, of_the_paper: str | None = None, name: str = "table") -> list[Path]:
    title = order.title if of_the_paper or name != "table" else None
    return tables.write(order.runs, order.out, of_the_paper, columns_by=_columns_by(order), title=title, name=name)


def _columns_by(order: Order) -> list[str]:
    """The keys of `columns_by` in which runs differ."""
    return [key for key in order.option("columns_by", ()) if len({run.settings([key]) for run in order.runs}) > 1]


def _seconds(order: Order) -> list[Path]:
    rounds, warmup = order.option("rounds"), min(order.option("warmup"), max(order.runs[0].records[-1]["round"] - 1, 0))
    found = []
    for run in order.runs:
        clients, server = (
            median([value for record in run.records if (value := _spent(record, part, warmup)) is not None])
            for part in ("train", "aggregate")
        )
        found.append([str(run.dataset), run.method, f"{clients:.3f}", f"{server:.4f}", f"{rounds * (clients + server):,.0f}"])
    heads = ["data set", "method", "clients (s a round)", "server (s a round)", f"{rounds} rounds (s)"]
    caption = f"Median over the rounds after the first {warmup}, in one process, without evaluation."
    return rows.write(order.out, order.title, heads, found, caption) + plots.seconds(
        order.runs, order.out, rounds=rounds, warmup=warmup, name=order.name
    )


def _spent(record: Mapping[str, Any], part: str, warmup: int) -> float | None:
    return number(mapping(record.get("seconds")).get(part)) if record["round"] > warmup else None


# ------------------------------------------------------------------------------------------------------------------- of code


def _parameters(order: Order) -> list[Path]:
    """The stages as torchvision names them; what stands between them counts to the one before."""
    classes = order.option("classes")
    model = build_model(order.option("model"), (3, 224, 224), classes, "none")
    counts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        counts["fc" if name.startswith("head.") else _stage(name)] += parameter.numel()
    fc_of_imagenet = (counts["fc"] // classes) * 1000
    counts["total"] = counts.total()
    paper = {value.target: value.value for value in numbers(order.item.name)}
    found = [[stage, f"{count:,}", f"{count / 1e6:.3f}", _number(paper.get(stage))] for stage, count in counts.items()]
    with_imagenet = counts["total"] - counts["fc"] + fc_of_imagenet
    found.append(["total with 1000 classes", f"{with_imagenet:,}", f"{with_imagenet / 1e6:.3f}", _number(paper.get("total"))])
    heads = ["stage", "parameters", "millions", "the paper's millions"]
    caption = f"With {classes} classes; normalisation is counted with the convolutions that it follows."
    return rows.write(order.out, order.title, heads, found, caption)


def _stage(name: str) -> str:
    """`body.layer1.0.conv1.weight` is of layer1, `body.bn1.weight` of conv1."""
    stage = name.split(".")[1]
    return "conv1" if stage == "bn1" else stage


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _settings(order: Order) -> list[Path]:
    """What the configurations of the like-named item say at the paper's scale, beside what the paper says."""
    found: dict[tuple[str, str, str], str] = {}
    for planned in order.item.planned("paper"):
        config = planned.config
        ours = {**flat(config.table()), **_published_solver(config)}
        for value in numbers(order.item.name):
            if (value.method, value.dataset) == (config.method, config.dataset):
                found[config.method, str(config.dataset), value.quantity] = _plain(ours.get(value.quantity))
    lines = [
        [
            value.method,
            str(value.dataset),
            value.quantity,
            f"{value.value:g}",
            found.get((value.method, str(value.dataset), value.quantity), ""),
        ]
        for value in numbers(order.item.name)
    ]
    return rows.write(order.out, order.title, ["method", "data set", "key", "the paper", "run at paper scale"], lines)


def _published_solver(config: Config) -> dict[str, float]:
    from fedomg.omg import preset

    name = getattr(config.aggregator, "preset", None)
    if name is None:
        return {}
    found = preset(name)
    return {"solver.lr": found.lr, "solver.momentum": found.momentum, "solver.iterations": found.steps}


def _plain(value: object) -> str:
    return "not a key" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)


# ----------------------------------------------------------------------------------------------------------------- of the toy


def _points(order: Order) -> list[Path]:
    (planned,) = order.item.planned(order.scale)
    return toy.points(build_federation(planned.config), order.out, name=order.name)


def _paths(order: Order) -> list[Path]:
    """The paths of every method in each setting, and the clients' first updates."""
    settings: Mapping[str, Mapping[str, Any]] = order.option("settings")
    paths, pulls, lines = {}, {}, []
    for setting, changes in settings.items():
        followed = {config.method: follow(config) for config in _changed(order, changes)}
        paths[setting] = {method: found.points for method, found in followed.items()}
        start = followed["fedavg"]
        pulls[setting] = (start.points[:1].repeat(len(start.pulls), axis=0), start.pulls)
        for method, found in followed.items():
            cosines = [value for record in found.records if (value := _pair_cosine(record)) is not None]
            ratio, bias = steepness(found)
            lines.append([setting, method, f"{ratio:.3f}", f"{bias:.3f}", f"{fmean(cosines):+.3f}" if cosines else ""])
    heads = ["setting", "method", "|w_x| / |w_y|", "|bias|", "mean cosine of two clients"]
    caption = "At the end; on the boundary that all domains share both are 0. Cosines are means over pairs and rounds."
    return rows.write(order.out, order.title, heads, lines, caption) + toy.trajectories(paths, order.out, pulls=pulls, name=order.name)


def _changed(order: Order, changes: Mapping[str, Any]) -> Iterator[Config]:
    for planned in order.item.planned(order.scale):
        yield make_config(planned.config.table(), [f"{key}={_toml(value)}" for key, value in flat(changes).items()])


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pair_cosine(record: Mapping[str, Any]) -> float | None:
    return number(mapping(record.get("server")).get("mean_pair_cosine"))


MAKERS: Mapping[str, Maker] = {
    "accuracies": _accuracies,
    "curves": _curves,
    "swept": _swept,
    "grid": _grid,
    "invariance": _invariance,
    "seconds": _seconds,
    "parameters": _parameters,
    "settings": _settings,
    "points": _points,
    "paths": _paths,
}
