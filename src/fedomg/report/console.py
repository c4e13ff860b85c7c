"""What the command line shows while it works and when it is done."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fedomg.core.errors import UserError
from fedomg.core.names import known
from fedomg.experiment import select
from fedomg.experiment.config import Config
from fedomg.experiment.naming import folder_name
from fedomg.experiment.runner import run
from fedomg.report import plots, tables
from fedomg.report.html import write_report
from fedomg.report.trackers import TRACKERS, Following, send

console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
"""The one console. What users and files name is never read as markup; what stands out is a `Text`."""

Row = Mapping[str, Any]
SELECTED_BY = {
    "validation": "at the round that is best on the clients' validation data",
    "last": "at the last round",
}


def show_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(_text(row[column]) for column in columns))
    console.print(table)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "-"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def show_run(config: Config, out: Path | None, resume: bool, track: Sequence[str] = ()) -> None:
    folder = out or Path("runs") / folder_name(config)
    console.print(Text.assemble((config.method, "bold"), f" on {config.dataset}, seed {config.seed} -> {folder}"))
    with progress() as show, Following(track, folder, config.table()) as following:
        task = show.add(config.method, config.rounds)

        def observe(record: Row) -> None:
            show.update(task, record)
            following.log(record)

        try:
            result = run(config, folder, resume, observe, console.print, show.watch)
            following.summarise(result)
        except KeyboardInterrupt:
            raise UserError(f"stopped; continue with --resume --out {folder}") from None
    rule = result["selection"]
    console.print(f"\nselected by {rule['rule']}: round {rule['round']} of {config.rounds}; {result['seconds']:.1f} s")
    views = [view for view in select.VIEWS if view in result["final"]]
    if not views:
        console.print("no view was taken of any test data, so there is no accuracy to show")
        return
    columns = ("selected", "final", "mean_last_10", "best")
    table = Table("view", *columns, box=None, pad_edge=False, header_style="bold")
    for view in views:
        table.add_row(view_title(view, config.target is not None), *(_percent(result[column].get(view)) for column in columns))
    console.print(table)


class Display:
    """A bar for each run on a terminal, a line for each round elsewhere."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._rounds: list[tuple[str, int]] = []
        self._watched: dict[str, TaskID] = {}
        self._tenths: dict[str, int] = {}

    def add(self, name: str, rounds: int) -> int:
        self._rounds.append((name, rounds))
        if self._progress:
            return self._progress.add_task(name, total=rounds, numbers="starting")
        return len(self._rounds) - 1

    def update(self, task: int, record: Row) -> None:
        if self._progress:
            self._progress.update(TaskID(task), completed=record["round"], numbers=numbers(record))
        else:
            name, rounds = self._rounds[task]
            console.print(f"{name}: round {record['round']}/{rounds}  {numbers(record)}  {record['seconds']['total']:.1f} s")

    def watch(self, what: str, done: int, total: int) -> None:
        """How far something has come that is done once: a bar of its own, or about ten lines."""
        if self._progress:
            if what not in self._watched:
                self._watched[what] = self._progress.add_task(what, total=total, numbers="")
            self._progress.update(self._watched[what], completed=done)
        elif 10 * done // total > self._tenths.get(what, 0):
            self._tenths[what] = 10 * done // total
            console.print(f"{what}: {done:,}/{total:,}")


@contextmanager
def progress() -> Iterator[Display]:
    bars = progress_bars()
    with bars or nullcontext():
        yield Display(bars)


