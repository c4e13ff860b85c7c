"""The page holds all of the runs, nothing from outside, and nothing that a run could smuggle in."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedomg.core.errors import UserError
from fedomg.experiment.select import read_run
from fedomg.report.drawing import PALETTE, looks
from fedomg.report.html import summarise, write_report

WriteRun = Callable[..., Path]
EVIL = "</script><img src=x onerror=alert(1)><!--"


def embedded(page: str) -> Any:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def report(folders: list[Path], output: Path, **options: Any) -> str:
    return write_report(folders, output, **options).read_text(encoding="utf-8")


@pytest.fixture
def runs(write_run: WriteRun) -> list[Path]:
    return [
        write_run(f"{method}-{seed}", method, seed=seed, start=0.1 + seed / 10) for method in ("fedavg", "fedavg+omg") for seed in (0, 1)
    ]


class TestPage:
    def test_is_self_contained(self, runs: list[Path], tmp_path: Path) -> None:
        page = report(runs, tmp_path / "report.html")
        without_namespace = page.replace('"http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?://|//cdn|@import|url\(|<link|\ssrc=", without_namespace)
        assert "default-src 'none'" in page
        assert "{{" not in page

    def test_data_comes_back_as_it_went_in(self, runs: list[Path], tmp_path: Path) -> None:
        page = report(runs, tmp_path / "report.html", title="Two methods", baselines={"largest class": {"target": 0.21}})
        expected = summarise([read_run(folder) for folder in runs], "Two methods", {"largest class": {"target": 0.21}})
        assert embedded(page) == json.loads(json.dumps(expected))

    def test_methods_look_as_in_the_plots(self, runs: list[Path], tmp_path: Path) -> None:
        page = report(runs, tmp_path / "report.html")
        light, dark = ([found.lower() for found in re.findall(r"--c\d: (#\w{6})", line)] for line in page.splitlines() if "--c0:" in line)
        assert [light[place] for place in (0, 1, 2, 3, 4, 5, 7)] == [PALETTE[place] for place in (0, 1, 2, 3, 4, 5, 7)]
        assert len(dark) == len(PALETTE)
        assert embedded(page)["looks"] == {name: list(look.places()) for name, look in looks(["fedavg", "fedavg+omg"]).items()}

    def test_pairs_are_averaged_over_rounds(self, runs: list[Path], tmp_path: Path) -> None:
        pairs = embedded(report(runs, tmp_path / "report.html"))["runs"][0]["pairs"]
        assert pairs == {"names": ["noto", "blob"], "cosine": [[None, 0.2], [0.2, None]]}  # 0.1, 0.2 and 0.3

    def test_is_the_same_for_the_same_runs(self, runs: list[Path], tmp_path: Path) -> None:
        assert report(runs, tmp_path / "a.html") == report(runs, tmp_path / "b.html")

    def test_makes_missing_folders(self, runs: list[Path], tmp_path: Path) -> None:
        output = tmp_path / "new" / "deep" / "report.html"
        assert write_report(runs, output) == output
        assert output.is_file()

    def test_text_from_runs_never_becomes_markup(self, write_run: WriteRun, tmp_path: Path) -> None:
        folder = write_run("a", EVIL, target=EVIL, settings=f"# {EVIL}\n", result={"config_hash": EVIL, "versions": {EVIL: EVIL}})
        page = report([folder], tmp_path / "report.html", title=EVIL, baselines={EVIL: {"target": 0.2}})
        assert EVIL not in page
        assert "<img" not in page
        assert page.count("<!--") == 0
        data = embedded(page)
        assert (data["title"], data["methods"], data["baselines"][0]["name"]) == (EVIL, [EVIL], EVIL)
        assert data["runs"][0]["config"].endswith(f"# {EVIL}\n")

    def test_placeholders_in_runs_stay_text(self, write_run: WriteRun, tmp_path: Path) -> None:
        data = embedded(report([write_run("a", "{{css}}")], tmp_path / "report.html", title="{{data}}"))
        assert (data["title"], data["methods"]) == ("{{data}}", ["{{css}}"])

    def test_title_that_is_no_unicode(self, runs: list[Path], tmp_path: Path) -> None:
        assert embedded(report(runs, tmp_path / "report.html", title="a\udcffb"))["title"] == "a\udcffb"


class TestData:
    def test_summary_of_each_rule(self, runs: list[Path]) -> None:
        data = summarise([read_run(folder) for folder in runs])
        assert set(data["summary"]) == {"selected", "last", "best", "mean_last_10"}
        row = data["summary"]["selected"][0]
        assert (row["method"], row["seeds"], row["scope"]) == ("fedavg", [0, 1], 0)
        assert row["views"]["target"] == {"mean": 0.45, "std": 0.0707107, "n": 2, "low": 0.4, "high": 0.5}
        assert (data["methods"], data["seeds"], data["scopes"]) == (
            ["fedavg", "fedavg+omg"],
            [0, 1],
            [{"dataset": "emoji", "target": "line"}],
        )

    def test_curves_of_groups_and_runs(self, runs: list[Path]) -> None:
        data = summarise([read_run(folder) for folder in runs])
        curve = data["groups"][1]["curves"]["target"]["accuracy"]
        assert curve["round"] == [0, 1, 2, 3]
        assert curve["mean"] == [0.15, 0.25, 0.35, 0.45]
        assert curve["low"] == [0.1, 0.2, 0.3, 0.4]
        assert curve["n"] == [2, 2, 2, 2]
        assert data["runs"][0]["curves"]["target"]["accuracy"] == [0.1, 0.2, 0.3, 0.4]
        assert data["groups"][0]["server"]["mean_pair_cosine"]["round"] == [1, 2, 3]

    def test_domains_with_the_unseen_one_first(self, runs: list[Path]) -> None:
        domains = summarise([read_run(folder) for folder in runs])["groups"][0]["domains"]
        assert [(entry["view"], entry["domain"], entry["mean"]) for entry in domains] == [
            ("target", "line", 0.45),
            ("global", "noto", 0.55),
            ("global", "blob", 0.55),
        ]

    def test_client_matrices(self, runs: list[Path]) -> None:
        plain, with_omg = (summarise([read_run(folder)])["runs"][0]["clients"] for folder in (runs[0], runs[2]))
        assert with_omg["names"] == ["noto", "blob"]
        assert with_omg["rounds"] == [1, 2, 3]
        assert with_omg["omg_weight"] == [[0.25] * 3, [0.75] * 3]
        assert with_omg["cosine"] == [[0.7] * 3, [-0.2] * 3]
        assert plain["omg_weight"] is None

    def test_clients_outside_the_cohort_and_of_one_name(self, write_run: WriteRun) -> None:
        entry = {"name": "noto", "cosine": 0.5, "reference_weight": 1.0, "omg_weight": None}
        records = [
            {"round": 1, "views": {}, "clients": {"10": entry}},
            {"round": 2, "views": {}, "clients": {"9": entry, "2": entry | {"name": ""}}},
        ]
        clients = summarise([read_run(write_run("a", records=records))])["runs"][0]["clients"]
        assert clients["names"] == ["client 2", "noto (9)", "noto (10)"]
        assert clients["cosine"] == [[None, 0.5], [None, 0.5], [0.5, None]]

    def test_baselines_that_are_no_number_are_missing(self, runs: list[Path]) -> None:
        data = summarise([read_run(runs[0])], baselines={"chance": {"target": float("nan"), "global": 0.1}})
        assert data["baselines"] == [{"name": "chance", "views": {"target": None, "global": 0.1}}]

    def test_a_folder_given_twice_counts_once(self, runs: list[Path], tmp_path: Path) -> None:
        page = report([runs[0], runs[0].parent / "." / runs[0].name, runs[0] / ".." / runs[0].name], tmp_path / "report.html")
        assert len(embedded(page)["runs"]) == 1

    def test_runs_of_several_targets_stay_apart(self, write_run: WriteRun) -> None:
        data = summarise([read_run(write_run(target, target=target)) for target in ("line", "noto")])
        assert [row["scope"] for row in data["summary"]["last"]] == [0, 1]


class TestNotes:
    def notes(self, folder: Path) -> list[str]:
        return list(summarise([read_run(folder)])["runs"][0]["notes"])

    def test_a_clean_run_has_none(self, runs: list[Path]) -> None:
        assert self.notes(runs[0]) == []

    def test_torn_and_unfinished_runs_are_announced(self, write_run: WriteRun) -> None:
        folder = write_run("a")
        metrics = folder / "metrics.jsonl"
        metrics.write_bytes(metrics.read_bytes()[:-10])
        notices = summarise([read_run(folder)])["notices"]
        assert notices == [
            f"{folder}: The last line of metrics.jsonl (line 4) is incomplete and was left out.",
            f"{folder}: Unfinished: 2 of 3 rounds are recorded.",
        ]

    def test_a_seed_that_is_there_twice_is_announced(self, write_run: WriteRun) -> None:
        notices = summarise([read_run(write_run(name)) for name in ("a", "b")])["notices"]
        assert notices == ["fedavg on line: seed 0 is there 2 times and counts 2 times in the means."]

    def test_dropped_clients_solver_and_numbers(self, write_run: WriteRun, record: Callable[..., dict[str, Any]]) -> None:
        broken = record(1, target=None) | {"dropped": [3, 5], "server": {"converged": False}}
        notes = self.notes(write_run("a", rounds=1, records=[broken]))
        assert notes == [
            "2 updates were dropped, by client (round 1: 3, 5).",
            "A loss or accuracy was not finite in round 1.",
            "The solver missed its certificate in round 1.",
        ]

    def test_another_selection_than_that_of_the_result(self, write_run: WriteRun) -> None:
        notes = self.notes(write_run("a", result={"selection": {"rule": "validation", "round": 1}}))
        assert notes == ["result.json selects round 1, the records select round 3; the page shows the latter."]


class TestErrors:
    def test_no_run(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="no run to report"):
            write_report([], tmp_path / "report.html")

    def test_a_broken_run_leaves_no_page(self, runs: list[Path], tmp_path: Path) -> None:
        with pytest.raises(UserError, match="no such run folder"):
            write_report([*runs, tmp_path / "nowhere"], tmp_path / "report.html")
        assert not (tmp_path / "report.html").exists()

    def test_output_that_cannot_be_written(self, runs: list[Path], tmp_path: Path) -> None:
        with pytest.raises(UserError, match="the report cannot be written"):
            write_report(runs, tmp_path)
