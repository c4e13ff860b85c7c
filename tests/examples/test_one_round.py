"""The shortest federation of real processes: TLS, authenticated nodes, one of them with two clients, another whose app fails."""

from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from tests.examples.conftest import PATIENCE, misbehaving, plan, processes, records

from run import Federation, until, write_images


def test_fedomg_reaches_the_held_out_domain_though_a_client_fails(tmp_path: Path) -> None:
    with ExitStack() as stack:
        federation = Federation(tmp_path, stack, ("noto", "twemoji", "line"))
        federation.start()
        write_images(tmp_path / "more", ("openmoji",))
        (tmp_path / "more" / "openmoji" / "openmoji").rename(tmp_path / "images" / "noto" / "openmoji")
        plan(federation, {"twemoji": {1: "raises"}})
        out = tmp_path / "out"
        run = federation.submit("fedomg", out, misbehaving(tmp_path / "app"), set="rounds=1 local.epochs=1 evaluate.global=never")
        result = federation.finish(run, out, PATIENCE)
        log = federation.log(run)
    assert 0 <= result["final"]["target"] <= 1
    record = records(out)[-1]
    assert [client["name"] for client in record["clients"].values()] == ["noto", "openmoji"]
    assert sum(client["omg_weight"] for client in record["clients"].values()) == pytest.approx(1)
    assert record["dropped"] == [2]
    assert record["bytes"]["up"] > 0
    assert record["views"]["target"]["n"] > 0
    assert "phase 'fit' of round 1 goes on without client 2 (twemoji): its ClientApp has raised RuntimeError: the app's own fault" in log
    until(lambda: not processes(tmp_path), "every process to end", 30)