def progress_bars() -> Progress | None:
    """One a task, with a field `numbers`; None where there is no terminal to draw them on."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12),
        TextColumn("{task.completed}/{task.total}", markup=False),
        TextColumn("{task.fields[numbers]}", markup=False),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    return Progress(*columns, console=console) if console.is_terminal else None


def numbers(record: Row) -> str:
    dropped = f"{len(record['dropped'])} dropped" if record["dropped"] else ""
    return "  ".join(filter(None, (_performance(record), dropped)))


def _performance(record: Row) -> str:
    view = next((record["views"][name] for name in ("target", "global") if name in record["views"]), None)
    if view is None:
        losses = [client["loss"] for client in record["clients"].values() if client["loss"] is not None]
        return f"training loss {sum(losses) / len(losses):.3f}" if losses else ""
    loss = "not finite" if view["loss"] is None else f"{view['loss']:.3f}"
    return f"accuracy {100 * view['accuracy']:.1f} %  loss {loss}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def view_title(view: str, held_out: bool) -> str:
    """With a domain held out the clients are the source domains."""
    if view == "global":
        return "source domains" if held_out else "global model"
    if view == "worst_group":
        return "worst source domain" if held_out else "worst group"
    return "unseen domain" if view == "target" else view


def results_table(runs: Sequence[select.Run], baselines: Mapping[str, Mapping[str, float]] | None = None) -> Table:
    """Each method's accuracy in each view, over its seeds."""
    rows = select.summary(select.name_variants(runs), "selected")
    views = [view for view in select.VIEWS if any(view in row.views for row in rows)]
    scopes = {(row.dataset, row.target) for row in rows}
    rules = sorted({select.selected_round(run.records)[0] for run in runs})
    most = max(len(row.seeds) for row in rows)
    spread = f"mean ± standard deviation over {most} seeds,\n" if most > 1 else ""
    titles = {view: view_title(view, any(target for _, target in scopes)) for view in views}
    caption = f"accuracy in %, {spread}{' or '.join(SELECTED_BY[rule] for rule in rules)}{_late_views(rows, titles)}"
    table = Table("method", *(["data"] if len(scopes) > 1 else []), *titles.values(), caption=caption, caption_justify="left")
    for row in rows:
        scope = [" / ".join(filter(None, (row.dataset, row.target)))] if len(scopes) > 1 else []
        table.add_row(row.method, *scope, *(show_spread(row.views.get(view), most) for view in views))
    for name, scores in (baselines or {}).items():
        table.add_row(name, *([""] if len(scopes) > 1 else []), *(_percent(scores.get(view)) for view in views), style="dim")
    return table


def show_report(folders: Sequence[Path], out: Path | None, of_the_paper: str | None = None) -> None:
    runs = [select.read_run(folder) for folder in select.find_runs(folders)]
    console.print(results_table(runs))
    page = out or folders[0] / "report.html"
    write_report([run.folder for run in runs], page)
    console.print()
    show_files(runs, page, of_the_paper)


def show_files(runs: Sequence[select.Run], page: Path, of_the_paper: str | None = None) -> None:
    """Writes the tables and the curves beside the page, and says where all of them are."""
    console.print(f"Tables: {_names(tables.write(runs, page.parent, of_the_paper))}")
    try:
        console.print(f"Plots: {_names(plots.curves(runs, page.parent))}")
    except UserError as error:
        console.print(f"No plots: {error}")
    console.print(Text.assemble("Curves, weights and cosines: ", (str(page), "bold")))


def _names(written: Sequence[Path]) -> str:
    """One path for the files that differ in their endings alone."""
    return f"{written[0].with_suffix('')}.{{{','.join(path.suffix[1:] for path in written)}}}"


def show_tracking(tracker: str, folders: Sequence[Path]) -> None:
    known("tracker", tracker, TRACKERS)
    for folder in select.find_runs(folders):
        console.print(f"{folder}: {send([tracker], folder)} records sent to {tracker}")


def show_spread(found: select.Spread | None, runs: int) -> str:
    """With its n, where that is less than the caption says."""
    if found is None:
        return "-"
    deviation = "" if found.std is None else f" ± {100 * found.std:.1f}"
    return _percent(found.mean) + deviation + (f" (n = {found.n})" if found.n < runs else "")


def _late_views(rows: Sequence[select.SummaryRow], titles: Mapping[str, str]) -> str:
    """A line for each view that some rows could read after the last round only."""
    lines = ""
    for view, title in titles.items():
        late = [row.method for row in rows if view in row.late]
        some = len(late) < sum(view in row.views for row in rows)
        if late:
            lines += f"\n{title}: after the last round" + (f" ({', '.join(late)})" if some else "")
    return lines
