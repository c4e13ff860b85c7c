"""Several runs at once, each in a process of its own; their progress is read from their folders."""

import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedomg.experiment.config import Config
from fedomg.experiment.runner import METRICS, run

POLL_SECONDS = 0.25


@dataclass(frozen=True)
class Job:
    config: Config
    out: Path

    def progress(self) -> dict[str, Any] | None:
        """The last finished record."""
        path = self.out / METRICS
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return json.loads(lines[-1]) if lines else None


def run_jobs(jobs: Sequence[Job], observe: Callable[[], None], workers: int | None = None) -> None:
    """Runs or resumes all jobs; `observe` is called a few times a second. The first error stops the rest."""
    count = min(len(jobs), workers or os.cpu_count() or 1)
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        pending: set[Future[Any]] = {pool.submit(run, job.config, job.out, True) for job in jobs}
        try:
            while pending:
                done, pending = wait(pending, POLL_SECONDS, FIRST_EXCEPTION)
                observe()
                for future in done:
                    future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
