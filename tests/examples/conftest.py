"""One federation of the example, with real processes, for all tests that need one."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from run import HERE, Federation, until

PATIENCE = 400.0
QUICK = "local.epochs=1 evaluate.global=never evaluate.target=never"


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    out = tmp_path_factory.mktemp("federation")
    with ExitStack() as stack:
        opened = Federation(out, stack, settings="workers=2")
        opened.start()
        yield opened
    until(lambda: not processes(out), "every process to end", 30)


def processes(out: Path) -> list[int]:
    """Those of the federation: all have its folder in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(out).encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def records(out: Path) -> list[dict[str, Any]]:
    path = out / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait(federation: Federation, run: str, what: Callable[[], bool]) -> None:
    """Until something has come about in a run that goes on."""
    asked = time.monotonic()

    def come() -> bool:
        nonlocal asked
        if time.monotonic() > asked + 15:  # each question starts a process
            asked = time.monotonic()
            assert not federation.over(run), federation.log(run)
        return what()

    until(come, "what a run was to do", PATIENCE)


def plan(federation: Federation, faults: dict[str, dict[int, str]]) -> None:
    for owner in federation.nodes:
        (federation.out / "images" / f"{owner}.faults").write_text(json.dumps(faults.get(owner, {})))


def misbehaving(folder: Path) -> Path:
    """The example's app, with other clients."""
    shutil.copytree(HERE / "app", folder)
    shutil.copy(Path(__file__).with_name("misbehaving.py"), folder / "federation" / "client_app.py")
    return folder
