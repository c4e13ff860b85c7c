"""The demo: the main job on the embedded data set."""

from pathlib import Path

from rich.text import Text

from fedomg.core.errors import UserError
from fedomg.data.baseline import largest_class
from fedomg.experiment.config import make_config
from fedomg.experiment.experiment import build_federation
from fedomg.experiment.jobs import Job, run_jobs
from fedomg.experiment.select import read_run
from fedomg.report.console import console, progress, results_table
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
    console.print(results_table([read_run(job.out) for job in jobs], baselines))
    page = write_report([job.out for job in jobs], out / "report.html", f"Emoji in a style never seen: {target}", baselines)
    console.print(Text.assemble("\nCurves, weights and cosines: ", (str(page), "bold")))


def _demo_job(out: Path, method: str, target: str, seed: int, rounds: int) -> Job:
    config = make_config({**DEMO, "method": method, "target": target, "seed": seed, "rounds": rounds})
    return Job(config, out / target / f"{config.method}-seed{seed}")
