"""Both ends of a federation of machines, with the messages as bytes and every node's folder its own."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from tests.grids import LocalGrid

from fedomg.core.errors import UserError
from fedomg.experiment.config import Config, make_config
from fedomg.experiment.experiment import Record
from fedomg.experiment.runner import run
from fedomg.flower.client import client_app
from fedomg.flower.memory import Memory
from fedomg.flower.server import Patience, serve

DOMAINS = ("chalk", "ink", "paint", "target")
CLASSES = ("cat", "dog")
PATIENCE = Patience(nodes=4, wait=0.5, deadline=20)


def _draw(folder: Path, domain: str, classes: tuple[str, ...] = CLASSES) -> None:
    draw = np.random.default_rng(len(domain))
    for label, name in enumerate(classes):
        (folder / domain / name).mkdir(parents=True)
        for picture in range(6):
            pixels = draw.integers(0, 100, (8, 8, 3), dtype=np.uint8)
            pixels[4 * label : 4 * label + 4] += 100
            Image.fromarray(pixels).save(folder / domain / name / f"{picture}.png")


class Machines(LocalGrid):
    """A node for each domain, with a folder of its own. `lost` nodes never reply."""

    def __init__(self, root: Path) -> None:
        super().__init__(client_app(), len(DOMAINS))
        self.lost: set[int] = set()
        self.folders = [root / f"node-{place}" for place in range(len(DOMAINS))]
        for place, folder in enumerate(self.folders):
            config = {"data-root": str(folder / "images"), "state-dir": str(folder / "memory")}
            self._contexts[100 + place] = Context(1, 100 + place, config, RecordDict(), {})  # type: ignore[arg-type]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [reply for reply in super().pull_messages(message_ids) if reply.metadata.src_node_id not in self.lost]


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    grid = Machines(tmp_path)
    for folder, domain in zip(grid.folders, DOMAINS, strict=True):
        _draw(folder / "images", domain)
    return grid


def _config(method: str = "fedomg", rounds: int = 3, **data: Any) -> Config:
    return make_config(
        {
            "method": method,
            "dataset": "folder",
            "target": "target",
            "rounds": rounds,
            "data": {"size": 8, "validation": 0.0, "test": 0.0, **data},
            "local": {"lr": 0.05, "batch_size": 4},
            "model": {"name": "tiny_resnet"},
            "evaluate": {"adapted": "never"},
        }
    )


def _records(out: Path) -> list[Record]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{**line, "seconds": None} for line in lines]


def _weights(out: Path) -> bytes:
    (file,) = (out / "checkpoint").glob("server-*.safetensors")
    return file.read_bytes()


@pytest.mark.parametrize("method", ["fedomg", "scaffold+omg", "fedrod"])
def test_a_federation_computes_the_bits_of_one_machine_with_all_folders(method: str, machines: Machines, tmp_path: Path) -> None:
    serve(machines, _config(method), tmp_path / "apart", PATIENCE)
    for folder, domain in zip(machines.folders, DOMAINS, strict=True):
        shutil.copytree(folder / "images" / domain, tmp_path / "all" / domain)
    run(_config(method, root=str(tmp_path / "all")), tmp_path / "together")
    assert _weights(tmp_path / "apart") == _weights(tmp_path / "together")
    assert [record["clients"] for record in _records(tmp_path / "apart")] == [
        record["clients"] for record in _records(tmp_path / "together")
    ]
    assert _records(tmp_path / "apart")[-1]["views"]["target"] == _records(tmp_path / "together")[-1]["views"]["target"]


def test_states_stay_on_their_nodes_and_a_continued_run_finds_them(machines: Machines, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    serve(machines, _config("scaffold", rounds=4), whole, PATIENCE)

    class KilledError(Exception):
        pass

    pushed = LocalGrid.push_messages
    sent = 0

    def counted(self: LocalGrid, messages: Iterable[Message]) -> list[str]:
        nonlocal sent
        sent += 1
        if sent == 4 + 1 + 3 + 1 + 3 + 1 + 2:  # in the midst of the third round: one client has trained, and remembers it
            raise KilledError
        return pushed(self, messages)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalGrid, "push_messages", counted)
        with pytest.raises(KilledError):
            serve(machines, _config("scaffold", rounds=4), broken, PATIENCE)
    assert len(_records(broken)) == 3
    serve(machines, _config("scaffold", rounds=4), broken, PATIENCE, resume=True)
    assert _weights(broken) == _weights(whole)
    assert _records(broken) == _records(whole)
    held = [path for path in (broken / "checkpoint").glob("client*") if path.stat().st_size > 200]
    assert not held, "the server keeps numbers, not states"
    memory = machines.folders[0] / "memory"
    assert len(list(memory.iterdir())) == 2, "a folder for each run"


def test_a_lost_state_is_reported_and_the_run_goes_on(machines: Machines, tmp_path: Path) -> None:
    told: list[str] = []
    original = Memory.load

    def forgetful(self: Memory, client: int, number: int) -> Any:
        if client == 1 and number == 1:
            shutil.rmtree(self._folder)
        return original(self, client, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Memory, "load", forgetful)
        patch.setattr("fedomg.flower.server.logger.warning", told.append)
        serve(machines, _config("scaffold"), tmp_path / "out", PATIENCE)
    assert told == ["client 1 has lost what it remembered, and starts as a client that takes part for the first time"]
    assert [record["dropped"] for record in _records(tmp_path / "out")] == [[]] * 4


def test_the_round_before_stays_until_the_next_is_done(tmp_path: Path) -> None:
    memory = Memory(tmp_path, "0123456789abcdef")
    for number in range(1, 6):
        memory.save(3, number, round=(number + 1) // 2, state={"a": torch.tensor([number])})
    assert memory.load(3, 0) == {}
    kept = {number: memory.load(3, number) for number in range(1, 7)}
    assert {number for number, state in kept.items() if state is not None} == {4, 5}
    assert memory.load(30, 5) is None
    (path,) = tmp_path.rglob("3-5-*")
    path.write_bytes(b"torn")
    assert memory.load(3, 5) is None
    with pytest.raises(UserError, match="no name of a run"):
        Memory(tmp_path, "../elsewhere")


def test_a_node_that_fails_in_one_round_is_named_and_left_out(machines: Machines, tmp_path: Path) -> None:
    told: list[str] = []
    aside = machines.folders[1] / "aside"
    config = _config(rounds=3)
    calls = 0
    original = LocalGrid.push_messages

    def pushed(self: LocalGrid, messages: Iterable[Message]) -> list[str]:
        nonlocal calls
        calls += 1
        images = machines.folders[1] / "images"
        if calls == 4 + 1 + 1 and images.exists():  # census, the view of the target, then the first message of round 1
            images.rename(aside)
        if calls == 4 + 1 + 3 + 1 + 1:
            aside.rename(images)
        return original(self, messages)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalGrid, "push_messages", pushed)
        patch.setattr("fedomg.flower.server.logger.warning", told.append)
        serve(machines, config, tmp_path / "out", PATIENCE)
    assert [record["dropped"] for record in _records(tmp_path / "out")] == [[], [1], [], []]
    assert len(told) == 1
    assert told[0].startswith("phase 'fit' of round 1 goes on without client 1: ")


def test_a_node_that_is_silent_is_left_out_at_the_deadline(machines: Machines, tmp_path: Path) -> None:
    told: list[str] = []
    original = LocalGrid.push_messages

    def pushed(self: LocalGrid, messages: Iterable[Message]) -> list[str]:
        sent = list(messages)
        if sent[0].metadata.message_type == "query.exchange":
            machines.lost = {102}
        return original(self, sent)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalGrid, "push_messages", pushed)
        patch.setattr("fedomg.flower.server.logger.warning", told.append)
        serve(machines, _config(rounds=1), tmp_path / "out", Patience(4, 0.5, 2))
    assert [record["dropped"] for record in _records(tmp_path / "out")] == [[], [2]]
    assert told == ["phase 'fit' of round 1 goes on without client 2: no reply within 2 seconds"]


def test_where_nobody_trains_the_run_ends(machines: Machines, tmp_path: Path) -> None:
    config = _config(rounds=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedomg.flower.client.Memory", lambda *_: 1 / 0)
        with pytest.raises(UserError, match=r"no client has taken part in phase 'fit' of round 1: ZeroDivisionError"):
            serve(machines, config, tmp_path / "out", PATIENCE)


def test_too_few_nodes_end_the_run_after_the_stated_time(machines: Machines, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^4 of 5 nodes have come within 0\.5 seconds; start the missing SuperNodes$"):
        serve(machines, _config(), tmp_path / "out", Patience(5, 0.5, 20))


def test_methods_with_one_client_are_refused(machines: Machines, tmp_path: Path) -> None:
    with pytest.raises(UserError, match='method "erm" has one client that holds all data'):
        serve(machines, _config("erm"), tmp_path / "out", PATIENCE)


def test_nodes_that_do_not_fit_together_are_refused(machines: Machines, tmp_path: Path) -> None:
    _draw(machines.folders[1] / "images", "chalk")
    with pytest.raises(UserError, match=r'several nodes hold a client called "chalk"'):
        serve(machines, _config(), tmp_path / "out", PATIENCE)
    shutil.rmtree(machines.folders[1] / "images" / "chalk")
    _draw(machines.folders[2] / "images", "more", ("cat", "dog", "owl"))
    with pytest.raises(UserError, match="nodes differ in images or classes"):
        serve(machines, _config(), tmp_path / "out", PATIENCE)


def test_without_a_node_that_holds_the_target_there_is_no_run(machines: Machines, tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedomg.flower.server.logger.warning", told.append)
        shutil.rmtree(machines.folders[3] / "images")
        with pytest.raises(UserError, match='no node holds the target "target"'):
            serve(machines, _config(), tmp_path / "out", PATIENCE)
    assert len(told) == 1
    assert told[0].startswith("the run goes on without node 103: ")
