"""The demo: the main job on the embedded data set."""

from collections.abc import Mapping
from pathlib import Path

from rich.text import Text

from fedomg.core.errors import UserError
from fedomg.data.baseline import largest_class
from fedomg.experiment.config import make_config
from fedomg.experiment.experiment import Record, build_federation
from fedomg.experiment.jobs import Failure, Job, Watcher, run_jobs
from fedomg.experiment.select import read_run
from fedomg.report.console import Display, console, progress, results_table, show_files
from fedomg.report.html import write_report

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
    console.print(Text.assemble(f"The same emoji, drawn by different hands. Clients: {sources}. Held out: ", (target, "bold"), ".\n"))
    with progress() as show:
        tasks = {job.out: show.add(f"{job.config.method:<10} seed {job.config.seed}", rounds) for job in jobs}
        try:
            failures = run_jobs(jobs, _Bars(show, tasks))
        except KeyboardInterrupt:
            raise UserError(f"stopped; the same command goes on from the last finished rounds in {out}") from None
    _require_all(failures)
    label, baseline = largest_class(federation)
    baselines = {f"always {label!r}": baseline}
    console.print()
    runs = [read_run(job.out) for job in jobs]
    console.print(results_table(runs, baselines))
    page = write_report([job.out for job in jobs], out / "report.html", f"Emoji in a style never seen: {target}", baselines)
    console.print()
    show_files(runs, page)


def _demo_job(out: Path, method: str, target: str, seed: int, rounds: int) -> Job:
    config = make_config({**DEMO, "method": method, "target": target, "seed": seed, "rounds": rounds})
    return Job(config, out / target / f"{config.method}-seed{seed}")


class _Bars(Watcher):
    def __init__(self, show: Display, tasks: Mapping[Path, int]) -> None:
        self._show = show
        self._tasks = tasks

    def advanced(self, job: Job, record: Record) -> None:
        self._show.update(self._tasks[job.out], record)

    def noted(self, job: Job, text: str) -> None:
        console.print(text)


def _require_all(failures: Mapping[Path, Failure]) -> None:
    for folder, failure in failures.items():
        if failure.traceback:
            raise RuntimeError(failure.traceback)
        raise UserError(f"the run in {folder} has failed: {failure.reason}")
