"""Clients that misbehave, in processes of their own, among others that do not. Some minutes: `make slow`."""

import json
import math
import re
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from tests.examples.conftest import PATIENCE, QUICK, misbehaving, plan, records, wait

from run import OWNERS, Federation, until

pytestmark = pytest.mark.slow
CLIENTS = sorted(OWNERS[:3])
DEADLINE = 30.0
LATE = "no reply within 30 seconds"
FAULTS = {
    "noto": {1: "raises", 2: "fails", 4: "hangs"},
    "openmoji": {1: "is not finite", 3: "is truncated", 4: "dies"},
    "twemoji": {2: "is misshapen", 5: "comes late"},
}
TOLD = {
    (1, "noto"): "its ClientApp has raised RuntimeError: the app's own fault",
    (1, "openmoji"): "its update is not finite",
    (2, "noto"): "OSError: the disk has gone",
    (2, "twemoji"): r"its update is torch.float32 of the shape \(\d+, 2\), not torch.float32 of the shape \(1, \d+\)",
    (3, "openmoji"): r"its reply cannot be read: ValueError: EOF: reading array data, .*",
    (4, "noto"): LATE,
    (4, "openmoji"): LATE,
    (5, "twemoji"): LATE,
}


def test_a_round_goes_on_without_clients_that_misbehave(federation: Federation, tmp_path: Path) -> None:
    out = federation.out / "misbehaving"
    plan(federation, FAULTS)
    run = federation.submit("fedrod+omg", out, misbehaving(tmp_path / "app"), set=f"rounds=1000 {QUICK}", deadline=DEADLINE)
    wait(federation, run, lambda: len(records(out)) > 6 and records(out)[-1]["dropped"] == [])
    federation.flwr("stop", run, "deploy")
    log = federation.log(run)
    found = records(out)

    told = {
        (int(round), name): why
        for round, name, why in re.findall(r"phase 'fit' of round (\d+) goes on without client \d \((\w+)\): (.*)", log)
    }
    for fault, why in TOLD.items():
        assert re.fullmatch(why, told[fault])
    for record in found:
        assert [CLIENTS[client] for client in record["dropped"]] == sorted(name for round, name in told if round == record["round"])
    late = {fault for fault in told if fault not in TOLD}
    assert all(name == "openmoji" and round > 4 for round, name in late), (
        "its node waits for the dead process before it takes another message"
    )

    for record in found[4:6]:
        assert DEADLINE <= record["seconds"]["train"] < DEADLINE + 3
    for record in found[1:]:
        norms = [client["norm"] for client in record["clients"].values()]
        assert all(0 < norm < 100 for norm in norms), "neither what is not finite nor what came late has been taken"
        assert math.isfinite(record["server"]["step_norm"])
    assert "has lost what it remembered" not in log


def test_a_flower_app_of_others_goes_on_without_them_too(federation: Federation, tmp_path: Path) -> None:
    """FedOMG as a strategy, with clients that know nothing of it."""
    result = tmp_path / "result.json"
    plan(
        federation,
        {"noto": {1: "raises", 2: "is misshapen"}, "openmoji": {1: "is not finite", 3: "comes late"}, "line": {2: "is truncated"}},
    )
    run = federation.launch(
        Path(__file__).with_name("quickstart"), {"out": str(result), "rounds": 4, "deadline": DEADLINE, "nodes": len(OWNERS)}
    )
    wait(federation, run, result.exists)
    until(lambda: federation.over(run), "the end of the run", PATIENCE)
    found = json.loads(result.read_text())
    nodes = {owner: re.findall(r"SuperNode ID: (\d+)", (federation.out / f"node-{owner}.log").read_text())[-1] for owner in OWNERS}
    assert found["dropped"] == {
        "1": {
            nodes["noto"]: "its ClientApp has raised RuntimeError: the app's own fault",
            nodes["openmoji"]: 'its array "weight" is not finite',
        },
        "2": {nodes["noto"]: 'its array "weight" has the shape (3, 2), not (2, 3)', nodes["line"]: found["dropped"]["2"][nodes["line"]]},
        "3": {nodes["openmoji"]: "no reply in time"},
        "4": {},
    }
    assert found["dropped"]["2"][nodes["line"]].startswith('its array "weight" cannot be read: ValueError: EOF: reading array data, ')
    assert all(math.isfinite(value) for row in found["model"]["weight"] for value in row)
    losses = [metrics["train_loss"] for metrics in found["metrics"]]
    assert losses == sorted(losses, reverse=True)
    log = federation.log(run)
    for round, dropped in found["dropped"].items():
        for node, why in dropped.items():
            assert f"round {round} goes on without node {node}: {why}" in log
