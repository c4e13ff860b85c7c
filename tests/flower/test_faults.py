"""What a node sends that cannot be used: the round goes on without the client, by name, and nothing of it stays."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Error, Message
from tests.flower.machines import PATIENCE, Machines, configure, records, weights
from tests.grids import LocalGrid

from fedomg.core import wire
from fedomg.core.records import FIT, Reply
from fedomg.engine.flower.arrivals import flaws, told
from fedomg.engine.flower.messages import from_bytes, from_tensor, read_request, to_bytes, to_tensor
from fedomg.engine.flower.node import QUERY
from fedomg.flower import client
from fedomg.flower.alarm import OutOfTimeError, at_most
from fedomg.flower.server import serve
from fedomg.local.trainer import Trainer

DOCUMENTS = Path(__file__).parents[2] / "docs"
Spoil = Callable[[ArrayRecord], object]


def _rows(change: Callable[[torch.Tensor], torch.Tensor]) -> Spoil:
    def spoil(sent: ArrayRecord) -> None:
        sent["rows"] = from_tensor(change(to_tensor(sent["rows"])).contiguous())

    return spoil


def _cut(name: str) -> Spoil:
    def spoil(sent: ArrayRecord) -> None:
        whole = sent[name]
        sent[name] = Array(whole.dtype, whole.shape, whole.stype, whole.data[: len(whole.data) // 2])

    return spoil


def _told(change: Callable[[dict[str, Any], dict[str, torch.Tensor]], object]) -> Spoil:
    """Changes the header or the tensors beside the update."""

    def spoil(sent: ArrayRecord) -> None:
        header, tensors = wire.decode(to_bytes(sent["replies"]))
        change(header, tensors)
        sent["replies"] = from_bytes(wire.encode(header, tensors))

    return spoil


def _of_client(**changes: Any) -> Spoil:
    return _told(lambda header, tensors: header["replies"][0].update(changes))


def _without_extras(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    for name in [name for name in tensors if "/extras/" in name]:
        del tensors[name]


def _infinite_buffers(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    for name in [name for name in tensors if name.endswith("running_var")]:
        tensors[name].fill_(torch.inf)


def _misshapen_buffers(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    for name in [name for name in tensors if name.endswith("running_mean")]:
        tensors[name] = torch.zeros(1, 2)


BROKEN: dict[str, tuple[Spoil, str]] = {
    "nan": (_rows(lambda rows: rows * torch.nan), "its update is not finite"),
    "one infinity": (_rows(lambda rows: rows.index_fill(1, torch.tensor([3]), -torch.inf)), "its update is not finite"),
    "too short": (_rows(lambda rows: rows[:, :-1]), "its update is torch.float32 of the shape (1, "),
    "a number": (_rows(lambda rows: torch.tensor(1.0)), "its update is torch.float32 of the shape (), not torch.float32 of the shape (1, "),
    "other numbers": (_rows(lambda rows: rows.double()), "its update is torch.float64 of the shape (1, "),
    "no update": (lambda sent: sent.pop("rows"), "its update is missing, not torch.float32 of the shape (1, "),
    "truncated update": (_cut("rows"), "its reply cannot be read: ValueError: "),
    "truncated reply": (_cut("replies"), "its reply cannot be read: "),
    "garbage": (lambda sent: sent.update(replies=from_bytes(bytes(range(200)))), "its reply cannot be read: "),
    "nothing": (lambda sent: sent.clear(), "its reply cannot be read: KeyError: "),
    "another client": (_of_client(client=0), "it has replied for the clients [0], not [1]"),
    "examples that are owed": (_of_client(samples=-12), "it says that it has -12 examples"),
    "no examples": (_of_client(samples=0), "it says that it has 0 examples"),
    "examples that are none": (_of_client(samples="many"), "its reply cannot be read: ValueError: "),
    "infinite buffers": (_told(_infinite_buffers), 'running_var" is not finite'),
    "misshapen buffers": (_told(_misshapen_buffers), 'mean" is torch.float32 of the shape (1, 2), but torch.float32 of the shape ('),
    "no extras": (_told(_without_extras), '" is missing, but torch.float'),
}


class Spoiling(Machines):
    """Spoils what the second node sends in training in the second round."""

    def __init__(self, root: Path, spoil: Spoil) -> None:
        super().__init__(root)
        self._spoil = spoil
        self._spoiled: set[str] = set()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = list(messages)
        identifiers = super().push_messages(sent)
        for message, identifier in zip(sent, identifiers, strict=True):
            if message.metadata.message_type == "query.exchange" and message.metadata.dst_node_id == 101:
                request = read_request(message.content)
                if request.phase == FIT and next(iter(request.broadcasts.values())).round == 2:
                    self._spoiled.add(identifier)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = super().pull_messages(message_ids)
        for reply in replies:
            if reply.metadata.reply_to_message_id in self._spoiled:
                self._spoil(reply.content.array_records["fedomg"])
        return replies


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_used_is_left_out_by_name(name: str, tmp_path: Path, log: list[str]) -> None:
    spoil, reason = BROKEN[name]
    serve(Spoiling(tmp_path, spoil), configure("scaffold+omg"), tmp_path / "out", PATIENCE)
    assert [record["dropped"] for record in records(tmp_path / "out")] == [[], [], [1], []]
    (line,) = log
    assert line.startswith("phase 'fit' of round 2 goes on without client 1 (ink): ")
    assert reason in line
    assert "\n" not in line
    assert all(value is not None for value in records(tmp_path / "out")[-1]["server"].values() if not isinstance(value, dict))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the server's user is told."""
    lines: list[str] = []
    monkeypatch.setattr("fedomg.flower.server.logger", SimpleNamespace(warning=lines.append))
    return lines


