"""The figures of the paper from any set of runs. Each function draws one kind and writes it as PDF, SVG and PNG."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from fedomg.core.errors import UserError
from fedomg.experiment.select import (
    VIEWS,
    Record,
    Rule,
    Run,
    Spread,
    accuracy,
    curve,
    mapping,
    name_variants,
    number,
    spread,
    taken_late,
    validation_accuracy,
    view_value,
)
from fedomg.report.drawing import Look, legend, looks, panels, save, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Value = Callable[[Run], float | None]


def curves(
    runs: Sequence[Run],
    out: Path,
    *,
    view: str | None = None,
    metric: str = "accuracy",
    columns_by: Sequence[str] = (),
    name: str = "curves",
) -> list[Path]:
    """A view over the rounds: a panel for each data set and target (and value of `columns_by`), a line for each method.

    Bands go from the lowest to the highest seed. `view` is by default the held-out domain, or the global model where none is held out.
    """
    runs = _some(name_variants(runs, columns_by))
    view = view or next((known for known in VIEWS if _taken(runs, known)), None)
    if view is None or not _taken(runs, view):
        raise UserError(f"no run has the view {view}" if view else "no run has a view to draw")
    scopes = _scopes(runs, columns_by)
    with styled():
        figure, axes = panels(len(scopes))
        styles = looks(dict.fromkeys(run.method for run in runs))
        for one, (title, members) in zip(axes, scopes.items(), strict=True):
            _curves(one, members, styles, partial(_scaled_view, view=view, metric=metric))
            one.set(title=title, xlabel="round")
            _whole_numbers(one)
        axes[0].set_ylabel(f"{_view_name(view, runs)}: " + ("accuracy (%)" if metric == "accuracy" else metric))
        legend(figure, axes)
        return save(figure, out, name)


def swept(
    runs: Sequence[Run],
    out: Path,
    key: str,
    *,
    view: str | None = None,
    rule: Rule = "selected",
    label: str | None = None,
    name: str = "swept",
) -> list[Path]:
    """Accuracy over the values of a configuration key (`server.lr`, `aggregator.kappa`): a panel for each data set, mean over targets.

    Whiskers are one standard deviation over seeds. A method that ran without the key, or with one value of it, is a dashed level.
    """
    named = _some(name_variants(runs, (key,)))
    label = label or key
    datasets: dict[str, list[Run]] = {}
    for run in named:
        datasets.setdefault(run.dataset or "", []).append(run)
    with styled():
        figure, axes = panels(len(datasets))
        styles = looks(dict.fromkeys(run.method for run in named))
        for one, (title, members) in zip(axes, datasets.items(), strict=True):
            shown = view or _usual_view(members)
            _swept(one, members, key, shown, rule, styles)
            one.set(title=title, xlabel=label, ylabel=f"{_view_name(shown, members)}: accuracy (%)")
        legend(figure, axes)
        return save(figure, out, name)


def _swept(axes: "Axes", runs: Sequence[Run], key: str, view: str, rule: Rule, styles: Mapping[str, Look]) -> None:
    values = sorted({value for run in runs if (value := number(run.settings((key,))[0])) is not None})
    for method, members in _by_method(runs).items():
        points = {value: [run for run in members if number(run.settings((key,))[0]) == value] for value in values}
        found = [(value, _over_seeds(there, view, rule)) for value, there in points.items()]
        drawn = [(value, one) for value, one in found if one is not None]
        if len(drawn) > 1:
            xs = [value for value, _ in drawn]
            errors = [100 * (one.std or 0.0) for _, one in drawn]
            axes.errorbar(xs, [100 * one.mean for _, one in drawn], yerr=errors, capsize=2, label=method, **styles[method].line())
        elif (level := _over_seeds(members, view, rule)) is not None:
            axes.axhline(100 * level.mean, label=method, color=styles[method].colour, linestyle="--", linewidth=1.2)
    positive = [value for value in values if value > 0]
    if len(positive) == len(values) > 1 and values[-1] / values[0] > 12:
        axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()


def bars(
    runs: Sequence[Run],
    out: Path,
    *,
    view: str | None = None,
    rule: Rule = "selected",
    columns_by: Sequence[str] = (),
    name: str = "bars",
) -> list[Path]:
    """Accuracy of each method on each target, or each data set where none is held out; whiskers of one standard deviation.

    There is a panel for each value of `columns_by`.
    """
    named = _some(name_variants(runs, columns_by))
    view = view or _usual_view(named)
    settings = _settings(named, columns_by)
    methods = list(_by_method(named))
    widest = max(len(_scopes(there, ())) for there in settings.values())
    with styled():
        size = (min(12.0, 1.6 + 0.28 * widest * (len(methods) + 1)), 2.2 if len(settings) > 1 else 2.6)
        figure, axes = panels(len(settings), columns=1, size=size, sharey=True)
        for one, (setting, there) in zip(axes, settings.items(), strict=True):
            _bars_of(one, there, methods, view, rule)
            one.set_title(setting)
        figure.supylabel(f"{_view_name(view, named)}: accuracy (%)", fontsize="medium")
        legend(figure, axes)
        return save(figure, out, name)


def _bars_of(axes: "Axes", runs: Sequence[Run], methods: Sequence[str], view: str, rule: Rule) -> None:
    styles, scopes = looks(methods), _scopes(runs, ())
    for position, method in enumerate(methods):
        found = [_over_seeds([run for run in there if run.method == method], view, rule) for there in scopes.values()]
        places = [place + (position - (len(methods) - 1) / 2) * 0.8 / len(methods) for place, one in enumerate(found) if one]
        means = [100 * one.mean for one in found if one]
        errors = [100 * (one.std or 0.0) for one in found if one]
        whisker = {"elinewidth": 0.8, "ecolor": "#333333"}
        axes.bar(places, means, 0.74 / len(methods), yerr=errors, label=method, color=styles[method].bar(), error_kw=whisker)
    axes.set_xticks(range(len(scopes)), list(scopes))
    axes.grid(axis="x", visible=False)


def seconds(runs: Sequence[Run], out: Path, *, rounds: int = 800, warmup: int = 2, name: str = "seconds") -> list[Path]:
    """Computation time of `rounds` rounds by data set and method: clients below, server above.

    The median over the rounds after the first `warmup` of them, which load and compile, times `rounds`; evaluation is left out.
    """
    named = _some(name_variants(runs))
    methods = list(_by_method(named))
    datasets = list(dict.fromkeys(run.dataset or "" for run in named))
    with styled():
        figure, (axes,) = panels(1, size=(min(12.0, 1.8 + 0.4 * len(datasets) * (len(methods) + 1)), 2.6))
        styles = looks(methods)
        for position, method in enumerate(methods):
            found = [
                _parts([run for run in named if run.method == method and (run.dataset or "") == dataset], warmup) for dataset in datasets
            ]
            places = [place + (position - (len(methods) - 1) / 2) * 0.8 / len(methods) for place, parts in enumerate(found) if parts]
            clients, server = ([rounds * parts[part] for parts in found if parts] for part in (0, 1))
            width, colour = 0.74 / len(methods), styles[method].bar()
            axes.bar(places, clients, width, color=colour, label=method)
            axes.bar(places, server, width, bottom=clients, color="white", edgecolor=colour, hatch="////", linewidth=0.8)
        axes.bar([0], [0], color="white", edgecolor="#555555", hatch="////", label="server's part")
        axes.set_xticks(range(len(datasets)), datasets)
        axes.grid(axis="x", visible=False)
        axes.set_ylabel(f"seconds for {rounds} rounds")
        legend(figure, [axes])
        return save(figure, out, name)


def _parts(runs: Sequence[Run], warmup: int) -> tuple[float, float] | None:
    """Seconds of a round, at the clients and at the server: the mean over runs of the median over rounds."""
    clients, server = ([median(found) for run in runs if (found := list(_seconds(run, part, warmup)))] for part in ("train", "aggregate"))
    return (fmean(clients), fmean(server)) if clients and server else None


def _seconds(run: Run, part: str, warmup: int) -> Iterator[float]:
    for record in run.records:
        value = number(mapping(record.get("seconds")).get(part))
        if record["round"] > warmup and value is not None:
            yield value


def grid(
    runs: Sequence[Run],
    out: Path,
    rows: str = "local.epochs",
    columns: str = "local.lr",
    *,
    view: str | None = None,
    rule: Rule = "selected",
    name: str = "grid",
) -> list[Path]:
    """Accuracy over two configuration keys: a heat map for each data set and method, the best cell framed; white: no run."""
    named = _some(name_variants(runs, (rows, columns)))
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in named:
        groups.setdefault((run.dataset or "", run.method), []).append(run)
    with styled():
        figure, axes = panels(len(groups), columns=3, size=(3.4, 2.7))
        for one, ((dataset, method), members) in zip(axes, groups.items(), strict=True):
            shown = view or _usual_view(members)
            _grid(one, members, rows, columns, shown, rule)
            one.set_title(f"{', '.join(filter(None, (dataset, method)))}\n{_view_name(shown, members)}: accuracy (%)")
        return save(figure, out, name)


def _grid(axes: "Axes", runs: Sequence[Run], rows: str, columns: str, view: str, rule: Rule) -> None:
    down, across = (sorted({v for run in runs if (v := number(run.settings((key,))[0])) is not None}) for key in (rows, columns))
    cells = {
        (y, x): _over_seeds([run for run in runs if run.settings((rows, columns)) == (y, x)], view, rule) for y in down for x in across
    }
    matrix = [[math.nan if (cell := cells[y, x]) is None else 100 * cell.mean for x in across] for y in down]
    values = [value for row in matrix for value in row if not math.isnan(value)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    image = axes.imshow(matrix, cmap="cividis", vmin=low, vmax=high if high > low else low + 1, aspect="auto", origin="lower")
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            if not math.isnan(value):
                dark = value < (low + high) / 2
                axes.text(j, i, f"{value:.1f}", ha="center", va="center", fontsize=8, color="white" if dark else "black")
                if value == high:
                    axes.add_patch(_frame(j, i))
    axes.set_xticks(range(len(across)), [f"{value:g}" for value in across])
    axes.set_yticks(range(len(down)), [f"{value:g}" for value in down])
    axes.set(xlabel=columns, ylabel=rows)
    axes.grid(visible=False)
    axes.figure.colorbar(image, ax=axes)


def _frame(column: int, row: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.48, row - 0.46), 0.96, 0.92, fill=False, edgecolor="#d55e00", linewidth=2)


# ------------------------------------------------------------------------------------------------------ clients over rounds


def invariance(runs: Sequence[Run], out: Path, *, name: str = "invariance") -> list[Path]:
    """Does the server's step go along with every client? Cosines by client, a panel for each method, and the generalisation gap.

    The gap is the accuracy on the source domains' validation data less that on the held-out domain. All lines are means over seeds.
    """
    named = _some(name_variants(runs))
    methods = _by_method(named)
    gaps = any(_gap(record) is not None for run in named for record in run.records)
    with styled():
        figure, axes = panels(len(methods) + gaps)
        for one, (method, members) in zip(axes, methods.items(), strict=False):
            _cosines(one, members)
            one.set(title=method, xlabel="round", ylabel="cosine of client and step" if one is axes[0] else "")
        _same_heights(axes[: len(methods)])
        if gaps:
            _curves(axes[-1], named, looks(methods), _gap)
            axes[-1].set(title="generalisation gap", xlabel="round", ylabel="source less unseen (points)")
            axes[-1].legend()
        for one in axes:
            _whole_numbers(one)
        legend(figure, axes[: len(methods)])
        return save(figure, out, name)


def _cosines(axes: "Axes", runs: Sequence[Run]) -> None:
    names = dict.fromkeys(
        (client, str(mapping(values).get("name") or f"client {client}"))
        for run in runs
        for record in run.records
        for client, values in mapping(record.get("clients")).items()
    )
    styles = looks(f"client {label}" for _, label in names)
    for (client, label), look in zip(names, styles.values(), strict=False):
        points = curve(runs, partial(_of_client, client=client, key="cosine"))
        axes.plot([at for at, _ in points], [found.mean for _, found in points], label=label, color=look.colour)
    axes.axhline(0, color="#888888", linewidth=0.8)


def _of_client(record: Record, client: str, key: str) -> float | None:
    return number(mapping(mapping(record.get("clients")).get(client)).get(key))


def _gap(record: Record) -> float | None:
    sources, unseen = validation_accuracy(record), view_value(record, "target")
    return None if sources is None or unseen is None else 100 * (sources - unseen)


def heat_map(run: Run, out: Path, *, value: str = "cosine", name: str = "heat") -> list[Path]:
    """One run: a value of every client over the rounds (`cosine`, `omg_weight`, `reference_weight`, `loss`, `norm`). Absent is white."""
    trained = [record for record in run.records if mapping(record.get("clients"))]
    names = {client: str(mapping(one).get("name") or client) for record in trained for client, one in record["clients"].items()}
    clients = sorted(names, key=lambda client: (int(client) if client.isdigit() else math.inf, client))
    values = [[_of_client(record, client, value) for record in trained] for client in clients]
    found = [cell for row in values for cell in row if cell is not None]
    if not found:
        raise UserError(f"{run.folder}: no client has a {value} in it")
    reach = max(abs(cell) for cell in found) or 1.0
    limits: dict[str, Any] = {"cmap": "PuOr", "vmin": -reach, "vmax": reach}
    if value != "cosine":
        limits = {"cmap": "cividis", "vmin": min(0.0, *found)}
    matrix = [[math.nan if cell is None else cell for cell in row] for row in values]
    with styled():
        figure, (axes,) = panels(1, size=(5.5, min(9.0, 1.0 + 0.22 * len(clients))))
        image = axes.imshow(matrix, aspect="auto", interpolation="nearest", **limits)
        step = -(-len(clients) // 40)
        axes.set_yticks(range(0, len(clients), step), [names[client] for client in clients[::step]])
        shown = range(0, len(trained), max(1, -(-len(trained) // 10)))
        axes.set_xticks(list(shown), [str(trained[at]["round"]) for at in shown])
        axes.set(xlabel="round", title=f"{value.replace('_', ' ')}: {run.method}")
        axes.grid(visible=False)
        figure.colorbar(image, ax=axes)
        return save(figure, out, name)


# ----------------------------------------------------------------------------------------------------------------- helpers


def _curves(axes: "Axes", runs: Sequence[Run], styles: Mapping[str, Look], read: Callable[[Record], float | None]) -> None:
    for method, members in _by_method(runs).items():
        points = curve(members, read)
        rounds = [at for at, _ in points]
        line = {**styles[method].line(), "markevery": max(1, len(rounds) // 8)}
        axes.plot(rounds, [found.mean for _, found in points], label=method, **line)
        if any(found.n > 1 for _, found in points):
            low, high = [found.low for _, found in points], [found.high for _, found in points]
            axes.fill_between(rounds, low, high, color=styles[method].colour, alpha=0.15, linewidth=0)


def _scaled_view(record: Record, view: str, metric: str) -> float | None:
    value = view_value(record, view, metric)
    return value if value is None or metric != "accuracy" else 100 * value


def _over_seeds(runs: Sequence[Run], view: str, rule: Rule) -> Spread | None:
    """Over seeds; where runs have several targets, the mean over the targets of each seed that has them all."""
    by: Rule = "last" if taken_late(runs, view, rule) else rule
    targets = {run.target for run in runs}
    seeds: dict[int | None, dict[str | None, float]] = {}
    values = [(run, accuracy(run.records, view, by)) for run in runs]
    if len(targets) == 1:
        return spread(value for _, value in values)
    for run, value in values:
        if value is not None:
            seeds.setdefault(run.seed, {})[run.target] = value
    return spread(fmean(found.values()) for found in seeds.values() if found.keys() == targets)


def _settings(runs: Sequence[Run], keys: Sequence[str]) -> dict[str, list[Run]]:
    """The runs by the values of these keys, in their order; the title says where they differ."""
    values = {run.settings(keys) for run in runs}
    shown = [at for at in range(len(keys)) if len({value[at] for value in values}) > 1]
    found: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: [str(value) for value in run.settings(keys)]):
        title = ", ".join(f"{keys[at].rpartition('.')[2]} {run.settings(keys)[at]}" for at in shown)
        found.setdefault(title, []).append(run)
    return found


def _scopes(runs: Sequence[Run], columns_by: Sequence[str]) -> dict[str, list[Run]]:
    """The runs by data set, target and settings; the title says where they differ."""
    found: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        settings = (f"{key.rpartition('.')[2]} {value}" for key, value in zip(columns_by, run.settings(columns_by), strict=True))
        found.setdefault((run.dataset or "", run.target or "", *settings), []).append(run)
    differing = [at for at in range(2 + len(columns_by)) if len({scope[at] for scope in found}) > 1] or [0, 1]
    return {", ".join(filter(None, (scope[at] for at in differing))): members for scope, members in found.items()}


def _by_method(runs: Sequence[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.method, []).append(run)
    return found


def _some(runs: list[Run]) -> list[Run]:
    if not runs:
        raise UserError("no run to draw: name at least one run folder (it holds metrics.jsonl)")
    return runs


def _taken(runs: Sequence[Run], view: str) -> bool:
    return any(view_value(record, view) is not None for run in runs for record in run.records)


def _usual_view(runs: Sequence[Run]) -> str:
    """The held-out domain, or the global model where none is held out."""
    found = next((view for view in VIEWS if _taken(runs, view)), None)
    if found is None:
        raise UserError("no run has a view to draw")
    return found


def _view_name(view: str, runs: Sequence[Run]) -> str:
    named = {"target": "unseen domain", "worst_group": "worst group"}
    return "source domains" if view == "global" and any(run.target for run in runs) else named.get(view, f"{view} model")


def _whole_numbers(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def _same_heights(axes: "Sequence[Axes]") -> None:
    low, high = min(one.get_ylim()[0] for one in axes), max(one.get_ylim()[1] for one in axes)
    for one in axes:
        one.set_ylim(low, high)
