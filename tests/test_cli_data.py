"""`fedomg data`, and runs on label-shift sets, as a user meets them."""

import dataclasses
import json
from pathlib import Path

import pytest
from PIL import Image
from tests import files
from tests.test_cli import assert_refused, fedomg

from fedomg.data.catalogue import SOURCES


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an MNIST of 30 digits that passes for complete."""
    files.write_mnist(tmp_path / "sets" / "MNIST" / "raw")
    monkeypatch.setitem(SOURCES, "mnist", dataclasses.replace(SOURCES["mnist"], total=30))
    return tmp_path / "sets"


def test_check_counts_by_class(root: Path) -> None:
    done = fedomg("data", "check", "mnist", "--root", root)
    assert done.returncode == 0, done.stderr
    assert "30 examples of shape 1 x 28 x 28 (uint8), 10 classes" in done.stdout
    assert [line.split() for line in done.stdout.splitlines()[2:5]] == [["class", "all"], ["0", "3"], ["1", "3"]]
    assert done.stdout.rstrip().endswith("complete")


def test_check_of_the_sets_in_the_package() -> None:
    for name, first in (("rect4", "below"), ("emoji", "Activities")):
        done = fedomg("data", "check", name)
        assert done.returncode == 0, done.stderr
        assert first in done.stdout
        assert "complete" in done.stdout


def test_check_of_a_folder_with_a_broken_picture(tmp_path: Path) -> None:
    for domain in ("photo", "sketch"):
        for name in ("cat", "dog"):
            path = tmp_path / domain / name / "1.png"
            path.parent.mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(path)
    done = fedomg("data", "check", "folder", "--root", tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()[2:4]] == [["class", "photo", "sketch", "all"], ["cat", "1", "1", "2"]]
    (tmp_path / "photo" / "dog" / "2.png").write_bytes(b"rubbish")
    assert_refused(fedomg("data", "check", "folder", "--root", tmp_path), "1 images that cannot be decoded: photo/dog/2.png")


def test_what_check_refuses(root: Path) -> None:
    assert_refused(fedomg("data", "check", "mnists", "--root", root), 'did you mean "mnist"')
    assert_refused(fedomg("data", "check", "mnist"), "data.root", "--root")
    assert_refused(fedomg("data", "check", "emnist", "--root", root), "emnist-mnist-train-images-idx3-ubyte", "--download")
    assert_refused(fedomg("data", "check", "absent:data"), "no module absent")
    path = root / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    assert_refused(fedomg("data", "check", "mnist", "--root", root), str(path), "truncated")


def test_check_of_a_copy_that_is_not_complete(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "mnist", dataclasses.replace(SOURCES["mnist"], total=70_000))
    assert_refused(fedomg("data", "check", "mnist", "--root", root), "holds 30 examples where a complete copy has 70,000")


def test_partition_prints_and_draws(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    sets = ("--set", "data.partition=pathological", "--set", "data.clients=5")
    done = fedomg("data", "partition", "mnist", "--root", root, *sets, "--plot", tmp_path / "who.png")
    assert done.returncode == 0, done.stderr
    assert "5 clients, 30 examples" in done.stdout
    assert "classes a client: 2 to 2" in done.stdout
    assert (tmp_path / "who.png").read_bytes().startswith(b"\x89PNG")


def test_what_partition_refuses(root: Path) -> None:
    def refused(*words: str, sets: str) -> None:
        assert_refused(fedomg("data", "partition", "mnist", "--root", root, "--set", sets), *words)

    refused("target", "single domain", sets="target=mnist")
    refused("30 examples are too few for 100 clients", sets="seed=1")
    refused("data.alpha should be greater than 0", sets="data.alpha=0")


def test_a_run_on_a_label_shift_set(root: Path, tmp_path: Path) -> None:
    config = tmp_path / "mnist.toml"
    config.write_text(
        'method = "fedomg"\ndataset = "mnist"\nrounds = 2\n[model]\nname = "linear"\n'
        f'[data]\nroot = "{root.as_posix()}"\nclients = 3\nalpha = 10.0\n[server]\nparticipation = 0.7\n'
    )
    done = fedomg("run", config, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["selection"] == {"rule": "last", "round": 2}
    assert result["target"] is None
    records = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert len(records[-1]["cohort"]) == 2
    assert len(records[-1]["views"]["global"]["clients"]) == 3
    again = (tmp_path / "out" / "config.toml").read_text()
    assert 'partition = "dirichlet"' in again
    assert "test = 0.25" in again
