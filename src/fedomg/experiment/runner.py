"""Runs an experiment in a folder: records appended line by line, a checkpoint after every round, a result at the end."""

import json
import platform
from collections.abc import Callable
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedomg.core.errors import UserError
from fedomg.experiment import select
from fedomg.experiment.backbone import Watch, unwatched
from fedomg.experiment.checkpoint import CheckpointFolder
from fedomg.experiment.config import Config, decides, flat, load_config, to_toml
from fedomg.experiment.experiment import Experiment, Record, build_federation
from fedomg.experiment.files import make_folder, to_json, write_atomically
from fedomg.experiment.shelf import Shelf
from fedomg.experiment.state import ServerState
from fedomg.models.weights import NONE
from fedomg.models.weights import find as find_weights

METRICS, RESULT, CONFIG, CHECKPOINT = "metrics.jsonl", "result.json", "config.toml", "checkpoint"
TABLES_IN_RESULT = ("selection", "final", "selected", "best", "mean_last_10")
KINDS_IN_RESULT: dict[str, Any] = {"seconds": float | int, **dict.fromkeys(TABLES_IN_RESULT, dict)}
KEYS_OF_RECORD = {"round", "cohort", "dropped", "views", "validation", "clients", "seconds"}
Observer = Callable[[Record], None]
Note = Callable[[str], None]
NAMED_FILES = 5


def run(
    config: Config,
    out: Path,
    resume: bool = False,
    observe: Observer = lambda record: None,
    note: Note = lambda text: None,
    watch: Watch = unwatched,
    shelf: Shelf | None = None,
    share: int | None = None,
    build: Callable[[Note], Experiment] | None = None,
) -> dict[str, Any]:
    """Runs what is left of an experiment and returns its result.

    `observe` sees every record, those before a resume too; `note` is told what a user should know of the data; `watch` how far
    work has come that is done once, before the rounds. `shelf` holds what an earlier run of this process has made, and `share` is how
    many of the machine's cores it may use. `build` makes the experiment where its data are not on this machine.
    """
    folder = RunFolder(out, config)
    folder.refuse_another_run(resume)
    if finished := folder.finished():
        for record in finished[0]:
            observe(record)
        return finished[1]
    experiment = build(note) if build else _local(config, note, watch, shelf, share)
    with closing(experiment.engine):
        state, records = folder.restore(experiment)
        for record in records:
            observe(record)
        if not records:
            records.append(folder.keep(experiment, state, experiment.untrained(state)))
            observe(records[-1])
        while state.round < config.rounds:
            state, record = experiment.advance(state)
            records.append(folder.keep(experiment, state, record))
            observe(records[-1])
    return folder.finish(records, len(experiment.federation.clients))


def _local(config: Config, note: Note, watch: Watch, shelf: Shelf | None, share: int | None) -> Experiment:
    """The experiment on the data of this machine."""
    if config.model.weights != NONE:
        find_weights(config.model.name, config.model.weights)  # before the data are read, which may take long
    federation = build_federation(config, watch, shelf)
    if skipped := federation.dataset.skipped:
        note(_skipped(skipped))
    if federation.target is None and not any(len(client.test) for client in federation.clients):
        note("no client has test data: raise data.test")
    return Experiment(config, federation, note=note, share=share)


def _skipped(files: tuple[str, ...]) -> str:
    more = f" and {len(files) - NAMED_FILES} more" if len(files) > NAMED_FILES else ""
    return f"skipped {len(files)} image{'s' * (len(files) > 1)} that cannot be decoded: {', '.join(files[:NAMED_FILES])}{more}"


def _is_result(found: Any) -> bool:
    """Whether this holds what is shown of a finished run."""
    whole = isinstance(found, dict) and all(isinstance(found.get(key), kind) for key, kind in KINDS_IN_RESULT.items())
    return whole and found["selection"].keys() >= {"rule", "round"}


