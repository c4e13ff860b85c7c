"""Runs an experiment in a folder: records appended line by line, a checkpoint after every round, a result at the end."""

import json
import platform
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedomg.core.errors import UserError
from fedomg.experiment import select
from fedomg.experiment.checkpoint import CheckpointFolder
from fedomg.experiment.config import Config, flat, to_toml
from fedomg.experiment.experiment import Experiment, Record, build_federation
from fedomg.experiment.files import make_folder, to_json, write_atomically
from fedomg.experiment.state import ServerState

METRICS, RESULT, CONFIG, CHECKPOINT = "metrics.jsonl", "result.json", "config.toml", "checkpoint"
Observer = Callable[[Record], None]
Note = Callable[[str], None]
NAMED_FILES = 5


def run(
    config: Config, out: Path, resume: bool = False, observe: Observer = lambda record: None, note: Note = lambda text: None
) -> dict[str, Any]:
    """Runs what is left of an experiment and returns its result.

    `observe` sees every record, those before a resume too; `note` is told what a user should know of the data.
    """
    folder = RunFolder(out, config)
    folder.refuse_another_run(resume)
    if finished := folder.finished():
        for record in finished[0]:
            observe(record)
        return finished[1]
    federation = build_federation(config)
    if skipped := federation.dataset.skipped:
        note(_skipped(skipped))
    experiment = Experiment(config, federation)
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
    return folder.finish(records, len(federation.clients))


def _skipped(files: tuple[str, ...]) -> str:
    more = f" and {len(files) - NAMED_FILES} more" if len(files) > NAMED_FILES else ""
    return f"skipped {len(files)} image{'s' * (len(files) > 1)} that cannot be decoded: {', '.join(files[:NAMED_FILES])}{more}"


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
        if not self._checkpoint.exists():
            return
        before, now = flat(tomllib.loads((self._out / CONFIG).read_text(encoding="utf-8"))), flat(self._config.table())
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key) and not key.startswith("engine."):
                raise UserError(
                    f"{self._out} was run with {key} = {before.get(key)}, not {now.get(key)}; use its {CONFIG} or another --out"
                )

    def finished(self) -> tuple[list[Record], dict[str, Any]] | None:
        """The records and the result, where nothing is left to do."""
        if not (self._out / RESULT).exists():
            return None
        records = [json.loads(line) for line in self._lines(self._config.rounds + 1)]
        return records, json.loads((self._out / RESULT).read_bytes())

    def restore(self, experiment: Experiment) -> tuple[ServerState, list[Record]]:
        """The last finished round and the records up to it; what was written after it is cut off."""
        if not self._checkpoint.exists():
            make_folder(self._out)
            write_atomically(self._out / CONFIG, to_toml(self._config).encode())
            (self._out / METRICS).unlink(missing_ok=True)
            return experiment.initial_state(), []
        checkpoint = self._checkpoint.load()
        experiment.engine.restore_states(checkpoint.clients)
        lines = self._lines(checkpoint.state.round + 1)
        write_atomically(self._out / METRICS, b"".join(lines))
        return checkpoint.state, [json.loads(line) for line in lines]

    def _lines(self, count: int) -> list[bytes]:
        path = self._out / METRICS
        lines = path.read_bytes().splitlines(keepends=True)[:count] if path.exists() else []
        if len(lines) < count:
            raise UserError(f"{path} lacks finished records ({len(lines)} of {count}), so it cannot be resumed; start it in another folder")
        return lines

    def keep(self, experiment: Experiment, state: ServerState, record: Record) -> Record:
        """Record first, then the checkpoint: a kill between the two repeats the round."""
        line = to_json(record)
        with (self._out / METRICS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._checkpoint.save(state, experiment.engine.changed_states(), self._config.hash())
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