def _patch_training(monkeypatch: pytest.MonkeyPatch, round: int, fault: Callable[[], object]) -> None:
    """One client's training in one round."""
    original = Trainer.run

    def run(self: Trainer[Any], phase: str, visit: Any, *more: Any) -> Any:
        if (visit.client.name, visit.broadcast.round) == ("ink", round):
            fault()
        return original(self, phase, visit, *more)

    monkeypatch.setattr(Trainer, "run", run)


def _raise() -> NoReturn:
    raise ValueError("a line\n\n  and another")


@pytest.mark.parametrize("fault", ["spoilt", "late"])
def test_nothing_stays_of_a_reply_that_is_not_taken(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: list[str]) -> None:
    """Neither the update nor the state that has come of it: all is as if the client had raised."""
    config = configure("scaffold+omg", rounds=4)
    machines = Machines(tmp_path / "late") if fault == "late" else Spoiling(tmp_path / "spoilt", BROKEN["nan"][0])
    with monkeypatch.context() as patch:
        if fault == "late":
            _patch_training(patch, 2, lambda: machines.lost.add(101))
            _patch_views(patch, machines)
        serve(machines, config, tmp_path / fault, replace(PATIENCE, deadline=2.0))
    _patch_training(monkeypatch, 2, _raise)
    serve(Machines(tmp_path / "raising"), config, tmp_path / "raised", PATIENCE)
    assert [record["dropped"] for record in records(tmp_path / fault)] == [[], [], [1], [], []]
    assert weights(tmp_path / fault) == weights(tmp_path / "raised")
    assert records(tmp_path / fault) == records(tmp_path / "raised")
    why = {"late": "no reply within 2 seconds", "spoilt": "its update is not finite"}[fault]
    assert log == [f"phase 'fit' of round 2 goes on without client 1 (ink): {reason}" for reason in (why, "ValueError: a line and another")]


def _patch_views(monkeypatch: pytest.MonkeyPatch, machines: Machines) -> None:
    """With the views of a round its node is there again, and its late reply with it."""
    pushed = LocalGrid.push_messages

    def push(self: LocalGrid, messages: Iterable[Message]) -> list[str]:
        sent = list(messages)
        if sent[0].metadata.message_type == QUERY and read_request(sent[0].content).phase != FIT:
            machines.lost.clear()
        return pushed(self, sent)

    monkeypatch.setattr(LocalGrid, "push_messages", push)