class RunFolder:
    """What a run leaves on disk."""

    def __init__(self, out: Path, config: Config) -> None:
        self._out = out
        self._config = config
        self._checkpoint = CheckpointFolder(out / CHECKPOINT)

    def refuse_another_run(self, resume: bool) -> None:
        """Nothing that is there is touched before it is clear that it belongs to this run."""
        if (self._out / METRICS).exists() and not resume:
            raise UserError(f"{self._out} holds a run already; continue it with --resume, or name another folder with --out")
        if (self._out / CONFIG).exists() or self._checkpoint.exists():
            self._refuse_another_configuration()
        if not self._checkpoint.exists() and not (self._out / RESULT).exists() and self._holds_finished_rounds():
            raise UserError(f"{self._out} holds finished rounds, but has lost its checkpoint; start it in another folder")

    def _refuse_another_configuration(self) -> None:
        before, now = flat(load_config(self._out / CONFIG).table()), flat(self._config.table())
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key) and decides(key):
                raise UserError(
                    f"{self._out} was run with {key} = {before.get(key)}, not {now.get(key)}; use its {CONFIG} or another --out"
                )

    def _holds_finished_rounds(self) -> bool:
        """More than the record of round 0: without a checkpoint, that one alone costs nothing to make again."""
        path = self._out / METRICS
        return path.exists() and len(path.read_bytes().splitlines()) > 1

    def finished(self) -> tuple[list[Record], dict[str, Any]] | None:
        """The records and the result, where nothing is left to do."""
        if not (self._out / RESULT).exists():
            return None
        return self._records(self._lines(self._config.rounds + 1)), self._result()

    def _result(self) -> dict[str, Any]:
        path = self._out / RESULT
        try:
            result = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            result = None
        if not _is_result(result):
            raise UserError(f"{path} is broken; remove it, and --resume writes it anew")
        return result  # type: ignore[no-any-return]

    def restore(self, experiment: Experiment) -> tuple[ServerState, list[Record]]:
        """The last finished round and the records up to it; what was written after it is cut off."""
        if not self._checkpoint.exists():
            make_folder(self._out)
            write_atomically(self._out / CONFIG, to_toml(self._config).encode())
            (self._out / METRICS).unlink(missing_ok=True)
            return experiment.initial_state(), []
        checkpoint = self._checkpoint.load()
        if checkpoint.state.round > self._config.rounds:
            raise UserError(
                f"the checkpoint in {self._out / CHECKPOINT} is of round {checkpoint.state.round}, but the run has {self._config.rounds}; "
                "start it in another folder"
            )
        experiment.engine.states.restore(checkpoint.clients)
        lines = self._lines(checkpoint.state.round + 1)
        records = self._records(lines)
        write_atomically(self._out / METRICS, b"".join(lines))
        return checkpoint.state.to(experiment.federation.device), records

    def _lines(self, count: int) -> list[bytes]:
        path = self._out / METRICS
        lines = path.read_bytes().splitlines(keepends=True)[:count] if path.exists() else []
        if len(lines) < count:
            raise UserError(f"{path} lacks finished records ({len(lines)} of {count}), so it cannot be resumed; start it in another folder")
        return lines

    def _records(self, lines: list[bytes]) -> list[Record]:
        return [self._record(round, line) for round, line in enumerate(lines)]

    def _record(self, round: int, line: bytes) -> Record:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or not record.keys() >= KEYS_OF_RECORD or record["round"] != round:
            raise UserError(f"{self._out / METRICS}, line {round + 1}: not the record of round {round}; start the run in another folder")
        return record

    def keep(self, experiment: Experiment, state: ServerState, record: Record) -> Record:
        """Record first, then the checkpoint: a kill between the two repeats the round."""
        line = to_json(record)
        with (self._out / METRICS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._checkpoint.save(state, experiment.engine.states, self._config.hash())
        return json.loads(line)  # type: ignore[no-any-return]

    def finish(self, records: list[Record], clients: int) -> dict[str, Any]:
        result = summarise(self._config, records, clients)
        write_atomically(self._out / RESULT, (to_json(result, indent=2) + "\n").encode())
        return result


def summarise(config: Config, records: list[Record], clients: int) -> dict[str, Any]:
    rule, round = select.selected_round(records)
    views = dict.fromkeys(view for record in records for view in record["views"])

    def by(name: select.Rule) -> dict[str, float | None]:
        found = {view: select.accuracy(records, view, name) for view in views}
        return {view: value for view, value in found.items() if value is not None}

    return {
        "method": config.method,
        "dataset": config.dataset,
        "target": config.target,
        "seed": config.seed,
        "rounds": config.rounds,
        "seconds": sum(record["seconds"]["total"] for record in records),
        "final": by("last"),
        "selected": by("selected"),
        "selection": {"rule": rule, "round": round},
        "best": by("best"),
        "mean_last_10": by("mean_last_10"),
        "never_sampled": clients - len({client for record in records for client in record["cohort"]}),
        "config_hash": config.hash(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("fedomg", "torch", "numpy")}},
    }
