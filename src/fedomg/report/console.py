"""What the command line shows while it works and when it is done."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedomg.core.errors import UserError
from fedomg.data.baseline import largest_class
from fedomg.experiment.config import Config, make_config
from fedomg.experiment.experiment import build_federation
from fedomg.experiment.jobs import Job, run_jobs
from fedomg.experiment.runner import run
from fedomg.experiment.select import Spread, read_run, selected_round, summary
from fedomg.report.html import write_report

console = Console(highlight=False, soft_wrap=True)

Row = Mapping[str, Any]
VIEW_TITLES = {
    "target": "unseen domain",
    "global": "source domains",
    "worst_group": "worst source domain",
    "personalised": "personalised",
    "adapted": "adapted",
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


def show_run(config: Config, out: Path | None, resume: bool) -> None:
    folder = out or _default_folder(config)
    console.print(f"[bold]{config.method}[/bold] on {config.dataset}, seed {config.seed} -> {folder}")
    with _progress() as show:
        task = show.add(config.method, config.rounds)
        try:
            result = run(config, folder, resume, lambda record: show.update(task, record), console.print)
        except KeyboardInterrupt:
            raise UserError(f"stopped; continue with --resume --out {folder}") from None
    rule = result["selection"]
    console.print(f"\nselected by {rule['rule']}: round {rule['round']} of {config.rounds}; {result['seconds']:.1f} s")
    columns = ("selected", "final", "mean_last_10", "best")
    table = Table("view", *columns, box=None, pad_edge=False, header_style="bold")
    for view in result["final"]:
        table.add_row(VIEW_TITLES[view], *(_percent(result[column].get(view)) for column in columns))
    console.print(table)


def _default_folder(config: Config) -> Path:
    parts = (config.method, config.dataset, config.target, f"seed{config.seed}", config.hash()[:6])
    return Path("runs") / "-".join(part for part in parts if part)


class _Display:
    """A bar for each run on a terminal, a line for each round elsewhere."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._rounds: list[tuple[str, int]] = []
        self._shown: dict[int, int] = {}

    def add(self, name: str, rounds: int) -> int:
        self._rounds.append((name, rounds))
        if self._progress:
            return self._progress.add_task(name, total=rounds, numbers="starting")
        return len(self._rounds) - 1

    def update(self, task: int, record: Row | None) -> None:
        if record is None:
            return
        if self._progress:
            self._progress.update(TaskID(task), completed=record["round"], numbers=_numbers(record))
        elif self._shown.get(task, -1) != record["round"]:
            self._shown[task] = record["round"]
            name, rounds = self._rounds[task]
            console.print(f"{name}: round {record['round']}/{rounds}  {_numbers(record)}  {record['seconds']['total']:.1f} s")


@contextmanager
def _progress() -> Iterator[_Display]:
    if not console.is_terminal:
        yield _Display(None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    with Progress(*columns, console=console) as progress:
        yield _Display(progress)


def _numbers(record: Row) -> str:
    view = next((record["views"][name] for name in ("target", "global") if name in record["views"]), None)
    if view is None:
        losses = [client["loss"] for client in record["clients"].values() if client["loss"] is not None]
        return f"training loss {sum(losses) / len(losses):.3f}" if losses else ""
    loss = "not finite" if view["loss"] is None else f"{view['loss']:.3f}"
    return f"accuracy {100 * view['accuracy']:.1f} %  loss {loss}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


SELECTED_BY = {
    "validation": "at the round that is best on the source domains' validation data",
    "last": "at the last round",
}

DEMO = {
    "dataset": "emoji",
    "local": {"epochs": 1, "batch_size": 32, "lr": 0.02, "momentum": 0.9},
    "model": {"name": "cnn"},
    "evaluate": {"personalised": "never", "adapted": "never"},
}
DEMO_METHODS = ("fedavg", "fedomg")


def show_demo(out: Path, target: str, seeds: int, rounds: int) -> None:
    """The main job on the embedded data set: who serves a style that nobody has trained on?"""
    jobs = [_demo_job(out, method, target, seed, rounds) for seed in range(seeds) for method in DEMO_METHODS]
    federation = build_federation(jobs[0].config)
    sources = ", ".join(client.name for client in federation.clients)
    console.print(f"The same emoji, drawn by different hands. Clients: {sources}. Held out: [bold]{target}[/bold].\n")
    with _progress() as show:
        tasks = [show.add(f"{job.config.method:<10} seed {job.config.seed}", rounds) for job in jobs]

        def observe() -> None:
            for task, job in zip(tasks, jobs, strict=True):
                show.update(task, job.progress())

        try:
            run_jobs(jobs, observe)
        except KeyboardInterrupt:
            raise UserError(f"stopped; the same command goes on from the last finished rounds in {out}") from None
    label, baseline = largest_class(federation)
    baselines = {f"always {label!r}": baseline}
    console.print()
    console.print(_demo_table([job.out for job in jobs], baselines))
    page = write_report([job.out for job in jobs], out / "report.html", f"Emoji in a style never seen: {target}", baselines)
    console.print(f"\nCurves, weights and cosines: [bold]{page}[/bold]")


def _demo_job(out: Path, method: str, target: str, seed: int, rounds: int) -> Job:
    config = make_config({**DEMO, "method": method, "target": target, "seed": seed, "rounds": rounds})
    return Job(config, out / target / f"{config.method}-seed{seed}")


def _demo_table(folders: Sequence[Path], baselines: Mapping[str, Mapping[str, float]]) -> Table:
    views = ("target", "global", "worst_group")
    runs = [read_run(folder) for folder in folders]
    rules = {selected_round(run.records)[0] for run in runs}
    seeds = len({run.seed for run in runs})
    chosen = " or ".join(SELECTED_BY[rule] for rule in sorted(rules))
    caption = f"accuracy in %, mean ± standard deviation over {seeds} seeds,\n{chosen}"
    table = Table("method", *(VIEW_TITLES[view] for view in views), caption=caption, caption_justify="left")
    for row in summary(runs, "selected"):
        table.add_row(row.method, *(_spread(row.views.get(view)) for view in views))
    for name, scores in baselines.items():
        table.add_row(name, *(_percent(scores.get(view)) for view in views), style="dim")
    return table


def _spread(found: Spread | None) -> str:
    if found is None:
        return "-"
    return _percent(found.mean) + ("" if found.std is None else f" ± {100 * found.std:.1f}")
