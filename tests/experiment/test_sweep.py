"""Sweeps: which runs there are, and that each ends as it would alone, whatever happens to the others and to the sweep."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support import TINY, tiny, write_toml
from tests.test_cli import assert_refused, fedomg

from fedomg.core.errors import UserError
from fedomg.data.catalogue import SOURCES, load_dataset
from fedomg.data.dataset import Dataset
from fedomg.data.options import DataOptions
from fedomg.experiment.backbone import unwatched
from fedomg.experiment.config import load_config, make_config
from fedomg.experiment.jobs import Failure, Job, Watcher, _next
from fedomg.experiment.shelf import Shelf
from fedomg.experiment.sweep import Planned, SweepFolder, is_finished, load_sweep, plan, run_sweep
from fedomg.report.sweep import show_failures

BASE = {key: value for key, value in TINY.items() if key != "engine"}
CONFIG = """
dataset = "rect4"
rounds = 12
target = "domain2"
[data]
points = 60
[model]
name = "linear"
[local]
lr = 0.1
momentum = 0.9
optimizer_state = "persistent"
[sweep]
method = ["fedavg", "fedomg"]
seed = [0, 1, 2]
"""


def _planned(lists: Mapping[str, Any], **base: Any) -> list[Planned]:
    return plan({**BASE, **base, "sweep": lists})


# ------------------------------------------------------------------------------------------------------------ expansion


def test_every_combination_in_the_order_of_the_lists() -> None:
    planned = _planned({"method": ["fedavg", "fedomg"], "seed": [0, 1], "local.lr": [0.1, 0.2]})
    assert [(run.config.method, run.config.seed, run.config.local.lr) for run in planned] == [
        (method, seed, lr) for method in ("fedavg", "fedavg+omg") for seed in (0, 1) for lr in (0.1, 0.2)
    ]
    assert all(run.config.rounds == 3 and run.config.local.batch_size == 8 for run in planned)


def test_lists_may_stand_in_tables() -> None:
    nested, dotted = _planned({"local": {"lr": [0.1, 0.2]}}), _planned({"local.lr": [0.1, 0.2]})
    assert [run.config for run in nested] == [run.config for run in dotted]


def test_an_entry_may_set_several_keys() -> None:
    planned = _planned({"method": ["fedavg", {"method": "fedprox", "local": {"mu": 0.5}}], "seed": [0]})
    assert [run.config.method for run in planned] == ["fedavg", "fedprox"]
    assert planned[1].config.table()["local"]["mu"] == 0.5
    assert planned[1].settings == {"method": "fedprox", "local.mu": 0.5, "seed": 0}


def test_all_targets_are_the_domains_of_each_data_set() -> None:
    planned = _planned({"dataset": ["rect4", {"dataset": "emoji", "model.name": "cnn"}], "target": "all"}, data={})
    found = [(run.config.dataset, run.config.target) for run in planned]
    assert found == [("rect4", f"domain{i}") for i in range(1, 5)] + [("emoji", name) for name in SOURCES["emoji"].domains]


def test_all_targets_of_data_that_name_their_domains_themselves() -> None:
    planned = _planned({"target": "all"}, dataset="tests.pictures:Pictures", data={}, model={"name": "cnn"})
    assert [run.config.target for run in planned] == ["blue", "green", "red"]


def test_what_is_said_twice_runs_once() -> None:
    assert [run.config.method for run in _planned({"method": ["fedomg", "fedavg", "fedavg+omg"]})] == ["fedavg+omg", "fedavg"]


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({}, "is a table of lists"),
        ({"seed": 3}, r"sweep\.seed must be a list of values or tables \(got 3\)"),
        ({"seed": []}, r"sweep\.seed must be a list"),
        ({"target": "domain1"}, r'sweep\.target must be a list of values or tables or "all"'),
        ({"target": ["domain9"]}, r'no domain is called "domain9"; did you mean .*\(in the run with target = "domain9"\)'),
        ({"methd": ["fedavg"]}, 'unknown key "methd"; did you mean "method"'),
        ({"method": ["fedavg", "fedpro"]}, r'did you mean "fedprox".*in the run with method = "fedpro"'),
        ({"method": ["fedavg", "fedprox"], "local.mu": [0.1]}, r'"fedavg" has no key "local\.mu".*method = "fedavg", local\.mu = 0\.1'),
        ({"local.lr": [0.1], "method": [{"method": "fedavg", "local.lr": 0.2}]}, r"local\.lr is set by two lists"),
        ({"local.lr": [0.1, -1]}, r"local\.lr should be greater than 0"),
        ({"rounds.x": [1]}, r'sweep\.rounds\.x: "rounds" is a value, not a table'),
    ],
)
def test_mistakes_are_found_before_anything_starts(lists: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        _planned(lists)


def test_a_single_domain_cannot_be_held_out() -> None:
    with pytest.raises(UserError, match='data set "mnist" has a single domain'):
        plan({"dataset": "mnist", "sweep": {"target": "all"}})


def test_run_and_sweep_take_files_of_their_own(tmp_path: Path) -> None:
    single, several = write_toml(tmp_path / "one.toml", "seed = 1"), write_toml(tmp_path / "many.toml", "[sweep]\nseed = [0, 1]")
    assert len(load_sweep(several)) == 2
    assert len(load_sweep(several, ["sweep.seed=[4, 5, 6]", "rounds=2"])) == 3
    with pytest.raises(UserError, match=r"one\.toml has no \[sweep\] table"):
        load_sweep(single)
    with pytest.raises(UserError, match="use fedomg sweep"):
        load_config(several)


def test_folders_have_names_that_say_what_is_in_them() -> None:
    names = [run.name for run in _planned({"method": ["fedomg"], "target": ["domain1"], "seed": [7], "local.lr": [0.1, 0.2]})]
    assert [name[:-7] for name in names] == ["fedavg+omg-rect4-domain1-lr=0.1-seed7", "fedavg+omg-rect4-domain1-lr=0.2-seed7"]
    odd = _planned({"dataset": [{"dataset": "tests.pictures:Pictures", "model.name": "cnn"}]}, data={})[0]
    assert odd.name == f"fedavg+omg-tests.pictures.Pictures-name=cnn-seed0-{odd.config.hash()[:6]}"


def test_another_setting_is_another_folder() -> None:
    """So a changed file never meets the folders of what it said before."""
    assert _planned({"seed": [0]})[0].name != _planned({"seed": [0]}, rounds=4)[0].name


# ----------------------------------------------------------------------------------------------------------------- data


def test_a_shelf_makes_what_it_holds_no_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def counted(name: str, options: DataOptions, seed: int) -> Dataset:
        loaded.append(name)
        return load_dataset(name, options, seed)

    monkeypatch.setattr("fedomg.experiment.shelf.load_dataset", counted)
    shelf = Shelf()

    def examples(dataset: str, seed: int = 0, model: str = "mlp", frozen: bool = False, **data: Any) -> Dataset:
        options = {"model": {"name": model, "frozen_backbone": frozen}, "data": data}
        return shelf.examples(make_config({"dataset": dataset, "seed": seed, **options}), unwatched)

    emoji = [examples("emoji", seed, validation=share) for seed in (0, 1) for share in (0.1, 0.2)]
    assert all(dataset is emoji[0] for dataset in emoji)
    assert loaded == ["emoji"]
    for seed in (0, 0, 1):  # its points are drawn from the seed
        examples("rect4", seed)
    assert loaded == ["emoji", "rect4", "rect4"]
    assert examples("emoji") is not emoji[0]
    loaded.clear()
    own = "tests.pictures:Pictures"
    first, again, other = (
        examples(own, model=model, frozen=True, test=share) for model, share in (("mlp", 0.1), ("mlp", 0.2), ("cnn", 0.1))
    )
    assert first is again
    assert first.inputs.shape[1:] == (200,)
    assert other.inputs.shape[1:] == (512,)
    assert loaded == [own]


def test_a_worker_goes_on_with_the_data_that_it_holds() -> None:
    jobs = [Job(tiny(seed=seed), Path(str(place))) for place, seed in enumerate((0, 1, 0))]
    waiting = jobs[:]
    assert [_next(waiting, jobs[1].examples), _next(waiting, jobs[0].examples), _next(waiting, "others")] == [jobs[1], jobs[0], jobs[2]]
    assert waiting == []


# -------------------------------------------------------------------------------------------------------------- running


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs, one after the other, in one go."""
    out = tmp_path_factory.mktemp("sweep")
    config = write_toml(out / "sweep.toml", CONFIG)
    assert run_sweep(SweepFolder(load_sweep(config), out), Watcher(), workers=1) == {}
    return out


