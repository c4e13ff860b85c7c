"""Trackers against the real packages: what they hold afterwards is what the run recorded."""

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import tiny

from fedomg.core.errors import UserError
from fedomg.experiment.runner import run
from fedomg.report.console import show_run, show_tracking
from fedomg.report.trackers import TRACKERS, result_scalars, scalars, send

CONFIG = tiny("fedomg", "rounds=3", 'target="domain2"')


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "one"
    run(CONFIG, out)
    return out


def _records(folder: Path) -> list[dict[str, float]]:
    return [scalars(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _result(folder: Path) -> dict[str, float]:
    return result_scalars(json.loads((folder / "result.json").read_text()))


def test_every_number_of_a_record_has_its_path(recorded: Path) -> None:
    first, last = _records(recorded)[0], _records(recorded)[-1]
    assert {"views/target/accuracy", "views/global/loss", "seconds/total", "dropped"} <= first.keys()
    assert {"clients/0/cosine", "clients/0/omg_weight", "server/objective", "server/gap"} <= last.keys()
    assert {"selected/target", "final/target", "best/target", "mean_last_10/target", "selected/round"} <= _result(recorded).keys()


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_holds_what_was_recorded_once(recorded: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for _ in range(2):
        assert send(["tensorboard"], recorded) == 4
    events = accumulator.EventAccumulator(str(recorded / "tensorboard"))
    events.Reload()
    expected = _records(recorded)
    for name in ("views/target/accuracy", "server/objective"):
        found = {event.step: event.value for event in events.Scalars(name)}
        assert found == pytest.approx({round: values[name] for round, values in enumerate(expected) if name in values})
        assert len(events.Scalars(name)) == len(found)
    assert events.Scalars("result/selected/target")[0].value == pytest.approx(_result(recorded)["selected/target"])


@pytest.mark.filterwarnings("ignore")
def test_mlflow_holds_what_was_recorded_once(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    for _ in range(2):
        send(["mlflow"], recorded)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (kept,) = client.search_runs([client.get_experiment_by_name("fedomg").experiment_id])
    assert kept.data.params["method"] == "fedavg+omg"
    history = {metric.step: metric.value for metric in client.get_metric_history(kept.info.run_id, "views/target/accuracy")}
    assert history == pytest.approx({round: values["views/target/accuracy"] for round, values in enumerate(_records(recorded))})
    assert kept.data.metrics["result/selected/target"] == pytest.approx(_result(recorded)["selected/target"])
    assert kept.info.status == "FINISHED"


def _messages(log: bytes) -> Iterator[bytes]:
    """Of a file in LevelDB's log format, after seven bytes: pieces in blocks of 32 KiB, each with checksum, length and kind."""
    place, message = 7, b""
    while place + 7 <= len(log):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", log, place)
        message += log[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield message
            message = b""


@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_are_written_offline(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    wandb_pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    send(["wandb"], recorded)
    wandb.teardown()  # as at the end of a process: its service writes the last block
    (written,) = (recorded / "wandb").glob("offline-run-*/run-*.wandb")
    found = {}
    for message in _messages(written.read_bytes()):
        record = wandb_pb.Record()
        record.ParseFromString(message)
        items = {("/".join(item.nested_key) or item.key): json.loads(item.value_json) for item in record.history.item}
        if "views/target/accuracy" in items:
            found[items["_step"]] = items["views/target/accuracy"]
    assert found == pytest.approx({round: values["views/target/accuracy"] for round, values in enumerate(_records(recorded))})


@pytest.mark.filterwarnings("ignore")
def test_a_run_is_followed_while_it_trains(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    show_run(CONFIG, tmp_path / "run", resume=False, track=["tensorboard"])
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))


def test_an_unknown_tracker_is_refused_before_anything_is_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='did you mean "tensorboard"'):
        show_run(CONFIG, tmp_path / "run", resume=False, track=["tensorbord"])
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match='did you mean "tensorboard"'):
        show_tracking("tensorbord", [tmp_path])


@pytest.mark.parametrize("name", list(TRACKERS))
def test_a_missing_package_is_one_line(name: str, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> None:
        raise ImportError(module)

    monkeypatch.setattr("fedomg.report.trackers.import_module", missing)
    with pytest.raises(UserError, match=r'pip install "fedomg\[track\]"'):
        send([name], recorded)


@pytest.mark.filterwarnings("ignore")
def test_the_documented_use_from_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    (code,) = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs" / "trackers.md").read_text(), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "trackers.md", "exec"), {})
    assert list((tmp_path / "runs" / "tracked" / "tensorboard").glob("events.*"))
