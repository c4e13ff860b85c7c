"""What a node sends that cannot be used: the round goes on without the client, by name, and nothing of it stays."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from fedomg.flower.alarm import OutOfTimeError, at_most
from fedomg.flower.server import serve
from fedomg.local.trainer import Trainer

Spoil = Callable[[ArrayRecord], object]
MULTI_LINE = ValueError("a line\n\n  and another")


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
                if request.phase == FIT and request.broadcasts[1].round == 2:
                    self._spoiled.add(identifier)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = super().pull_messages(message_ids)
        for reply in replies:
            if reply.metadata.reply_to_message_id in self._spoiled:
                self._spoil(reply.content.array_records["fedomg"])
        return replies


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_used_is_left_out_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil, reason = BROKEN[name]
    log: list[str] = []
    monkeypatch.setattr("fedomg.flower.server.logger.warning", log.append)
    serve(Spoiling(tmp_path, spoil), configure("scaffold+omg"), tmp_path / "out", PATIENCE)
    assert [record["dropped"] for record in records(tmp_path / "out")] == [[], [], [1], []]
    (line,) = log
    assert line.startswith("phase 'fit' of round 2 goes on without client 1 (ink): ")
    assert reason in line
    assert "\n" not in line
    assert all(value is not None for value in records(tmp_path / "out")[-1]["server"].values() if not isinstance(value, dict))


def test_the_round_is_then_the_one_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """States too: a reply that is not taken leaves none, as one whose training diverged."""
    monkeypatch.setattr("fedomg.flower.server.logger.warning", lambda text: None)
    serve(Spoiling(tmp_path / "spoiled", BROKEN["nan"][0]), configure("scaffold+omg"), tmp_path / "dropped", PATIENCE)
    original = Trainer.run

    def raising(self: Trainer[Any], phase: str, visit: Any, *more: Any) -> Any:
        if (visit.client.name, visit.broadcast.round) == ("ink", 2):
            raise MULTI_LINE
        return original(self, phase, visit, *more)

    monkeypatch.setattr(Trainer, "run", raising)
    serve(Machines(tmp_path / "raising"), configure("scaffold+omg"), tmp_path / "raised", PATIENCE)
    assert weights(tmp_path / "dropped") == weights(tmp_path / "raised")
    assert records(tmp_path / "dropped")[3]["clients"] == records(tmp_path / "raised")[3]["clients"]


def test_an_error_in_training_is_one_line_with_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    original = Trainer.run

    def raising(self: Trainer[Any], phase: str, visit: Any, *more: Any) -> Any:
        if visit.client.name == "ink":
            raise MULTI_LINE
        return original(self, phase, visit, *more)

    monkeypatch.setattr(Trainer, "run", raising)
    monkeypatch.setattr("fedomg.flower.server.logger.warning", log.append)
    serve(Machines(tmp_path), configure(rounds=1), tmp_path / "out", PATIENCE)
    assert log == ["phase 'fit' of round 1 goes on without client 1 (ink): ValueError: a line and another"]


def test_a_reply_that_comes_too_late_is_no_reply_to_the_next_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its update nor the state that has come of it."""
    log: list[str] = []
    monkeypatch.setattr("fedomg.flower.server.logger.warning", log.append)
    machines = Machines(tmp_path / "late")
    pushed = LocalGrid.push_messages
    exchanges = 0

    def counted(self: LocalGrid, messages: Iterable[Message]) -> list[str]:
        nonlocal exchanges
        sent = list(messages)
        exchanges += sent[0].metadata.message_type == "query.exchange"
        machines.lost = {101} if exchanges in range(4, 7) else set()  # three messages a round; 101's of the second waits in the grid
        return pushed(self, sent)

    with monkeypatch.context() as patch:
        patch.setattr(LocalGrid, "push_messages", counted)
        options = configure("scaffold+omg").table()
        options["evaluate"] |= dict.fromkeys(("global", "target", "worst_group"), "never")
        serve(machines, type(configure()).model_validate(options), tmp_path / "out", replace(PATIENCE, deadline=0.5))
    assert log == ["phase 'fit' of round 2 goes on without client 1 (ink): no reply within 0.5 seconds"]


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


def test_a_client_that_hangs_is_broken_off_and_takes_part_in_the_next_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    original = Trainer.run

    def hanging(self: Trainer[Any], phase: str, visit: Any, *more: Any) -> Any:
        if (visit.client.name, visit.broadcast.round) == ("ink", 1):
            time.sleep(60)
        return original(self, phase, visit, *more)

    monkeypatch.setattr(Trainer, "run", hanging)
    monkeypatch.setattr("fedomg.flower.server.logger.warning", log.append)
    serve(Machines(tmp_path), configure(rounds=2), tmp_path / "out", replace(PATIENCE, deadline=3))
    assert [record["dropped"] for record in records(tmp_path / "out")] == [[], [1], []]
