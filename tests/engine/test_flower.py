"""The Flower engine computes the bits of the in-process engine, over messages as bytes and in Flower's simulation."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.engine.test_equal import NAMES, assert_same_run, configure, run
from tests.support import TINY, tiny, write_toml

pytest.importorskip("flwr")

from flwr.app import Error, Message
from tests.grids import LocalGrid, lend

from fedomg import methods
from fedomg.core.errors import UserError
from fedomg.core.records import Broadcast, ClientState, Reply
from fedomg.engine.flower import node, simulation
from fedomg.engine.flower.engine import FlowerEngine
from fedomg.engine.flower.messages import SiteOf
from fedomg.engine.states import ClientStates
from fedomg.experiment.config import make_config, to_toml
from fedomg.experiment.engines import require_flower
from fedomg.experiment.experiment import build_federation
from fedomg.experiment.remote import open_site
from fedomg.experiment.site import description

ROOT = Path(__file__).parents[2]
SIMULATED = [name for name in ("fedavg", "fedavg+omg", "scaffold", "fedrod+omg", "fediir+omg", "fedpac") if name in methods.names()]
NODES = 4


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> LocalGrid:
    grid = LocalGrid(node.app, NODES)
    monkeypatch.setattr(simulation, "Simulation", lend(grid))
    monkeypatch.setattr("fedomg.experiment.engines.require_flower", lambda: None)  # no Ray is needed here
    return grid


@pytest.mark.parametrize("method", NAMES)
def test_messages_change_no_bit(method: str, grid: LocalGrid) -> None:
    assert_same_run(run(configure(method, "flower")), run(configure(method, "inline")))


@pytest.mark.parametrize("policy", ["keep", "local"])
def test_nor_do_buffers_of_any_policy(policy: str, grid: LocalGrid) -> None:
    keys: dict[str, Any] = {"server": {"buffers": policy, "participation": 0.5, "momentum": 0.5}}
    assert_same_run(run(configure("fedrod+omg", "flower", **keys)), run(configure("fedrod+omg", "inline", **keys)))


@pytest.fixture(scope="module")
def simulated() -> dict[str, str]:
    """What differs between Flower's simulation and one process, by method."""
    pytest.importorskip("ray")
    command = [sys.executable, "-m", "tests.engine.simulated", *SIMULATED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("method", SIMULATED)
def test_nor_does_the_simulation(method: str, simulated: dict[str, str]) -> None:
    assert simulated[method] == "nothing"


def test_an_experiment_file_runs_in_the_simulation_and_leaves_no_process(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    file = write_toml(tmp_path / "tiny.toml", to_toml(tiny("fedomg")))
    marked = {**os.environ, "FEDOMG_TEST": str(tmp_path)}
    records = []
    for engine in ("flower", "inline"):
        arguments = ["run", str(file), "--set", f"engine={engine}", "--out", str(tmp_path / engine)]
        command = [sys.executable, "-c", "from fedomg.cli import main; main()", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=marked)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        lines = (tmp_path / engine / "metrics.jsonl").read_text().splitlines()
        records.append([{**json.loads(line), "seconds": None} for line in lines])
    assert records[0] == records[1]
    assert _all_gone(f"FEDOMG_TEST={tmp_path}".encode())


def _all_gone(mark: bytes, seconds: float = 30.0) -> bool:
    """Whether no process with this in its environment is left."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(mark in _environment(process) for process in Path("/proc").glob("[0-9]*")):
            return True
        time.sleep(0.1)
    return False


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


# ------------------------------------------------------------------------------------------------------ the engine by itself


class Site:
    """Adds the client's number to the model, and does as the phase says."""

    def __init__(self, configuration: str) -> None:
        self.configuration = configuration

    def handle(
        self, phase: str, client: int, broadcast: Broadcast, state: ClientState, row: torch.Tensor | None
    ) -> tuple[Reply, ClientState]:
        if phase == "fail":
            raise ValueError("no such thing")
        if phase == "refuse":
            raise UserError("mend this")
        update = None if row is None else torch.add(broadcast.shared, client, out=row)
        extras = {name: tensor + 1 for name, tensor in broadcast.extras.items()}
        after = {"visits": state.get("visits", torch.tensor(0)) + 1} if phase == "fit" else state
        return Reply(client, samples=client, update=update, extras=extras, buffers=broadcast.buffers), after


def _engine(grid: LocalGrid, hosts: dict[int, int]) -> FlowerEngine:
    return FlowerEngine(grid, hosts, SiteOf(f"{__name__}:Site", "{}"), 3, ClientStates())


@pytest.fixture
def engine() -> FlowerEngine:
    return _engine(LocalGrid(node.app, NODES), {client: 100 + client for client in range(NODES)})


def _exchange(engine: FlowerEngine, phase: str = "fit") -> list[Reply]:
    buffers = {"count": torch.tensor(2**40)}
    broadcasts = {c: Broadcast(1, torch.ones(3), buffers, {"own": torch.tensor([float(c)])}) for c in (3, 1, 2)}
    return engine.exchange(phase, broadcasts, engine.matrix(3))


@pytest.mark.parametrize("hosts", [{1: 101, 2: 102, 3: 103}, {1: 100, 2: 103, 3: 100}, {1: 100, 2: 100, 3: 100}])
def test_replies_are_sorted_and_stand_in_their_rows_wherever_clients_live(hosts: dict[int, int]) -> None:
    engine = _engine(LocalGrid(node.app, NODES), hosts)
    for visit in (1, 2):
        replies = _exchange(engine)
        assert [reply.client for reply in replies] == [1, 2, 3]
        assert [float(reply.extras["own"]) for reply in replies] == [2.0, 3.0, 4.0]
        assert [int(reply.buffers["count"]) for reply in replies] == [2**40] * 3
        for reply, row in zip(replies, engine.matrix(3), strict=True):
            assert reply.update is not None
            assert reply.update.data_ptr() == row.data_ptr()
            assert torch.equal(row, torch.full((3,), 1.0 + reply.client))
            assert int(engine.states.of(reply.client)["visits"]) == visit


def test_what_all_clients_are_sent_is_sent_once() -> None:
    grid = LocalGrid(node.app, NODES)
    engine = _engine(grid, {client: 100 + client for client in range(NODES)})
    everybodys = {"prototypes": torch.full((1000,), 1.0)}
    broadcasts = {c: Broadcast(1, torch.arange(2000.0), extras=everybodys) for c in range(NODES)}
    engine.exchange("view:global", broadcasts)
    sizes = [len(content) for content in grid.contents.values()]
    assert sum(size >= 8000 for size in sizes) == 1  # the model
    assert sum(4000 <= size < 8000 for size in sizes) == 1 + NODES  # the prototypes, and each client's changed ones


def test_an_error_of_a_client_ends_the_run(engine: FlowerEngine) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)a client in phase 'fail'.*no such thing.*while client [123] was in phase"):
        _exchange(engine, "fail")


def test_what_a_user_can_mend_stays_one_line(engine: FlowerEngine) -> None:
    with pytest.raises(UserError, match=r"^mend this$"):
        _exchange(engine, "refuse")


def test_an_error_that_flower_reports_ends_the_run(engine: FlowerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(self: LocalGrid, message: Message) -> str:
        identifier = "lost" + str(message.metadata.dst_node_id)
        message.metadata.__dict__["_message_id"] = identifier
        self._replies[identifier] = Message(Error(5, "the node went away"), reply_to=message)
        return identifier

    monkeypatch.setattr(LocalGrid, "_deliver", lost)
    with pytest.raises(RuntimeError, match=r"^its node has gone$"):
        _exchange(engine)


def test_a_grid_that_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended() -> None:
        raise UserError("the grid has ended")

    grid = LocalGrid(node.app, NODES)
    engine = FlowerEngine(grid, {1: 101}, SiteOf(f"{__name__}:Site", "{}"), 3, ClientStates(), check=ended)
    with pytest.raises(UserError, match="the grid has ended"):
        engine.exchange("fit", {1: Broadcast(1, torch.ones(3))})


# ------------------------------------------------------------------------------------------------------- what users meet


def test_other_data_on_a_node_are_refused() -> None:
    config = configure("fedavg", "flower")
    federation = build_federation(config)
    assert open_site(description(config, federation)).model.shared.numel()
    federation.dataset.labels[0] = (federation.dataset.labels[0] + 1) % 3
    with pytest.raises(UserError, match="differs between the machines"):
        open_site(description(config, federation))


@pytest.mark.parametrize(("absent", "named"), [("flwr", "Flower"), ("ray", "Ray")])
def test_without_flower_there_is_one_line_with_the_command(absent: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedomg.experiment.engines.find_spec", lambda name: None if name == absent else SimpleNamespace())
    with pytest.raises(UserError, match=rf"^engine.name = \"flower\" needs {named}: pip install 'fedomg\[flower\]'$"):
        require_flower()


def test_it_runs_on_the_processor() -> None:
    with pytest.raises(UserError, match=r'^engine.name = "flower" runs on the processor'):
        make_config({**TINY, "engine": {"name": "flower", "device": "cuda"}})
