"""The command line as a user meets it."""

import contextlib
import io
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from fedomg import cli

TINY = """
method = "fedomg"
dataset = "rect4"
target = "domain3"
rounds = 2
[data]
points = 20
[model]
name = "linear"
"""


def fedomg(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command in this process, which has imported torch already."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["fedomg", *map(str, arguments)])
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return subprocess.CompletedProcess(list(map(str, arguments)), code, out.getvalue(), err.getvalue())


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """One clear line, status 2."""
    assert done.returncode == 2, done
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_a_run_prints_a_line_a_round_and_a_table(config: Path, tmp_path: Path) -> None:
    done = fedomg("run", config, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "round 1/2" in done.stdout
    assert re.search(r"unseen domain +\d", done.stdout)
    assert "\x1b" not in done.stdout
    assert (tmp_path / "out" / "result.json").exists()


def test_in_a_process_of_its_own(config: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from fedomg.cli import main; main()", "run", str(config), "--set", "local.lr=-1"]
    assert_refused(subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False), "local.lr")
    assert list(tmp_path.iterdir()) == [config]


def test_the_default_folder_is_named_after_the_run(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert fedomg("run", config).returncode == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("fedavg+omg-rect4-domain3-seed0-")


def test_resume_goes_on(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert fedomg("run", config, "--out", out).returncode == 0
    assert_refused(fedomg("run", config, "--out", out), "--resume")
    again = fedomg("run", config, "--out", out, "--resume")
    assert again.returncode == 0
    assert "round 2/2" in again.stdout


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("aggregator.kappa=-1", ("aggregator.kappa", "greater than or equal to 0")),
        ("local.lrr=1", ('did you mean "local.lr"',)),
        ("method=fedomgg", ('did you mean "fedomg"',)),
        ("dataset=emojy", ('did you mean "emoji"',)),
        ("target=domain9", ("did you mean", "domain")),
        ("dataset=folder", ("data.root",)),
        ("model.name=cnn", ("images", "linear")),
    ],
)
def test_mistakes_in_the_configuration(config: Path, tmp_path: Path, override: str, words: tuple[str, ...]) -> None:
    assert_refused(fedomg("run", config, "--set", override, "--out", tmp_path / "out"), *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runn"], ("No such command 'runn'. Did you mean 'run'? (", "help: fedomg --help")),
        (["run"], ("CONFIG.toml", "help: fedomg run --help")),
        (["demo", "--seeds", "0"], ("--seeds", "x>=1", "help: fedomg demo --help")),
        (["data", "check", "emoji", "--rot", "x"], ("--root", "help: fedomg data check --help")),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], words: tuple[str, ...]) -> None:
    assert_refused(fedomg(*arguments), *words)


def test_without_a_command_there_is_help() -> None:
    assert "Usage: fedomg" in fedomg().stdout
    assert "partition" in fedomg("data").stdout


def test_a_missing_configuration(tmp_path: Path) -> None:
    assert_refused(fedomg("run", tmp_path / "absent.toml"), "absent.toml", "No such file")


def test_a_folder_that_cannot_be_made(config: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_refused(fedomg("run", config, "--out", tmp_path / "file" / "out"), "file")


def _picture(path: Path, colour: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 20), colour).save(path)


def _folder(root: Path) -> Path:
    for d, domain in enumerate(("photo", "sketch")):
        for c, name in enumerate(("cat", "dog")):
            for i in range(12):
                _picture(root / domain / name / f"{i}.png", (120 * d, 200 * c, i))
    return root


def _run_folder(config: Path, root: Path, out: Path, target: str = "sketch") -> subprocess.CompletedProcess[str]:
    sets = ("dataset=folder", f"data.root={root}", "data.size=16", f"target={target}", "model.name=cnn")
    return fedomg("run", config, "--out", out, *(word for key in sets for word in ("--set", key)))


def test_an_own_folder_with_a_broken_image(config: Path, tmp_path: Path) -> None:
    root = _folder(tmp_path / "pictures")
    (root / "photo" / "cat" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n rubbish")
    done = _run_folder(config, root, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "skipped 1 image" in done.stdout
    assert "photo/cat/broken.png" in done.stdout


def test_an_empty_domain(config: Path, tmp_path: Path) -> None:
    root = _folder(tmp_path / "pictures")
    (root / "cartoon").mkdir()
    assert_refused(_run_folder(config, root, tmp_path / "out"), "cartoon")


def test_a_missing_root(config: Path, tmp_path: Path) -> None:
    assert_refused(_run_folder(config, tmp_path / "absent", tmp_path / "out"), "absent")


def test_methods_and_datasets_as_json() -> None:
    methods = json.loads(fedomg("methods", "--json").stdout)
    assert all({"name", "aliases", "kind", "composes"} <= row.keys() for row in methods)
    by_name = {row["name"]: row for row in methods}
    assert by_name["fedavg+omg"]["aliases"] == ["fedomg"]
    assert by_name["fedavg"]["composes"] is True
    assert (by_name["fedavg"]["needs"], by_name["fedavg"]["needs_because"]) == ("sums", None)
    assert by_name["fedavg+omg"]["needs"] == "individual"
    datasets = {row["name"]: row for row in json.loads(fedomg("datasets", "--json").stdout)}
    assert datasets["emoji"]["domains"] == ["contrast", "fluent3d", "line", "noto", "openmoji", "twemoji"]


def test_methods_and_datasets_as_text() -> None:
    assert "fedavg+omg" in fedomg("methods").stdout
    assert "emoji" in fedomg("datasets").stdout


def test_a_report_of_runs(config: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        assert fedomg("run", config, "--set", f"seed={seed}", "--out", tmp_path / "runs" / str(seed)).returncode == 0
    done = fedomg("report", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "report.html").read_text().startswith("<!doctype html>")
    assert "over n = 2 seeds" in (tmp_path / "runs" / "table.md").read_text()
    assert all((tmp_path / "runs" / f"table.{suffix}").exists() for suffix in ("tex", "csv"))
    assert_refused(fedomg("report", tmp_path / "runs", "--paper", "table3"), "table")
    assert_refused(fedomg("report", tmp_path / "absent"), "absent")


def test_help_answers_in_a_third_of_the_time_that_torch_takes_to_import() -> None:
    def seconds(code: str, *arguments: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start

    pairs = [(seconds("from fedomg.cli import main; main()", "--help"), seconds("import torch")) for _ in range(3)]
    help_, torch_ = (min(pair[i] for pair in pairs) for i in (0, 1))
    assert help_ <= torch_ / 3, (help_, torch_)
