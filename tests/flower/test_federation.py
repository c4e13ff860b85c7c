"""Both ends of a federation of machines, with the messages as bytes and every node's folder its own."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Message
from tests.flower.machines import DOMAINS, PATIENCE, Machines, configure, draw, records, weights
from tests.grids import LocalGrid

from fedomg.core.errors import UserError
from fedomg.engine.pool import PoolEngine
from fedomg.experiment.runner import run
from fedomg.flower.memory import Mark, Memory
from fedomg.flower.server import Patience, serve


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


@pytest.mark.parametrize("method", ["fedomg", "scaffold+omg", "fedrod"])
def test_a_federation_computes_the_bits_of_one_machine_with_all_folders(method: str, machines: Machines, tmp_path: Path) -> None:
    serve(machines, configure(method), tmp_path / "apart", PATIENCE)
    for folder, domain in zip(machines.folders, DOMAINS, strict=True):
        shutil.copytree(folder / "images" / domain, tmp_path / "all" / domain)
    run(configure(method, root=str(tmp_path / "all")), tmp_path / "together")
    assert weights(tmp_path / "apart") == weights(tmp_path / "together")
    assert [record["clients"] for record in records(tmp_path / "apart")] == [record["clients"] for record in records(tmp_path / "together")]
    assert records(tmp_path / "apart")[-1]["views"]["target"] == records(tmp_path / "together")[-1]["views"]["target"]


def test_workers_of_a_node_compute_the_same_bits(machines: Machines, tmp_path: Path) -> None:
    """Eleven clients a node, with what they remember, and views beside training."""
    config = configure("scaffold+omg", rounds=2, clients_per_domain=11)
    serve(machines, config, tmp_path / "alone", PATIENCE)
    machines.configure({"workers": 2})
    started: list[list[int]] = []
    original = PoolEngine.__init__

    def noted(self: PoolEngine, *arguments: Any, **keys: Any) -> None:
        original(self, *arguments, **keys)
        started.append(self.pids)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PoolEngine, "__init__", noted)
        serve(machines, config, tmp_path / "shared", PATIENCE)
    assert [len(pids) for pids in started] == [2] * 3 * 2, "two for each of three nodes in each of two rounds, none for a single client"
    assert not any(Path(f"/proc/{pid}").exists() for pids in started for pid in pids)
    assert weights(tmp_path / "shared") == weights(tmp_path / "alone")
    assert records(tmp_path / "shared") == records(tmp_path / "alone")
    names = [client["name"] for client in records(tmp_path / "shared")[-1]["clients"].values()]
    assert names == [f"{domain}-{number}" for domain in DOMAINS[:3] for number in range(1, 12)], "the tenth does not come before the second"


@pytest.mark.parametrize("workers", [0, -2, 1.5, True, "many"])
def test_a_number_of_workers_that_is_none_is_one_line(workers: object, machines: Machines, tmp_path: Path) -> None:
    told: list[str] = []
    machines.configure({"workers": workers})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedomg.flower.server.logger.warning", told.append)
        with pytest.raises(UserError, match="no node has said what it holds"):
            serve(machines, configure(), tmp_path / "out", PATIENCE)
    written = json.dumps(workers)
    reason = f"workers={written} in this node's --node-config is not a whole number of at least 1"
    assert told == [f"the run goes on without node {100 + place}: {reason}" for place in range(len(DOMAINS))]


def test_states_stay_on_their_nodes_and_a_continued_run_finds_them(machines: Machines, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    serve(machines, configure("scaffold", rounds=4), whole, PATIENCE)

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
            serve(machines, configure("scaffold", rounds=4), broken, PATIENCE)
    assert len(records(broken)) == 3
    serve(machines, configure("scaffold", rounds=4), broken, PATIENCE, resume=True)
    assert weights(broken) == weights(whole)
    assert records(broken) == records(whole)
    held = [path for path in (broken / "checkpoint").glob("client*") if path.stat().st_size > 200]
    assert not held, "the server keeps numbers, not states"
    memory = machines.folders[0] / "memory"
    assert len(list(memory.iterdir())) == 2, "a folder for each run"


def test_a_lost_state_is_reported_and_the_run_goes_on(machines: Machines, tmp_path: Path) -> None:
    told: list[str] = []
    original = Memory.load

    def forgetful(self: Memory, client: int, mark: Mark) -> Any:
        if client == 1 and mark == Mark(1, 1):
            shutil.rmtree(self._folder)
        return original(self, client, mark)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Memory, "load", forgetful)
        patch.setattr("fedomg.flower.server.logger", SimpleNamespace(warning=told.append))
        serve(machines, configure("scaffold"), tmp_path / "out", PATIENCE)
    assert told == ["client 1 (ink) has lost what it remembered, and starts as one that takes part for the first time"]
    assert [record["dropped"] for record in records(tmp_path / "out")] == [[]] * 4


def test_the_round_before_stays_until_the_next_is_done(tmp_path: Path) -> None:
    memory = Memory(tmp_path, "0123456789abcdef")
    marks = [Mark()]
    for change in range(1, 6):  # two phases a round
        marks.append(memory.save(3, marks[-1], round=(change + 1) // 2, state={"a": torch.tensor([change])}))
    assert marks == [(0, 0), (1, 1), (2, 1), (3, 2), (4, 2), (5, 3)]
    kept = {mark: memory.load(3, mark) for mark in marks}
    assert kept[Mark()] == {}
    assert [mark for mark in marks[1:] if kept[mark] is not None] == [(4, 2), (5, 3)]
    assert memory.load(30, Mark(5, 3)) is None
    (path,) = tmp_path.rglob("3-5-3*")
    path.write_bytes(b"torn")
    assert memory.load(3, Mark(5, 3)) is None
    with pytest.raises(UserError, match="no name of a run"):
        Memory(tmp_path, "../elsewhere")


def test_a_state_whose_reply_was_not_taken_is_not_gone_on_with(tmp_path: Path) -> None:
    memory = Memory(tmp_path, "0123456789abcdef")
    first = memory.save(0, Mark(), round=1, state={"a": torch.tensor([1])})
    late = memory.save(0, first, round=2, state={"a": torch.tensor([-2])})
    assert memory.load(0, first) == {"a": torch.tensor([1])}, "a server that continues after round 1 finds it"
    taken = memory.save(0, first, round=3, state={"a": torch.tensor([3])})
    assert memory.load(0, taken) == {"a": torch.tensor([3])}
    assert memory.load(0, first) == {"a": torch.tensor([1])}
    assert memory.load(0, late) is None


def test_a_node_that_fails_in_one_round_is_named_and_left_out(machines: Machines, tmp_path: Path) -> None:
    told: list[str] = []
    aside = machines.folders[1] / "aside"
    config = configure(rounds=3)
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
        patch.setattr("fedomg.flower.server.logger", SimpleNamespace(warning=told.append))
        serve(machines, config, tmp_path / "out", PATIENCE)
    assert [record["dropped"] for record in records(tmp_path / "out")] == [[], [1], [], []]
    assert len(told) == 1
    assert told[0].startswith("phase 'fit' of round 1 goes on without client 1 (ink): ")


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
        patch.setattr("fedomg.flower.server.logger", SimpleNamespace(warning=told.append))
        serve(machines, configure(rounds=1), tmp_path / "out", Patience(4, 0.5, 2))
    assert [record["dropped"] for record in records(tmp_path / "out")] == [[], [2]]
    assert told == ["phase 'fit' of round 1 goes on without client 2 (paint): no reply within 2 seconds"]


def test_where_nobody_trains_the_run_ends(machines: Machines, tmp_path: Path) -> None:
    config = configure(rounds=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedomg.flower.client.Memory", lambda *_: 1 / 0)
        with pytest.raises(UserError, match=r"no client has taken part in phase 'fit' of round 1: ZeroDivisionError"):
            serve(machines, config, tmp_path / "out", PATIENCE)


def test_too_few_nodes_end_the_run_after_the_stated_time(machines: Machines, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^4 of 5 nodes have come within 0\.5 seconds; start the missing SuperNodes$"):
        serve(machines, configure(), tmp_path / "out", Patience(5, 0.5, 20))


def test_methods_with_one_client_are_refused(machines: Machines, tmp_path: Path) -> None:
    with pytest.raises(UserError, match='method "erm" has one client that holds all data'):
        serve(machines, configure("erm"), tmp_path / "out", PATIENCE)


def test_nodes_that_do_not_fit_together_are_refused(machines: Machines, tmp_path: Path) -> None:
    draw(machines.folders[1] / "images", "chalk")
    with pytest.raises(UserError, match=r'several nodes hold a client called "chalk"'):
        serve(machines, configure(), tmp_path / "out", PATIENCE)
    shutil.rmtree(machines.folders[1] / "images" / "chalk")
    draw(machines.folders[2] / "images", "more", ("cat", "dog", "owl"))
    with pytest.raises(UserError, match="nodes differ in images or classes"):
        serve(machines, configure(), tmp_path / "out", PATIENCE)


def test_without_a_node_that_holds_the_target_there_is_no_run(machines: Machines, tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedomg.flower.server.logger", SimpleNamespace(warning=told.append))
        shutil.rmtree(machines.folders[3] / "images")
        with pytest.raises(UserError, match='no node holds the target "target"'):
            serve(machines, configure(), tmp_path / "out", PATIENCE)
    assert len(told) == 1
    assert told[0].startswith("the run goes on without node 103: ")