def test_one_client_of_a_node_is_left_out_and_its_others_are_not(tmp_path: Path, log: list[str]) -> None:
    def spoil(sent: ArrayRecord) -> None:
        rows = to_tensor(sent["rows"]).clone()
        rows[1, 0] = torch.nan
        sent["rows"] = from_tensor(rows)

    machines = Spoiling(tmp_path, spoil)
    serve(machines, configure(clients_per_domain=2), tmp_path / "out", PATIENCE)
    found = records(tmp_path / "out")
    assert [record["dropped"] for record in found] == [[], [], [3], []]
    assert len(found[2]["clients"]) == 5
    assert len(log) == 1
    assert log[0].endswith(": its update is not finite")


def test_replies_are_held_against_those_of_the_others() -> None:
    def reply(client: int, **extras: torch.Tensor) -> Reply:
        return Reply(client, samples=3, extras=extras)

    ones, twos = torch.ones(2), torch.ones(3)
    assert flaws([]) == {}
    assert flaws([reply(0, a=ones), reply(1, a=ones)]) == {}
    assert flaws([reply(0, a=ones), reply(1, a=ones, b=ones), reply(2, a=ones)]) == {
        1: 'its "b" is torch.float32 of the shape (2,), but missing with the others'
    }
    assert flaws([reply(0, a=twos), reply(1, a=ones), reply(2, a=ones)]) == {
        0: 'its "a" is torch.float32 of the shape (3,), but torch.float32 of the shape (2,) with the others'
    }
    assert flaws([Reply(0, usable=False), reply(1), reply(2)]) == {0: "its training has not stayed finite"}


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (Error(2, "<class 'builtins.RuntimeError'>:<'no\nspace'>"), "its ClientApp has raised RuntimeError: no space"),
        (Error(2, "<class 'KeyError'>:<''>"), "its ClientApp has raised KeyError"),
        (Error(2, "in its own words"), "its ClientApp has raised in its own words"),
        (Error(3, "Error: Message Unavailable"), "no reply in time"),
        (Error(8, "ClientApp stopped responding."), "its ClientApp has died"),
        (Error(7), "error 7: None"),
    ],
)
def test_what_flower_reports_is_one_line(error: Error, line: str) -> None:
    assert told(error) == line


def test_the_documents_quote_it() -> None:
    for page, lines in {
        "deployment.md": [told(Error(5)), told(Error(8)), told(Error(2, "<class 'RuntimeError'>:<'the app's own\nfault'>"))],
        "flower.md": [told(Error(3)), told(Error(5)), told(Error(8))],
    }.items():
        text = (DOCUMENTS / page).read_text(encoding="utf-8")
        assert all(f"`{line}`" in text for line in lines)


def _sleep_at_most(seconds: float) -> None:
    with at_most(seconds):
        try:
            time.sleep(20)
        except Exception:
            pytest.fail("nothing that is broken off may go on")


def test_work_is_broken_off_when_its_time_is_over() -> None:
    start = time.monotonic()
    with pytest.raises(OutOfTimeError):
        _sleep_at_most(0.1)
    assert time.monotonic() - start < 5
    with at_most(0.1):
        pass
    time.sleep(0.2)


def test_a_client_that_hangs_is_broken_off_and_takes_part_in_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: list[str]
) -> None:
    _patch_training(monkeypatch, 1, lambda: time.sleep(60))
    serve(Machines(tmp_path), configure(rounds=2), tmp_path / "out", replace(PATIENCE, deadline=2.0))
    assert [record["dropped"] for record in records(tmp_path / "out")] == [[], [1], []]
    assert log == ["phase 'fit' of round 1 goes on without client 1 (ink): its work has been broken off after 2 seconds"]


@pytest.mark.parametrize("said", [{}, {"holders": [{"name": "ink"}]}, {"holders": 3, "shape": [], "classes": []}, "no idea"])
def test_a_node_that_does_not_say_what_it_holds_is_left_out(
    said: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: list[str]
) -> None:
    machines = Machines(tmp_path)
    sound = client._census

    def census(message: Message, context: Any) -> Message:
        return Message(client.write_json(said), reply_to=message) if context.node_id == 101 else sound(message, context)

    machines._app._registered_funcs["query.census"] = census
    serve(machines, configure(rounds=1), tmp_path / "out", PATIENCE)
    assert records(tmp_path / "out")[1]["cohort"] == [0, 1]
    assert len(log) == 1
    assert log[0].startswith("the run goes on without node 101: its reply cannot be read: ")
