"""The federation of the example with real processes on loopback: TLS, authenticated nodes, deaths, returns. Some minutes: `make slow`."""

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from tests.examples.conftest import PATIENCE, QUICK, processes, records, wait
from tests.flower.machines import weights
from tests.grids import LocalGrid

from fedomg.experiment.config import load_config
from fedomg.flower.client import client_app
from fedomg.flower.server import Patience, serve
from keys import write_node
from run import HERE, OWNERS, Federation, FederationError

pytestmark = pytest.mark.slow


def test_many_clients_share_the_workers_of_few_nodes(federation: Federation, tmp_path: Path) -> None:
    """A hundred and twenty on three nodes, of two workers each: the bits of as many in one process after the other."""
    sets = f"rounds=2 local.momentum=0 data.clients_per_domain=40 model.name=tiny_resnet {QUICK}"
    out = federation.out / "many"
    federation.finish(federation.submit("fedrod+omg", out, set=sets, deadline=300.0), out, PATIENCE)
    grid = LocalGrid(client_app(), len(OWNERS))
    for place, owner in enumerate(OWNERS):
        grid.configure({"data-root": str(federation.out / "images" / owner), "state-dir": str(tmp_path / owner)}, place)
    config = load_config(HERE / "experiment.toml", ["method=fedrod+omg", *sets.split()])
    serve(grid, config, tmp_path / "here", Patience(len(OWNERS), 1, 300))
    assert records(out)[-1]["cohort"] == list(range(120))
    assert weights(out) == weights(tmp_path / "here")
    for there, here in zip(records(out), records(tmp_path / "here"), strict=True):
        assert {**there, "seconds": None} == {**here, "seconds": None}


def test_nobody_else_is_let_in(federation: Federation) -> None:
    """A node without a registered key ends at once."""
    keys = federation.out / "keys"
    (keys / "node-3").rename(keys / "kept")
    write_node(keys / "node-3")
    known = federation.nodes["line"]
    try:
        assert federation.start_node("line").wait(timeout=60) != 0
        assert known.poll() is None
    finally:
        federation.nodes["line"] = known
        (keys / "kept").replace(keys / "node-3")
    assert "305" in (federation.out / "node-line.log").read_text(), "Flower's number for a key that is not registered"


def test_a_node_that_is_killed_is_missed_and_comes_back_with_its_memory(federation: Federation) -> None:
    out = federation.out / "killed"
    run = federation.submit("fedrod+omg", out, set=f"rounds=1000 {QUICK}", deadline=30.0)
    victim = sorted(OWNERS[:3]).index("openmoji")
    wait(federation, run, lambda: len(records(out)) > 1)
    os.killpg(federation.nodes["openmoji"].pid, signal.SIGKILL)
    wait(federation, run, lambda: records(out)[-1]["dropped"] == [victim])
    missed = len(records(out))

    def back() -> bool:
        """Its key is let in again once the SuperLink has noticed its death."""
        if federation.nodes["openmoji"].poll() is not None:
            federation.start_node("openmoji")
        return records(out)[-1]["dropped"] == [] and len(records(out)) > missed

    wait(federation, run, back)
    log = federation.log(run)
    assert f"goes on without client {victim}" in log
    assert "has lost what it remembered" not in log

    (server,) = [pid for pid in processes(federation.out) if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(server, signal.SIGKILL)
    before = records(out)
    again = federation.submit("fedrod+omg", out, set=f"rounds=1000 {QUICK}", deadline=30.0, resume=True)
    wait(federation, again, lambda: len(records(out)) > len(before))
    assert records(out)[: len(before) - 1] == before[:-1]
    assert "has lost what it remembered" not in federation.log(again)
    federation.flwr("stop", again, "deploy")


def test_a_run_that_cannot_be_ends_by_itself(federation: Federation) -> None:
    out = federation.out / "alone"
    run = federation.submit("fedomg", out, nodes=len(OWNERS) + 1, wait=3.0)
    with pytest.raises(FederationError, match="finished:failed"):
        federation.finish(run, out, PATIENCE)
    assert "4 of 5 nodes have come within 3 seconds" in federation.log(run)
