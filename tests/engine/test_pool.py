import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import TINY, tiny, write_toml

from fedomg.core.errors import UserError
from fedomg.core.params import Tensors
from fedomg.core.records import Broadcast, ClientState, Reply
from fedomg.engine.auto import AutoEngine
from fedomg.engine.pool import PoolEngine
from fedomg.engine.states import ClientStates
from fedomg.engine.worker import Blueprint, require_shared_memory
from fedomg.experiment.config import Config, make_config, to_toml
from fedomg.experiment.experiment import Experiment, build_federation

PARAMETERS = 5


class Recorder:
    """A site that notes in a file which process served whom, and does as the phase says."""

    def __init__(self, folder: str, tensors: Tensors) -> None:
        self._folder = Path(folder)
        self._data = tensors["data"]

    def handle(
        self, phase: str, client: int, broadcast: Broadcast, state: ClientState, row: torch.Tensor | None
    ) -> tuple[Reply, ClientState]:
        with (self._folder / "served").open("a") as file:
            file.write(f"{client} {os.getpid()}\n")
        if phase == "die once" and client == 2 and not (self._folder / "died").exists():
            (self._folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if phase == "die" and client == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if phase == "fail" and client == 2:
            raise ValueError("no such thing")
        if phase == "refuse" and client == 2:
            raise UserError("mend this")
        time.sleep(0.05)
        update = torch.add(broadcast.shared, self._data[client], out=row)
        reply = Reply(client, samples=client, update=update, extras={"sent": broadcast.extras["own"] + 1})
        return reply, {"visits": state.get("visits", torch.tensor(0)) + 1}


def open_site(folder: str, tensors: Tensors) -> Recorder:
    return Recorder(folder, tensors)


@pytest.fixture
def notes() -> list[str]:
    return []


def _open(folder: Path, notes: list[str]) -> PoolEngine:
    blueprint = Blueprint(f"{__name__}:open_site", str(folder), {"data": torch.arange(6.0)})
    sizes = {0: 10, 1: 50, 2: 30, 3: 30, 4: 1}
    return PoolEngine(blueprint, PARAMETERS, rows=5, sizes=sizes, workers=2, states=ClientStates(), note=notes.append)


@pytest.fixture
def engine(tmp_path: Path, notes: list[str]) -> Iterator[PoolEngine]:
    with closing(_open(tmp_path, notes)) as pool:
        yield pool


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PoolEngine, Path]]:
    """For tests that leave its workers alive."""
    folder = tmp_path_factory.mktemp("unharmed")
    with closing(_open(folder, [])) as pool:
        yield pool, folder


@pytest.fixture
def healthy(unharmed: tuple[PoolEngine, Path]) -> PoolEngine:
    engine, folder = unharmed
    (folder / "served").unlink(missing_ok=True)
    engine.states.restore({})
    return engine


def _exchange(engine: PoolEngine, phase: str = "fit", clients: tuple[int, ...] = (4, 3, 2, 1, 0)) -> list[Reply]:
    messages = {client: Broadcast(1, torch.ones(PARAMETERS), extras={"own": torch.tensor(client)}) for client in clients}
    return engine.exchange(phase, messages, engine.matrix(len(clients)))


