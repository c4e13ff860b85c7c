"""Several runs at once, in worker processes that take one after the other.

A run that fails ends nothing but itself: neither the others, nor, unless it kills its process, the worker. What crosses is JSON.
"""

import json
import multiprocessing
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fedomg.core.errors import explained
from fedomg.core.imports import reason
from fedomg.core.processes import end, follow_the_parent, interrupts_kept_from_children
from fedomg.experiment.config import Config, make_config
from fedomg.experiment.engines import cores
from fedomg.experiment.experiment import Record
from fedomg.experiment.files import to_json
from fedomg.experiment.runner import run
from fedomg.experiment.shelf import Shelf, shelf_key

PATIENCE = 1.0


@dataclass(frozen=True)
class Job:
    config: Config
    out: Path

    @property
    def examples(self) -> str:
        """Equal for jobs that train on the same examples."""
        return shelf_key(self.config)


@dataclass(frozen=True)
class Failure:
    """Why a run has no result: one line, and where the fault is not the user's, the traceback."""

    reason: str
    traceback: str | None = None


class Watcher:
    """Is told what happens to the jobs. Records come from before a resume, too."""

    def started(self, job: Job) -> None:
        pass

    def advanced(self, job: Job, record: Record) -> None:
        pass

    def noted(self, job: Job, text: str) -> None:
        pass

    def watched(self, job: Job, what: str, done: int, total: int) -> None:
        pass

    def ended(self, job: Job, failure: Failure | None) -> None:
        pass


def run_jobs(jobs: Sequence[Job], watcher: Watcher, workers: int | None = None) -> dict[Path, Failure]:
    """Runs or resumes all jobs, so many at a time; returns those that failed, by their folder. No process is left behind."""
    count = min(len(jobs), workers or cores())
    share = max(1, cores() // max(1, count))
    waiting, failures, crew = list(jobs), dict[Path, Failure](), list[_Worker]()
    try:
        while waiting or any(worker.job for worker in crew):
            while waiting and len(crew) < count:
                crew.append(_Worker(share))
            for worker in crew:
                if waiting and worker.job is None:
                    watcher.started(worker.give(_next(waiting, worker.examples)))
            for worker in _heard(crew):
                failures |= _pass_on(worker, watcher)
            crew = [worker for worker in crew if worker.alive]
    finally:
        for worker in crew:
            worker.end()
    return failures


def _pass_on(worker: "_Worker", watcher: Watcher) -> dict[Path, Failure]:
    """Tells the watcher what the worker has to say; returns the failure of its job, if it is that."""
    job, message = worker.job, worker.receive()
    assert job is not None
    if "record" in message:
        watcher.advanced(job, message["record"])
    elif "note" in message:
        watcher.noted(job, message["note"])
    elif "watch" in message:
        watcher.watched(job, *message["watch"])
    else:
        failure = Failure(**message["failure"]) if message["failure"] else None
        watcher.ended(job, failure)
        return {job.out: failure} if failure else {}
    return {}


def _next(waiting: list[Job], examples: str | None) -> Job:
    """The first job with examples that the worker holds already, or else the first."""
    place = next((place for place, job in enumerate(waiting) if job.examples == examples), 0)
    return waiting.pop(place)


def _heard(crew: "Sequence[_Worker]") -> "list[_Worker]":
    busy = {worker.connection: worker for worker in crew if worker.job}
    return [busy[found] for found in wait(list(busy)) if isinstance(found, Connection)]


class _Worker:
    """A worker as seen from here. `examples` says what it holds from its last job."""

    def __init__(self, share: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, share), name="fedomg run")
        with interrupts_kept_from_children():
            self._process.start()
        theirs.close()
        self.job: Job | None = None
        self.examples: str | None = None
        self.alive = True

    def give(self, job: Job) -> Job:
        self.job, self.examples = job, job.examples
        with suppress(OSError):  # one that has died says so when it is listened to
            self.connection.send_bytes(json.dumps({"config": job.config.table(), "out": str(job.out)}).encode())
        return job

    def receive(self) -> dict[str, Any]:
        try:
            message: dict[str, Any] = json.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            self.alive = False
            message = {"failure": {"reason": f"its process has ended ({self.end(PATIENCE)})"}}
        if "failure" in message:
            self.job = None
        return message

    def end(self, patience: float = 0.0) -> str:
        self.connection.close()
        return end(self._process, patience)


# ---------------------------------------------------------------------------------------------------------- in the worker


def serve(connection: Connection, share: int) -> None:
    """Runs what it is given until the pipe ends. `share` is how many cores each run may use."""
    follow_the_parent()
    shelf = Shelf()

    def tell(**message: Any) -> None:
        connection.send_bytes(to_json(message).encode())

    with suppress(EOFError, OSError):
        while True:
            given = json.loads(connection.recv_bytes())
            failure = None
            try:
                run(
                    make_config(given["config"]),
                    Path(given["out"]),
                    resume=True,
                    observe=lambda record: tell(record=record),
                    note=lambda text: tell(note=text),
                    watch=lambda what, done, total: tell(watch=[what, done, total]),
                    shelf=shelf,
                    share=share,
                )
            except Exception as error:
                known = explained(error)
                failure = {"reason": known or reason(error), "traceback": None if known else traceback.format_exc()}
            tell(failure=failure)
