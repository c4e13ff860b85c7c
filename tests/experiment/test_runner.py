"""Run folders, checkpoints and resuming: the same bits as an unbroken run, whenever the kill comes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.support import tiny

from fedomg.core.errors import UserError
from fedomg.experiment import runner
from fedomg.experiment.checkpoint import CheckpointFolder
from fedomg.experiment.config import Config, load_config, make_config, to_toml
from fedomg.experiment.experiment import Experiment, Record
from fedomg.experiment.jobs import Job, Watcher, run_jobs
from fedomg.experiment.runner import run
from fedomg.experiment.state import ServerState

STATEFUL = ("local.momentum=0.9", "local.optimizer_state=persistent", "server.momentum=0.5", "rounds=4")


class _KilledError(Exception):
    pass


def _kill_after(rounds: int) -> runner.Observer:
    def observe(record: Record) -> None:
        if record["round"] == rounds:
            raise _KilledError

    return observe


def _records(out: Path) -> list[Record]:
    records: list[Record] = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        record.pop("seconds")
    return records


def _state(out: Path) -> tuple[dict[str, torch.Tensor], dict[int, Any]]:
    found = CheckpointFolder(out / "checkpoint").load()
    state = found.state
    parts = {"shared": state.shared, **state.buffers, **state.optimizer, **state.coordinator, **state.aggregator}
    return parts, {client: load_file(path) for client, path in found.clients.items()}


def _assert_same_run(first: Path, second: Path) -> None:
    assert _records(first) == _records(second)
    (server, clients), (other, others) = _state(first), _state(second)
    assert server.keys() == other.keys()
    assert clients.keys() == others.keys()
    assert all(torch.equal(server[name], other[name]) for name in server)
    assert all(torch.equal(clients[c][name], others[c][name]) for c in clients for name in clients[c])
    results = [json.loads((out / "result.json").read_text()) for out in (first, second)]
    assert all(results[0][key] == results[1][key] for key in results[0] if key != "seconds")


def test_a_run_leaves_what_is_promised(tmp_path: Path) -> None:
    result = run(tiny("fedomg", target="domain2"), tmp_path / "r")
    assert {path.name for path in (tmp_path / "r").iterdir()} == {"config.toml", "metrics.jsonl", "result.json", "checkpoint"}
    assert load_config(tmp_path / "r" / "config.toml") == tiny("fedomg", target="domain2")
    assert result == json.loads((tmp_path / "r" / "result.json").read_text())
    assert result.keys() == {
        *("method", "dataset", "target", "seed", "rounds", "seconds", "final", "selected", "selection"),
        *("best", "mean_last_10", "never_sampled", "config_hash", "versions"),
    }
    assert (result["method"], result["target"], result["selection"]["rule"]) == ("fedavg+omg", "domain2", "validation")
    assert all(0 <= value <= 1 for value in result["final"].values())
    assert [record["round"] for record in _records(tmp_path / "r")] == [0, 1, 2, 3]


def test_clients_that_never_took_part_are_counted(tmp_path: Path) -> None:
    config = tiny("fedavg", "data.clients_per_domain=5", "server.participation=0.1", target="domain2")
    result = run(config, tmp_path)
    taken = {client for record in _records(tmp_path) for client in record["cohort"]}
    assert result["never_sampled"] == 15 - len(taken) > 0


def test_without_validation_the_last_round_is_selected(tmp_path: Path) -> None:
    result = run(tiny("fedavg", "data.validation=0"), tmp_path)
    assert result["selection"] == {"rule": "last", "round": 3}
    assert result["target"] is None
    assert result["selected"] == result["final"]


@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("method", ["fedavg", "fedomg"])
def test_resuming_gives_the_same_bits(tmp_path: Path, method: str, rounds: int) -> None:
    config = tiny(method, *STATEFUL)
    run(config, tmp_path / "whole")
    with pytest.raises(_KilledError):
        run(config, tmp_path / "broken", observe=_kill_after(rounds))
    run(config, tmp_path / "broken", resume=True)
    _assert_same_run(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.parametrize("method", ["scaffold", "fedrod+omg", "fedpac", "fedas"])
def test_resuming_restores_what_clients_and_coordinator_remember(tmp_path: Path, method: str) -> None:
    config = tiny(method, "model.name=mlp", "data.clients_per_domain=2", "server.participation=0.5")
    run(config, tmp_path / "whole")
    with pytest.raises(_KilledError):
        run(config, tmp_path / "broken", observe=_kill_after(2))
    run(config, tmp_path / "broken", resume=True)
    _assert_same_run(tmp_path / "whole", tmp_path / "broken")
    assert _state(tmp_path / "whole")[1]


def test_a_kill_between_record_and_checkpoint_repeats_the_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny("fedomg", *STATEFUL)
    run(config, tmp_path / "whole")
    save = CheckpointFolder.save

    def killed(self: CheckpointFolder, state: ServerState, *rest: Any) -> None:
        if state.round == 2:
            raise _KilledError
        save(self, state, *rest)

    monkeypatch.setattr(CheckpointFolder, "save", killed)
    with pytest.raises(_KilledError):
        run(config, tmp_path / "broken")
    monkeypatch.undo()
    assert [record["round"] for record in _records(tmp_path / "broken")] == [0, 1, 2]
    run(config, tmp_path / "broken", resume=True)
    _assert_same_run(tmp_path / "whole", tmp_path / "broken")


def test_a_torn_record_is_cut_off(tmp_path: Path) -> None:
    config = tiny("fedomg", *STATEFUL)
    run(config, tmp_path / "whole")
    with pytest.raises(_KilledError):
        run(config, tmp_path / "broken", observe=_kill_after(2))
    with (tmp_path / "broken" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "coh')
    run(config, tmp_path / "broken", resume=True)
    _assert_same_run(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.parametrize("stop", ["server-2.safetensors", "client-0-2.safetensors", "state.json"])
def test_a_kill_inside_the_checkpoint_leaves_the_round_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: str) -> None:
    from fedomg.experiment import checkpoint, files

    config = tiny("fedomg", *STATEFUL)
    run(config, tmp_path / "whole")

    def killed(path: Path, content: bytes) -> None:
        if path.name == stop and (stop != "state.json" or json.loads(content)["round"] == 2):
            path.with_name(path.name + ".new").write_bytes(content[: len(content) // 2])
            raise _KilledError
        files.write_atomically(path, content)

    monkeypatch.setattr(checkpoint, "write_atomically", killed)
    with pytest.raises(_KilledError):
        run(config, tmp_path / "broken")
    monkeypatch.undo()
    assert CheckpointFolder(tmp_path / "broken" / "checkpoint").load().state.round == 1
    run(config, tmp_path / "broken", resume=True)
    _assert_same_run(tmp_path / "whole", tmp_path / "broken")
    assert not list((tmp_path / "broken").rglob("*.new"))


def test_a_real_kill(tmp_path: Path) -> None:
    """SIGKILL of a real process at no particular moment, twice."""
    config = tiny("fedomg", *STATEFUL, "rounds=40", "data.points=100")
    run(config, tmp_path / "whole")
    (tmp_path / "config.toml").write_text(to_toml(config))
    command = [sys.executable, "-c", "from fedomg.cli import main; main()", "run", str(tmp_path / "config.toml")]
    out = tmp_path / "broken"
    for rounds in (5, 20):
        process = subprocess.Popen([*command, "--out", str(out), "--resume"], stdout=subprocess.DEVNULL)
        _wait_for_lines(out / "metrics.jsonl", rounds, process)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    subprocess.run([*command, "--out", str(out), "--resume"], check=True, stdout=subprocess.DEVNULL)
    _assert_same_run(tmp_path / "whole", out)


def _wait_for_lines(path: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, "ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_only_the_latest_checkpoint_stays(tmp_path: Path) -> None:
    run(tiny("fedavg", *STATEFUL), tmp_path)
    names = {path.name for path in (tmp_path / "checkpoint").iterdir()}
    assert names == {"state.json", "server-4.safetensors", *(f"client-{client}-4.safetensors" for client in range(4))}


def test_the_file_of_an_idle_client_is_not_written_again(tmp_path: Path) -> None:
    run(tiny("fedavg", *STATEFUL, "server.participation=0.25"), tmp_path)
    cohorts = {record["round"]: record["cohort"] for record in _records(tmp_path)}
    latest = {client: round for round in sorted(cohorts) for client in cohorts[round]}
    clients = {path.name for path in (tmp_path / "checkpoint").glob("client-*")}
    assert clients == {f"client-{client}-{round}.safetensors" for client, round in latest.items()}


def test_a_finished_run_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(tiny("fedavg"), tmp_path)
    monkeypatch.setattr(Experiment, "advance", lambda *_: pytest.fail("trained again"))
    seen: list[Record] = []
    assert run(tiny("fedavg"), tmp_path, resume=True, observe=seen.append) == first
    assert [record["round"] for record in seen] == [0, 1, 2, 3]


def test_another_run_is_never_overwritten(tmp_path: Path) -> None:
    run(tiny("fedavg"), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="holds a run already; continue it with --resume"):
        run(tiny("fedavg"), tmp_path)
    with pytest.raises(UserError, match=r"was run with local\.lr = 0\.1, not 0\.2"):
        run(tiny("fedavg", "local.lr=0.2"), tmp_path, resume=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_resuming_nothing_starts_from_the_beginning(tmp_path: Path) -> None:
    assert run(tiny("fedavg"), tmp_path / "new", resume=True)["rounds"] == 3


def test_a_broken_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(_KilledError):
        run(tiny("fedavg"), tmp_path, observe=_kill_after(1))
    (tmp_path / "checkpoint" / "server-1.safetensors").write_bytes(b"rubbish")
    with pytest.raises(UserError, match=r"the checkpoint in .*checkpoint cannot be read"):
        run(tiny("fedavg"), tmp_path, resume=True)


def test_lost_records_are_named(tmp_path: Path) -> None:
    with pytest.raises(_KilledError):
        run(tiny("fedavg"), tmp_path, observe=_kill_after(2))
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match=r"lacks finished records \(0 of 3\)"):
        run(tiny("fedavg"), tmp_path, resume=True)


def test_nothing_is_written_where_the_configuration_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no domain is called"):
        run(tiny("fedavg", target="domain9"), tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_diverged_run_is_recorded_in_strict_json(tmp_path: Path) -> None:
    run(make_config({**tiny("fedavg").table(), "local": {"lr": 1e30, "weight_decay": 1.0, "steps": 30}}), tmp_path)
    records = _records(tmp_path)
    assert records[1]["dropped"] == [0, 1, 2, 3]
    assert records[-1]["views"]["adapted"]["loss"] is None


def test_jobs_run_in_processes_and_equal_runs_here(tmp_path: Path) -> None:
    configs: list[Config] = [tiny("fedavg"), tiny("fedomg")]
    jobs = [Job(config, tmp_path / config.method) for config in configs]
    watcher = _Rounds()
    assert run_jobs(jobs, watcher) == {}
    assert watcher.seen == {"fedavg": [0, 1, 2, 3], "fedavg+omg": [0, 1, 2, 3]}
    run(tiny("fedomg"), tmp_path / "here")
    _assert_same_run(tmp_path / "here", tmp_path / "fedavg+omg")


class _Rounds(Watcher):
    def __init__(self) -> None:
        self.seen: dict[str, list[int]] = {}

    def advanced(self, job: Job, record: Record) -> None:
        self.seen.setdefault(job.config.method, []).append(record["round"])


def test_the_error_of_a_job_arrives(tmp_path: Path) -> None:
    failures = run_jobs([Job(tiny("fedga", "data.validation=0"), tmp_path)], Watcher())
    assert failures[tmp_path].reason.startswith("fedga weighs clients by their validation data")
    assert failures[tmp_path].traceback is None