def _content(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Records and result, but for the clock."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    return [{**record, "seconds": None} for record in records], {**result, "seconds": None}


def _states(out: Path) -> list[str]:
    return [run["state"] for run in json.loads((out / "sweep.json").read_text())["runs"]]


def test_a_sweep_leaves_run_folders_and_a_list_of_them(unbroken: Path) -> None:
    rows = json.loads((unbroken / "sweep.json").read_text())["runs"]
    assert [(row["method"], row["seed"]) for row in rows] == [(m, s) for m in ("fedavg", "fedavg+omg") for s in (0, 1, 2)]
    assert _states(unbroken) == ["finished"] * 6
    for row, planned in zip(rows, load_sweep(unbroken / "sweep.toml"), strict=True):
        folder = unbroken / row["folder"]
        assert load_config(folder / "config.toml") == planned.config
        assert row["config_hash"] == json.loads((folder / "result.json").read_text())["config_hash"] == planned.config.hash()
        assert is_finished(planned.config, folder)
        assert not is_finished(make_config({**planned.config.table(), "rounds": 4}), folder)


def test_what_is_finished_is_not_touched_again(unbroken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedomg.experiment.jobs._Worker", lambda *_: pytest.fail("a worker was started"))
    done = fedomg("sweep", unbroken / "sweep.toml", "--out", unbroken)
    assert done.returncode == 0, done.stderr
    assert "6 runs, 6 of them finished before" in done.stdout
    assert "fedavg+omg" in done.stdout


def _start(config: Path, out: Path, jobs: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", "from fedomg.cli import main; main()", "sweep", str(config), "--out", str(out), "--jobs", str(jobs)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def _wait_until(holds: Callable[[], bool], process: "subprocess.Popen[str] | None" = None) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _group_is_empty(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def _rounds(out: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in out.glob("*/metrics.jsonl"))


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_a_sweep_that_was_interrupted_and_then_killed_ends_with_the_same_bits(unbroken: Path, tmp_path: Path) -> None:
    """Stopped twice at no particular moment; each time no process stays, and the next call goes on."""
    config, out = unbroken / "sweep.toml", tmp_path / "broken"
    process = _start(config, out, jobs=1)
    _wait_until(lambda: _rounds(out) > 3, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, err = process.communicate(timeout=30)
    assert process.returncode == 2
    assert err.strip().splitlines() == [f"fedomg: stopped; the same command goes on from the last finished rounds in {out}"]
    _wait_until(lambda: _group_is_empty(process.pid))
    assert "running" not in _states(out)

    process = _start(config, out, jobs=2)
    _wait_until(lambda: any(out.glob("*/result.json")), process)
    process.kill()
    process.communicate()
    _wait_until(lambda: _group_is_empty(process.pid))
    finished = {path: path.stat().st_mtime_ns for path in out.glob("*/result.json")}
    assert "running" in _states(out)

    watcher = _Seen()
    assert run_sweep(SweepFolder(load_sweep(config), out), watcher, workers=2) == {}
    assert not watcher.seen & {path.parent.name for path in finished}
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert _states(out) == ["finished"] * 6
    for run in load_sweep(config):
        assert _content(out / run.name) == _content(unbroken / run.name)


class _Seen(Watcher):
    def __init__(self) -> None:
        self.seen: set[str] = set()

    def started(self, job: Job) -> None:
        self.seen.add(job.out.name)


def test_a_reason_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failures = {tmp_path / name: Failure(reason) for name, reason in (("a", "no data"), ("b", "too small"), ("c", "no data"))}
    show_failures(failures, 4, tmp_path / "sweep.json")
    told = capsys.readouterr().out.splitlines()
    assert told[-2:] == ["  a and 1 more: no data", "  b: too small"]
    assert "3 of 4 runs failed" in told[-3]


def test_a_run_that_fails_stops_no_other(tmp_path: Path) -> None:
    """By a fault in the code, by a mistake, or with its whole process."""
    text = """
        dataset = "rect4"
        rounds = 2
        [data]
        points = 20
        [sweep]
        model.name = ["tests.failing:Breaks", "cnn", "tests.failing:Dies", "linear"]
        """
    config, out = write_toml(tmp_path / "sweep.toml", text), tmp_path / "out"
    done = fedomg("sweep", config, "--out", out, "--jobs", "1")
    assert done.returncode == 1
    assert done.stderr == ""
    assert "3 of 4 runs failed" in done.stdout
    assert "ZeroDivisionError: no answer" in done.stdout
    assert "its process has ended (signal SIGKILL)" in done.stdout
    assert 'model "cnn" needs images' in done.stdout
    rows = json.loads((out / "sweep.json").read_text())["runs"]
    assert [row["state"] for row in rows] == ["failed", "failed", "failed", "finished"]
    assert "in fail" in rows[0]["traceback"]
    assert rows[1]["traceback"] is None
    again = fedomg("sweep", config, "--out", out, "--set", 'sweep.model.name=["linear"]')
    assert again.returncode == 0
    assert "1 run, 1 of them finished before" in again.stdout


def test_a_bad_configuration_starts_nothing(tmp_path: Path) -> None:
    config = write_toml(tmp_path / "sweep.toml", CONFIG)
    assert_refused(fedomg("sweep", config, "--set", "local.lr=-1", "--out", tmp_path / "out"), "local.lr")
    assert_refused(fedomg("sweep", config, "--set", 'sweep.method=["fedomgg"]', "--out", tmp_path / "out"), 'did you mean "fedomg"')
    assert not (tmp_path / "out").exists()


def test_the_example_of_the_page_runs_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text(encoding="utf-8")
    config, commands = (re.findall(rf"```{language}\n(.*?)```", shown, flags=re.DOTALL)[0] for language in ("toml", "console"))
    Path("sweep.toml").write_text(config, encoding="utf-8")
    printed = []
    for line in commands.splitlines():
        program, *arguments = shlex.split(line.removeprefix("$ "))
        assert program == "fedomg"
        done = fedomg(*arguments)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert "16 runs, 0 of them finished before" in printed[0]
    assert re.search(r"method +domain1 +domain2 +domain3 +domain4 +mean", re.sub(r"[^\w ]", " ", printed[0]))
    assert "8 runs, 0 of them finished before" in printed[1]
    assert _states(Path("runs/rect4")) == ["finished"] * 8
    assert len(list(Path("runs/rect4").glob("*/result.json"))) == 24