def _served(folder: Path) -> list[tuple[int, int]]:
    return [(int(client), int(pid)) for client, pid in (line.split() for line in (folder / "served").read_text().splitlines())]


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def _gone(pids: list[int], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(map(_alive, pids)):
            return True
        time.sleep(0.05)
    return False


def test_replies_are_sorted_and_stand_in_their_rows(healthy: PoolEngine) -> None:
    replies = _exchange(healthy)
    assert [reply.client for reply in replies] == [0, 1, 2, 3, 4]
    assert [int(reply.extras["sent"]) for reply in replies] == [1, 2, 3, 4, 5]
    rows = healthy.matrix(5)
    for reply in replies:
        assert reply.update is not None
        assert reply.update.data_ptr() == rows[reply.client].data_ptr()
        assert torch.equal(reply.update, torch.full((PARAMETERS,), 1.0 + reply.client))


def test_states_come_back_and_are_sent_again(healthy: PoolEngine) -> None:
    for _ in range(3):
        _exchange(healthy, clients=(1, 2))
    assert int(healthy.states.of(1)["visits"]) == 3
    assert healthy.states.of(3) == {}


def test_the_largest_client_is_dealt_first(healthy: PoolEngine, unharmed: tuple[PoolEngine, Path]) -> None:
    _exchange(healthy)
    order = [client for client, _ in _served(unharmed[1])]
    assert set(order[:2]) == {1, 2}
    assert order[-1] == 4


def test_workers_start_once_and_share_the_work(healthy: PoolEngine, unharmed: tuple[PoolEngine, Path]) -> None:
    pids = set(healthy.pids)
    for _ in range(3):
        _exchange(healthy)
    assert {pid for _, pid in _served(unharmed[1])} == pids
    assert set(healthy.pids) == pids


def test_a_worker_that_dies_is_named_and_replaced_and_its_client_done_again(engine: PoolEngine, tmp_path: Path, notes: list[str]) -> None:
    before = engine.pids
    replies = _exchange(engine, "die once")
    assert [reply.client for reply in replies] == [0, 1, 2, 3, 4]
    (dead,) = set(before) - set(engine.pids)
    assert notes == [f"worker {dead} has ended (signal SIGKILL) while it had client 2 in phase 'die once': another takes its place"]
    assert [client for client, _ in _served(tmp_path)].count(2) == 2


def test_one_that_dies_between_two_exchanges_is_replaced_too(engine: PoolEngine, notes: list[str]) -> None:
    _exchange(engine)
    victim = engine.pids[0]
    os.kill(victim, signal.SIGKILL)
    assert _gone([victim])
    assert len(_exchange(engine)) == 5
    assert len(notes) == 1
    assert f"worker {victim} has ended" in notes[0]


def test_a_client_that_kills_every_worker_ends_the_run(engine: PoolEngine) -> None:
    with pytest.raises(UserError, match=r"3 workers in turn have ended \(signal SIGKILL\) while it had client 2"):
        _exchange(engine, "die")


def test_an_error_arrives_with_its_client(healthy: PoolEngine) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)^client 2 in phase 'fail': ValueError: no such thing\nTraceback .*no such thing"):
        _exchange(healthy, "fail")


def test_what_a_user_can_mend_stays_one_line(healthy: PoolEngine) -> None:
    with pytest.raises(UserError, match=r"^mend this$"):
        _exchange(healthy, "refuse")


def test_closing_leaves_no_process(engine: PoolEngine) -> None:
    pids = engine.pids
    _exchange(engine)
    engine.close()
    assert _gone(pids)


def test_too_little_shared_memory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("fedomg.engine.worker.shutil.disk_usage", lambda path: usage)
    with pytest.raises(UserError, match=r"set workers = 1"):
        require_shared_memory(Blueprint("", "", {"data": torch.zeros(100)}), 0)


def _long_run(**keys: Any) -> Config:
    return make_config({**TINY, "method": "fedavg", "rounds": 100_000, "engine": {"name": "pool", "workers": 2}, **keys})


def _children(pid: int) -> list[int]:
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]


@pytest.mark.parametrize(("how", "rounds"), [(signal.SIGINT, 3), (signal.SIGINT, 0), (signal.SIGKILL, 3)])
def test_no_process_and_no_shared_memory_outlive_a_run(tmp_path: Path, how: signal.Signals, rounds: int) -> None:
    """After some rounds, and while the workers are starting."""
    config = write_toml(tmp_path / "long.toml", to_toml(_long_run()))
    out = tmp_path / "run"
    command = [sys.executable, "-c", "from fedomg.cli import main; main()", "run", str(config), "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True) as process:
        metrics = out / "metrics.jsonl"
        end = time.monotonic() + 60
        while len(_children(process.pid)) < 2 or (rounds and not (metrics.exists() and metrics.read_bytes().count(b"\n") > rounds)):
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() < end
            time.sleep(0.05)
        family = _children(process.pid)
        assert len(family) >= 2
        os.kill(process.pid, how) if how == signal.SIGKILL else os.killpg(process.pid, how)
        _, errors = process.communicate(timeout=30)
    assert _gone(family)
    assert not [path for path in Path("/dev/shm").iterdir() if any(f"_{pid}_" in path.name for pid in (process.pid, *family))]
    assert b"Traceback" not in errors


def test_auto_changes_to_workers_where_a_run_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedomg.engine.auto.WORTH", 0.0)
    config = tiny("fedavg", "rounds=400", engine={"name": "auto"})
    trial = Experiment(config, build_federation(config))
    reference = tiny("fedavg", "rounds=400")
    alone = Experiment(reference, build_federation(reference))
    assert isinstance(trial.engine, AutoEngine)
    with closing(trial.engine):
        state, expected = trial.initial_state(), alone.initial_state()
        pids: list[int] = []
        while state.round < 400 and not pids:
            state, _ = trial.advance(state)
            expected, _ = alone.advance(expected)
            pids = trial.engine._engine.pids if isinstance(trial.engine._engine, PoolEngine) else []
            time.sleep(0.02)
        assert pids, "the workers were never used"
        for _ in range(3):
            state, _ = trial.advance(state)
            expected, _ = alone.advance(expected)
    assert torch.equal(state.shared, expected.shared)
    assert _gone(pids)
