"""Tables of accuracies over runs, with the paper's own numbers beside them: what stands where. `table_formats.py` prints them.

Rows are methods, columns targets or data sets; the average over targets is taken seed by seed. What was not run stays empty.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from fedomg.core.errors import UserError
from fedomg.experiment.select import VIEWS, Rule, Run, Spread, accuracy, mapping, name_variants, selected_round, spread, taken_late
from fedomg.report import table_formats
from fedomg.report.layout import Cell, Column, Line, Table, ranked
from fedomg.report.numbers import AVERAGE, Number, Reference, numbers, reference
from fedomg.report.paired import Comparison, compare_all

RULE_TEXT: Mapping[Rule, str] = {
    "selected": "at the round that is best on the clients' validation data",
    "last": "after the last round",
    "mean_last_10": "mean over the last ten rounds",
    "best": "at the best round on the test data (an oracle)",
}
VIEW_TEXT = {
    "target": "global model on the held-out domain",
    "global": "global model on all clients",
    "worst_group": "global model on the group that it serves worst",
    "personalised": "each method's personal models on all clients",
    "adapted": "models after local training on all clients",
}
Settings = tuple[tuple[str, object], ...]


def write(
    runs: Sequence[Run],
    out: Path,
    reference: str | None = None,
    *,
    view: str | None = None,
    rule: Rule | None = None,
    columns_by: Sequence[str] = (),
    title: str | None = None,
    name: str = "table",
) -> list[Path]:
    """Writes `table.md`, `table.tex` and `table.csv` into the folder `out`, and returns their paths.

    `reference` names a table of the paper ("table2"): its layout, view and rule, its numbers beside ours. Without it there is a table
    for each view, or one of all views where there is a single target; `view` picks one. `columns_by` are configuration keys
    (`data.alpha`) in which runs stand in columns of their own rather than as variants of a method.
    """
    tables = build(runs, reference, view=view, rule=rule, columns_by=columns_by, title=title)
    written = []
    for suffix, text in table_formats.printed(tables).items():
        path = out / f"{name}.{suffix}"
        try:
            out.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", errors="replace")
        except OSError as error:
            raise UserError(f"{path}: the table cannot be written ({error.strerror})") from None
        written.append(path)
    return written


def build(
    runs: Sequence[Run],
    of_the_paper: str | None = None,
    *,
    view: str | None = None,
    rule: Rule | None = None,
    columns_by: Sequence[str] = (),
    title: str | None = None,
) -> list[Table]:
    """The tables that `write` prints."""
    if of_the_paper is not None:
        layout = reference(of_the_paper)
        return [_of_the_paper(runs, of_the_paper, layout, view or layout.view, rule or layout.headline, title)]
    named = name_variants(runs, columns_by)
    views = [view] if view else [known for known in VIEWS if any(_evaluated(run, known) for run in named)]
    one_deal = len({_deal(run, columns_by) for run in named}) == 1
    return [_of_runs(named, shown, rule or "selected", tuple(columns_by), title) for shown in ([views] if one_deal else zip(views))]


def _evaluated(run: Run, view: str) -> bool:
    return any(view in mapping(record.get("views")) for record in run.records)


def _deal(run: Run, keys: Sequence[str]) -> tuple[str | None, Settings, str | None]:
    return run.dataset, tuple(zip(keys, run.settings(keys), strict=True)), run.target


# -------------------------------------------------------------------------------------------------------------- from runs


def _of_runs(runs: Sequence[Run], views: Sequence[str], rule: Rule, columns_by: tuple[str, ...], title: str | None) -> Table:
    columns = [column for view in views for column in _columns(runs, view, columns_by)]
    lines = []
    for method in dict.fromkeys(run.method for run in runs):
        members = [run for run in runs if run.method == method]
        lines.append(Line((), method, tuple(Cell(_ours(members, column, rule)) for column in columns)))
    what = VIEW_TEXT[views[0]] if len(views) == 1 else "all views"
    return Table(
        title or f"Accuracy: {what}",
        _caption(runs, columns, lines, rule),
        rule,
        tuple(columns),
        tuple(ranked(lines, 1)),
        comparisons=tuple(comparisons(runs, views[0], rule)),
    )


def _columns(runs: Sequence[Run], view: str, columns_by: Sequence[str]) -> list[Column]:
    """The targets of each data set and setting, then their average where there are several."""
    groups: dict[tuple[str | None, Settings], list[str | None]] = {}
    for dataset, settings, target in dict.fromkeys(_deal(run, columns_by) for run in runs):
        groups.setdefault((dataset, settings), []).append(target)
    columns = []
    for (dataset, settings), targets in sorted(groups.items(), key=lambda group: _order(group[0][1])):
        columns += [Column(view, dataset, target, settings) for target in targets]
        held_out = tuple(target for target in targets if target is not None)
        columns += [Column(view, dataset, AVERAGE, settings, held_out)] if len(held_out) > 1 else []
    return columns


def _order(settings: Settings) -> list[tuple[bool, float, str]]:
    return [(False, value, "") if isinstance(value, int | float) else (True, 0.0, str(value)) for _, value in settings]


def _ours(runs: Sequence[Run], column: Column, rule: Rule) -> Spread | None:
    """The spread over the seeds of one method; read after the last round where the view was taken only then."""
    keys = [key for key, _ in column.settings]
    here = [run for run in runs if _deal(run, keys)[:2] == (column.dataset, column.settings)]
    by: Rule = "last" if taken_late(here, column.view, rule) else rule
    if not column.averaged:
        return spread(accuracy(run.records, column.view, by) for run in here if run.target == column.target)
    return spread(_averages(here, column, by))


def _averages(runs: Sequence[Run], column: Column, rule: Rule) -> list[float]:
    """The mean over all targets, of each seed that has exactly one run on each."""
    by_seed: dict[int | None, dict[str | None, list[float | None]]] = {}
    for run in runs:
        by_seed.setdefault(run.seed, {}).setdefault(run.target, []).append(accuracy(run.records, column.view, rule))
    means = []
    for by_target in by_seed.values():
        found = [by_target.get(target, []) for target in column.averaged]
        values = [value for one in found if len(one) == 1 for value in one if value is not None]
        if len(values) == len(column.averaged):
            means.append(math.fsum(values) / len(values))
    return means


def comparisons(runs: Sequence[Run], view: str, rule: Rule) -> list[Comparison]:
    """Pairs of methods and whether the difference between them is more than noise."""
    methods: dict[str, list[Run]] = {}
    for run in runs:
        methods.setdefault(run.method, []).append(run)
    by: Rule = "last" if taken_late(runs, view, rule) else rule
    return compare_all(methods, partial(_accuracy, view=view, rule=by))


def _accuracy(run: Run, view: str, rule: Rule) -> float | None:
    return accuracy(run.records, view, rule)


# ---------------------------------------------------------------------------------------------------------- of the paper


def _of_the_paper(runs: Sequence[Run], name: str, layout: Reference, view: str, rule: Rule, title: str | None) -> Table:
    """The paper's columns and rows in its order, then the methods that it does not have; variants of a method are not the paper's."""
    printed = numbers(name)
    named = name_variants(runs, (*layout.columns_by, *layout.sections_by))
    columns = list(dict.fromkeys(_column(number, view, layout, printed) for number in printed))
    sections = list(dict.fromkeys(_part(number, layout.sections_by) for number in printed))
    methods = list(dict.fromkeys([*(number.method for number in printed), *(run.method for run in named)]))
    known = {(_part(number, layout.sections_by), number.method, _column(number, view, layout, printed)): number for number in printed}
    lines = []
    for section in sections:
        there = [run for run in named if _deal(run, layout.sections_by)[1] == section]
        for method in methods:
            members = [run for run in there if run.method == method]
            cells = [
                Cell(_ours(members, column, rule), _ours(members, column, layout.published), known.get((section, method, column)))
                for column in columns
            ]
            if any(cell.ours or cell.paper for cell in cells):
                lines.append(Line(section, method, tuple(cells)))
    digits = max(number.digits for number in printed)
    return Table(
        title or f"{layout.title} ({name} of the paper)",
        _caption(named, columns, lines, rule, layout),
        rule,
        tuple(columns),
        tuple(ranked(lines, digits)),
        digits,
        layout.published,
        tuple(comparisons(named, view, rule)) if named else (),
    )


def _column(number: Number, view: str, layout: Reference, printed: Sequence[Number]) -> Column:
    averaged = [other.target for other in printed if other.dataset == number.dataset] if number.target == AVERAGE else []
    targets = tuple(dict.fromkeys(target for target in averaged if target and target != AVERAGE))
    return Column(view, number.dataset, number.target, _part(number, layout.columns_by), targets)


def _part(number: Number, keys: Sequence[str]) -> Settings:
    return tuple((key, number.settings.get(key)) for key in keys)


# ----------------------------------------------------------------------------------------------------------------- caption


def _caption(runs: Sequence[Run], columns: Sequence[Column], lines: Sequence[Line], rule: Rule, layout: Reference | None = None) -> str:
    views = list(dict.fromkeys(column.view for column in columns))
    seeds = max((cell.ours.n for line in lines for cell in line.cells if cell.ours), default=0)
    over = {0: "no run of it here", 1: "one seed"}.get(seeds, f"mean ± sample standard deviation over n = {seeds} seeds")
    sentences = [f"Accuracy in percent, {_read(runs, rule)}: {over}, another n stands beside its number"]
    if seeds < 2:
        sentences = [f"Accuracy in percent, {_read(runs, rule)}: {over}"]
    sentences += ["Views: " + "; ".join(f"{view.replace('_', ' ')} ({VIEW_TEXT[view]})" for view in views)] if len(views) > 1 else []
    late = [view for view in views if runs and taken_late(runs, view, rule)]
    sentences += [f"Read after the last round, the only one with them: {', '.join(late).replace('_', ' ')}"] if late else []
    if any(column.averaged for column in columns):
        sentences.append("Averages over targets are taken seed by seed, over seeds that have all of them")
    if layout:
        how = f", where ours is taken {RULE_TEXT[layout.published]}" if layout.published != rule else ""
        sentences.append(f"Difference: ours less the paper's{how}")
        sentences += [note.rstrip(".") for note in layout.notes]
    return ". ".join(sentences) + "."


def _read(runs: Sequence[Run], rule: Rule) -> str:
    """How the numbers were picked; runs without validation data have only a last round."""
    found = {selected_round(run.records)[0] for run in runs} if rule == "selected" else set()
    if found == {"last"}:
        return RULE_TEXT["last"]
    return RULE_TEXT[rule] + (" (the last where there are none)" if "last" in found else "")
