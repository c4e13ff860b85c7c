"""What the command line shows of a sweep."""

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.progress import Progress, TaskID
from rich.table import Table
from rich.text import Text

from fedomg.core.errors import UserError
from fedomg.experiment import select
from fedomg.experiment.experiment import Record
from fedomg.experiment.jobs import Failure, Job, Watcher
from fedomg.experiment.sweep import STATE, Planned, SweepFolder, run_sweep
from fedomg.report.console import SELECTED_BY, console, numbers, progress_bars, results_table, show_spread


def show_sweep(planned: Sequence[Planned], out: Path, workers: int | None) -> bool:
    """Runs what is not finished, shows how it goes and what came out; says whether all is well."""
    folder, failures = run_and_show(planned, out, workers)
    if done := folder.those("finished"):
        for table in _tables([select.read_run(job.out) for job in done]):
            console.print()
            console.print(table)
        console.print(Text.assemble("\nCurves and configurations on one page: ", (f"fedomg report {out}", "bold")))
    show_failures(failures, len(planned), out / STATE)
    return not failures


def run_and_show(planned: Sequence[Planned], out: Path, workers: int | None) -> tuple[SweepFolder, dict[Path, Failure]]:
    """Runs what is not finished and shows how it goes; returns the folder, and what failed."""
    folder = SweepFolder(planned, out)
    finished = len(folder.those("finished"))
    runs = f"{len(planned)} run{'s' * (len(planned) > 1)}"
    console.print(Text.assemble((runs, "bold"), f", {finished} of them finished before -> {out}"))
    bars = progress_bars()
    try:
        with bars or nullcontext():
            return folder, run_sweep(folder, _Progress(bars, len(planned), finished), workers)
    except KeyboardInterrupt:
        raise UserError(f"stopped; the same command goes on from the last finished rounds in {out}") from None


def _tables(runs: Sequence[select.Run]) -> list[Table]:
    """One for each data set: by held-out domain where there are several, or else by view."""
    tables = []
    for dataset in dict.fromkeys(run.dataset for run in runs):
        members = [run for run in runs if run.dataset == dataset]
        several = len({run.target for run in members}) > 1
        table = _by_target(members) if several else results_table(members)
        table.title, table.title_justify = str(dataset), "left"
        tables.append(table)
    return tables


def _by_target(runs: Sequence[select.Run]) -> Table:
    """The accuracy on each held-out domain, and its mean over them where none is missing."""
    rows = select.summary(select.name_variants(runs), "selected")
    targets = list(dict.fromkeys(row.target for row in rows))
    found = {(row.method, row.target): row.views.get("global" if row.target is None else "target") for row in rows}
    most = max(len(row.seeds) for row in rows)
    caption = f"accuracy in % on {'the domain held out' if None not in targets else 'the domain held out, or all where none is'}"
    caption += f", mean ± standard deviation over {most} seeds," if most > 1 else ","
    rules = sorted({SELECTED_BY[select.selected_round(run.records)[0]] for run in runs})
    titles = [target or "none held out" for target in targets]
    table = Table("method", *titles, "mean", caption=f"{caption}\n{' or '.join(rules)}", caption_justify="left")
    for method in dict.fromkeys(row.method for row in rows):
        spreads = [found.get((method, target)) for target in targets]
        means = [spread.mean for spread in spreads if spread]
        mean = f"{100 * sum(means) / len(means):.1f}" if len(means) == len(targets) else "-"
        table.add_row(method, *(show_spread(spread, most) for spread in spreads), mean)
    return table


def show_failures(failures: Mapping[Path, Failure], runs: int, state: Path) -> None:
    """Each reason once, with the runs that it ended."""
    if not failures:
        return
    console.print(Text(f"\n{len(failures)} of {runs} runs failed; the same command tries them again:", style="bold red"))
    for reason in dict.fromkeys(failure.reason for failure in failures.values()):
        first, *others = (folder.name for folder, failure in failures.items() if failure.reason == reason)
        console.print(Text.assemble((f"  {first}" + (f" and {len(others)} more" if others else ""), "bold"), f": {reason}"))
    if any(failure.traceback for failure in failures.values()):
        console.print(f"Where in the code is said in {state}.")


class _Progress(Watcher):
    """A line for each run that has ended; on a terminal also a bar for all runs and one for each that goes on."""

    def __init__(self, bars: Progress | None, runs: int, finished: int) -> None:
        self._bars = bars
        self._runs = runs
        self._ended = finished
        self._all = None if bars is None else bars.add_task("all runs", total=runs, completed=finished, numbers="")
        self._tasks: dict[Path, TaskID] = {}
        self._last: dict[Path, tuple[float, str]] = {}

    def started(self, job: Job) -> None:
        self._last[job.out] = time.monotonic(), ""
        if self._bars:
            self._tasks[job.out] = self._bars.add_task(job.out.name, total=job.config.rounds, numbers="starting")

    def advanced(self, job: Job, record: Record) -> None:
        self._last[job.out] = self._last[job.out][0], numbers(record)
        if self._bars:
            self._bars.update(self._tasks[job.out], completed=record["round"], numbers=numbers(record))

    def noted(self, job: Job, text: str) -> None:
        console.print(f"{job.out.name}: {text}")

    def watched(self, job: Job, what: str, done: int, total: int) -> None:
        if self._bars:
            self._bars.update(self._tasks[job.out], numbers=f"{what}: {done:,}/{total:,}")

    def ended(self, job: Job, failure: Failure | None) -> None:
        self._ended += 1
        start, shown = self._last.pop(job.out)
        place = f"[{self._ended:>{len(str(self._runs))}}/{self._runs}]"
        told = f"failed: {failure.reason}" if failure else f"{shown}  {time.monotonic() - start:.1f} s"
        console.print(Text(f"{place} {job.out.name}  {told}", style="red" if failure else ""))
        if self._bars and self._all is not None:
            self._bars.remove_task(self._tasks.pop(job.out))
            self._bars.update(self._all, completed=self._ended)
