"""Every table and figure, tried out on generated stand-ins in one command."""

import json
from pathlib import Path

import pytest
from tests.test_cli import fedomg

from fedomg.experiment.config import load_config
from fedomg.paper.items import item, names
from fedomg.paper.reproduce import has_runs


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("smoke")
    done = fedomg("reproduce", "all", "--scale", "smoke", "--out", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("name", names())
def test_every_table_and_figure_is_made_of_stand_ins(out: Path, name: str) -> None:
    made = {path.name for path in (out / name).iterdir()}
    assert "about.md" in made
    if name not in ("figure7", "figure8"):
        assert {"table.md", "table.tex", "table.csv"} <= made
    if name.startswith("figure"):
        assert {path.suffix for path in (out / name).glob(f"{name}*.p*")} == {".pdf", ".png"}
    if has_runs(item(name)):
        assert "report.html" in made
        assert "stand-ins" in (out / name / "about.md").read_text(encoding="utf-8")


def test_no_run_is_made_twice_and_a_second_command_makes_none(out: Path) -> None:
    folders = [path.parent for path in (out / "runs").glob("*/metrics.jsonl")]
    hashes = [load_config(folder / "config.toml").hash() for folder in folders]
    assert len(set(hashes)) == len(hashes) == len(json.loads((out / "runs" / "sweep.json").read_bytes())["runs"])
    stamps = {folder: (folder / "metrics.jsonl").stat().st_mtime_ns for folder in folders}
    again = fedomg("reproduce", "table7", "figure5", "--scale", "smoke", "--out", out)
    assert again.returncode == 0
    assert "7 runs, 7 of them finished before" in again.stdout or "8 runs, 8 of them finished before" in again.stdout
    assert {folder: (folder / "metrics.jsonl").stat().st_mtime_ns for folder in folders} == stamps


def test_stand_ins_are_decoded_beside_themselves(out: Path) -> None:
    decoded = list((out / "stand-ins" / "cache" / "pictures").glob("*/pixels.bin"))
    assert len(decoded) >= 4, "PACS, VLCS, OfficeHome and CelebA"


def test_a_table_of_the_paper_has_its_numbers_and_says_that_ours_are_of_stand_ins(out: Path) -> None:
    text = (out / "table2" / "table.md").read_text(encoding="utf-8")
    assert "generated stand-ins" in text.splitlines()[0]
    assert "98.0 ± 0.2" in text


def test_the_parameters_of_resnet18_are_those_of_the_network(out: Path) -> None:
    text = (out / "table3" / "table.csv").read_text(encoding="utf-8")
    assert "total with 1000 classes" in text
    assert '"11,689,512"' in text
    assert '"11,180,103"' in text
