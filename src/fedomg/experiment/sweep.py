"""Many runs from one file: every combination of the lists in its `[sweep]` table."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from fedomg.core.errors import UserError
from fedomg.core.names import known
from fedomg.data.catalogue import declared_domains, domain_names
from fedomg.experiment.config import Config, Table, flat, make_config, read_table, with_value
from fedomg.experiment.experiment import Record
from fedomg.experiment.files import make_folder, to_json, write_atomically
from fedomg.experiment.jobs import Failure, Job, Watcher, run_jobs
from fedomg.experiment.naming import folder_name
from fedomg.experiment.runner import RESULT

SWEEP, TARGET, ALL = "sweep", "target", "all"
STATE = "sweep.json"
State = Literal["waiting", "running", "finished", "failed"]


@dataclass(frozen=True)
class Planned:
    """One run of a sweep, and which of its settings the sweep chose."""

    config: Config
    settings: Table

    @property
    def name(self) -> str:
        return folder_name(self.config, self.settings)


def load_sweep(path: Path, overrides: Sequence[str] = ()) -> list[Planned]:
    table = read_table(path, overrides)
    if SWEEP not in table:
        raise UserError(f"{path} has no [sweep] table, such as [sweep] with seed = [0, 1, 2]; a single experiment is for fedomg run")
    return plan(table)


def plan(table: Table) -> list[Planned]:
    """All runs of a sweep, in the order of its lists, the last of them changing fastest; each once. All are validated."""
    lists = table[SWEEP]
    if not isinstance(lists, Mapping) or not lists:
        raise UserError(f"[{SWEEP}] is a table of lists, such as seed = [0, 1, 2] (got {lists!r})")
    base = {key: value for key, value in table.items() if key != SWEEP}
    choices = [_choices(key, entries) for key, entries in flat(lists).items()]
    found: dict[str, Planned] = {}
    for combination in product(*choices):
        for planned in _with_targets(base, _together(combination)):
            found.setdefault(planned.config.hash(), planned)
    return list(found.values())


def _choices(key: str, entries: Any) -> list[Table]:
    """Each entry of a list as the settings that it stands for: those of a table, or one value of the key."""
    if key == TARGET and entries == ALL:
        return [{TARGET: ALL}]
    if not isinstance(entries, list) or not entries:
        example = ' or "all"' if key == TARGET else ""
        raise UserError(f"{SWEEP}.{key} must be a list of values or tables{example} (got {entries!r})")
    return [flat(entry) if isinstance(entry, Mapping) else {key: entry} for entry in entries]


def _together(combination: Sequence[Table]) -> Table:
    settings: Table = {}
    for chosen in combination:
        if twice := settings.keys() & chosen.keys():
            raise UserError(f"[{SWEEP}]: {', '.join(sorted(twice))} is set by two lists at once")
        settings |= chosen
    return settings


def _with_targets(base: Table, settings: Table) -> Iterator[Planned]:
    if settings.get(TARGET) != ALL:
        yield _planned(base, settings)
        return
    free = _planned({key: value for key, value in base.items() if key != TARGET}, {k: v for k, v in settings.items() if k != TARGET}).config
    domains = domain_names(free.dataset, free.data, free.seed)
    if len(domains) < 2:
        raise UserError(f'{SWEEP}.{TARGET} = "{ALL}": data set "{free.dataset}" has a single domain, and none can be held out')
    for domain in domains:
        yield _planned(base, {**settings, TARGET: domain})


def _planned(base: Table, settings: Table) -> Planned:
    table = base
    try:
        for key, value in settings.items():
            table = with_value(table, key.split("."), value, f"{SWEEP}.{key}")
        config = make_config(table)
        if config.target is not None and (domains := declared_domains(config.dataset)):
            known("domain", config.target, domains)
    except UserError as error:
        chosen = ", ".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
        raise UserError(f"{error} (in the run with {chosen})") from None
    return Planned(config, settings)


def is_finished(config: Config, folder: Path) -> bool:
    """Whether the folder holds the result of exactly this configuration."""
    try:
        result = json.loads((folder / RESULT).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(result, dict) and result.get("config_hash") == config.hash()


class SweepFolder:
    """The runs of a sweep, each in a folder of its own, and what has become of them, in one file."""

    def __init__(self, planned: Sequence[Planned], out: Path) -> None:
        self.jobs = [Job(run.config, out / run.name) for run in planned]
        self._out = out
        self._planned = {job.out: run for job, run in zip(self.jobs, planned, strict=True)}
        self._states: dict[Path, State] = {job.out: "finished" if is_finished(job.config, job.out) else "waiting" for job in self.jobs}
        self._failures: dict[Path, Failure] = {}

    def those(self, state: State) -> list[Job]:
        return [job for job in self.jobs if self._states[job.out] == state]

    def enter(self, job: Job, state: State, failure: Failure | None = None) -> None:
        self._states[job.out] = state
        if failure:
            self._failures[job.out] = failure
        self.write()

    def write(self) -> None:
        make_folder(self._out)
        rows = [self._row(folder, run) for folder, run in self._planned.items()]
        write_atomically(self._out / STATE, (to_json({"runs": rows}, indent=1) + "\n").encode())

    def _row(self, folder: Path, run: Planned) -> Table:
        failure = self._failures.get(folder)
        return {
            "folder": folder.name,
            "method": run.config.method,
            "dataset": run.config.dataset,
            "target": run.config.target,
            "seed": run.config.seed,
            "settings": run.settings,
            "config_hash": run.config.hash(),
            "state": self._states[folder],
            **({} if failure is None else {"reason": failure.reason, "traceback": failure.traceback}),
        }


def run_sweep(folder: SweepFolder, watcher: Watcher, workers: int | None = None) -> dict[Path, Failure]:
    """Runs what is not finished and returns what failed. Where it is stopped, the next call goes on."""
    folder.write()
    try:
        return run_jobs(folder.those("waiting"), _Recorder(folder, watcher), workers or default_workers(folder.jobs))
    finally:
        for job in folder.those("running"):
            folder.enter(job, "waiting")


def default_workers(jobs: Sequence[Job]) -> int | None:
    """One a core, but one in all where runs share an accelerator's memory."""
    return 1 if any(job.config.engine.device != "cpu" for job in jobs) else None


class _Recorder(Watcher):
    """Writes down what becomes of the runs, and passes it on."""

    def __init__(self, folder: SweepFolder, watcher: Watcher) -> None:
        self._folder = folder
        self._watcher = watcher

    def started(self, job: Job) -> None:
        self._folder.enter(job, "running")
        self._watcher.started(job)

    def advanced(self, job: Job, record: Record) -> None:
        self._watcher.advanced(job, record)

    def noted(self, job: Job, text: str) -> None:
        self._watcher.noted(job, text)

    def watched(self, job: Job, what: str, done: int, total: int) -> None:
        self._watcher.watched(job, what, done, total)

    def ended(self, job: Job, failure: Failure | None) -> None:
        self._folder.enter(job, "failed" if failure else "finished", failure)
        self._watcher.ended(job, failure)
