"""Rounds are selected and seeds averaged as the reports say, on records made by hand."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedomg.core.errors import UserError
from fedomg.experiment.select import (
    RULES,
    Rule,
    accuracy,
    curve,
    find_runs,
    name_variants,
    number,
    read_run,
    selected_round,
    spread,
    summary,
    validation_accuracy,
    view_value,
)

Record = dict[str, Any]


def bare(round_: int, target: float | None = None, **validation: tuple[float | None, int | None]) -> Record:
    """A record with the target view, where it is given, and the validation accuracy and n by domain."""
    views = {} if target is None else {"target": {"accuracy": target, "loss": 1.0, "n": 10}}
    return {"round": round_, "views": views, "validation": {name: {"accuracy": a, "n": n} for name, (a, n) in validation.items()}}


class TestNumber:
    @pytest.mark.parametrize("value", [None, True, "0.5", math.nan, math.inf, 10**400, [], {}])
    def test_what_is_no_finite_number_counts_as_missing(self, value: object) -> None:
        assert number(value) is None

    @pytest.mark.parametrize("value", [0, 1, 0.25, -3.5])
    def test_numbers_pass(self, value: float) -> None:
        assert number(value) == value


class TestSelectedRound:
    def test_validation_accuracy_is_weighted_by_samples(self) -> None:
        assert validation_accuracy(bare(1, a=(1.0, 10), b=(0.0, 30))) == 0.25

    def test_domains_without_a_number_or_samples_are_left_out(self) -> None:
        assert validation_accuracy(bare(1, a=(0.5, 10), b=(None, 30), c=(1.0, 0), d=(1.0, None))) == 0.5
        assert validation_accuracy(bare(1, a=(None, 10))) is None
        assert validation_accuracy({"round": 1}) is None

    def test_highest_weighted_accuracy_wins_over_highest_plain_mean(self) -> None:
        records = [bare(1, a=(0.9, 10), b=(0.4, 90)), bare(2, a=(0.5, 10), b=(0.6, 90))]
        assert selected_round(records) == ("validation", 2)

    def test_earliest_round_in_ties(self) -> None:
        assert selected_round([bare(3, a=(0.5, 10)), bare(1, a=(0.4, 10)), bare(2, a=(0.5, 10))]) == ("validation", 2)

    def test_ties_survive_rounding(self) -> None:
        # The same 3 of 10, which came out one bit higher in one of the rounds.
        first, second = bare(1, a=(0.1 * 3, 10), b=(0.6, 10)), bare(2, a=(0.3, 10), b=(0.6, 10))
        assert selected_round([first, second]) == ("validation", 1)
        assert selected_round([second | {"round": 1}, first | {"round": 2}]) == ("validation", 1)

    def test_never_the_untrained_model(self) -> None:
        assert selected_round([bare(0, a=(0.9, 10)), bare(1, a=(0.2, 10)), bare(2, a=(0.1, 10))]) == ("validation", 1)

    def test_last_round_without_validation_data(self) -> None:
        assert selected_round([bare(0, a=(0.9, 10)), bare(1), bare(2)]) == ("last", 2)
        assert selected_round([bare(0)]) == ("last", 0)

    def test_rounds_without_validation_are_passed_over(self) -> None:
        assert selected_round([bare(1, a=(0.2, 10)), bare(2), bare(3)]) == ("validation", 1)

    def test_no_records(self) -> None:
        with pytest.raises(ValueError, match="no last round"):
            selected_round([])


class TestAccuracy:
    records = (
        bare(0, 0.99, a=(1.0, 10)),
        bare(1, 0.3, a=(0.2, 10)),
        bare(2, 0.2, a=(0.7, 10)),
        bare(3, 0.6, a=(0.5, 10)),
        bare(4, 0.5, a=(0.5, 10)),
    )

    @pytest.mark.parametrize(("rule", "expected"), [("selected", 0.2), ("last", 0.5), ("best", 0.6), ("mean_last_10", 0.4)])
    def test_rules(self, rule: Rule, expected: float) -> None:
        assert accuracy(self.records, "target", rule) == pytest.approx(expected, abs=1e-15)
        assert accuracy(self.records[::-1], "target", rule) == pytest.approx(expected, abs=1e-15)

    @pytest.mark.parametrize("rule", RULES)
    def test_missing_view(self, rule: Rule) -> None:
        assert accuracy(self.records, "adapted", rule) is None

    def test_view_missing_where_the_rule_looks(self) -> None:
        records = [bare(1, 0.3), bare(2, 0.4), bare(3)]
        assert accuracy(records, "target", "last") is None
        assert accuracy(records, "target", "selected") is None
        assert accuracy(records, "target", "best") == 0.4
        assert accuracy(records, "target", "mean_last_10") == pytest.approx(0.35)

    def test_null_is_missing(self) -> None:
        record = {"round": 1, "views": {"target": {"accuracy": None, "loss": None, "n": 10}}}
        assert all(accuracy([record], "target", rule) is None for rule in RULES)

    def test_mean_of_the_last_ten_rounds_only(self) -> None:
        records = [bare(round_, round_ / 100) for round_ in range(13)]
        assert accuracy(records, "target", "mean_last_10") == pytest.approx(sum(range(3, 13)) / 1000)

    def test_untrained_run(self) -> None:
        assert {accuracy([bare(0, 0.1)], "target", rule) for rule in RULES} == {0.1}

    def test_unknown_rule(self) -> None:
        with pytest.raises(ValueError, match="unknown rule 'first'"):
            accuracy(self.records, "target", "first")  # type: ignore[arg-type]


class TestSpread:
    def test_sample_standard_deviation(self) -> None:
        found = spread([0.2, None, 0.4, 0.6])
        assert found is not None
        assert (found.n, found.low, found.high) == (3, 0.2, 0.6)
        assert found.mean == pytest.approx(0.4)
        assert found.std == pytest.approx(0.2)

    def test_one_value_has_no_deviation(self) -> None:
        found = spread([0.3])
        assert found is not None
        assert (found.mean, found.std, found.n) == (0.3, None, 1)

    def test_nothing(self) -> None:
        assert spread([None]) is None


class TestSummary:
    def test_groups_by_method_and_target_and_averages_seeds(self, write_run: Callable[..., Path]) -> None:
        folders = [
            write_run("a0", "fedavg", seed=0, start=0.1),
            write_run("a1", "fedavg", seed=1, start=0.3),
            write_run("b0", "fedavg+omg", seed=0, start=0.2),
            write_run("c0", "fedavg", target="noto", seed=0),
        ]
        rows = summary([read_run(folder) for folder in folders], "selected")
        assert [(row.method, row.target, row.seeds) for row in rows] == [
            ("fedavg", "line", (0, 1)),
            ("fedavg+omg", "line", (0,)),
            ("fedavg", "noto", (0,)),
        ]
        first = rows[0].views["target"]
        assert first.mean == pytest.approx(0.5)
        assert first.std == pytest.approx(0.2 / math.sqrt(2))
        assert first.n == 2
        assert set(rows[0].views) == {"target", "global", "worst_group"}

    def test_n_counts_the_runs_that_have_the_view(self, write_run: Callable[..., Path]) -> None:
        runs = [
            read_run(write_run("a", seed=0, records=[bare(1, 0.4)])),
            read_run(write_run("b", seed=1, records=[bare(1)])),
        ]
        assert summary(runs, "last")[0].views["target"].n == 1

    def test_curve_over_seeds(self, write_run: Callable[..., Path]) -> None:
        runs = [
            read_run(write_run("a", seed=0, records=[bare(0, 0.1), bare(1, 0.2), bare(2)])),
            read_run(write_run("b", seed=1, records=[bare(0, 0.3), bare(1)])),
        ]
        points = [(round_, found.mean, found.n) for round_, found in curve(runs, lambda record: view_value(record, "target"))]
        assert points == [(0, pytest.approx(0.2), 2), (1, 0.2, 1)]


class TestVariants:
    def test_a_sweep_over_a_setting_is_no_set_of_seeds(self, write_run: Callable[..., Path]) -> None:
        settings = "[aggregator]\nkappa = {}\n[engine]\nworkers = {}\n"
        folders = [write_run(f"r{i}", seed=i % 2, settings=settings.format(0.1 + i // 2, i)) for i in range(4)]
        assert [run.method for run in name_variants([read_run(folder) for folder in folders])] == [
            "fedavg (kappa=0.1)",
            "fedavg (kappa=0.1)",
            "fedavg (kappa=1.1)",
            "fedavg (kappa=1.1)",
        ]

    def test_settings_of_one_name_keep_their_table(self, write_run: Callable[..., Path]) -> None:
        folders = [write_run(f"r{i}", settings=f"[local]\nlr = {i}\n[server]\nlr = {i + 1}\n") for i in range(2)]
        assert [run.method for run in name_variants([read_run(folder) for folder in folders])] == [
            "fedavg (local.lr=0, server.lr=1)",
            "fedavg (local.lr=1, server.lr=2)",
        ]

    def test_a_setting_that_one_run_lacks(self, write_run: Callable[..., Path]) -> None:
        folders = [write_run("a"), write_run("b", settings='[data]\nkind = "iid"\n')]
        assert [run.method for run in name_variants([read_run(folder) for folder in folders])] == [
            "fedavg (kind=default)",
            "fedavg (kind=iid)",
        ]

    def test_seeds_and_targets_are_no_variants(self, write_run: Callable[..., Path]) -> None:
        folders = [write_run("a", seed=0), write_run("b", seed=1), write_run("c", target="noto")]
        assert {run.method for run in name_variants([read_run(folder) for folder in folders])} == {"fedavg"}


class TestReadRun:
    def test_reads_records_and_identity(self, write_run: Callable[..., Path]) -> None:
        run = read_run(write_run("a", "fedavg+omg", seed=7))
        assert (run.method, run.dataset, run.target, run.seed) == ("fedavg+omg", "emoji", "line", 7)
        assert [record["round"] for record in run.records] == [0, 1, 2, 3]
        assert run.notes == ()

    def test_identity_from_the_configuration(self, write_run: Callable[..., Path]) -> None:
        folder = write_run("a", settings='method = "scaffold"\n')
        (folder / "result.json").unlink()
        assert (read_run(folder).method, read_run(folder).seed) == ("scaffold", 0)

    def test_identity_from_the_folder(self, write_run: Callable[..., Path]) -> None:
        folder = write_run("my run")
        (folder / "result.json").unlink()
        (folder / "config.toml").unlink()
        run = read_run(folder)
        assert (run.method, run.dataset, run.target, run.seed, run.notes) == ("my run", None, None, None, ())

    @pytest.mark.parametrize(
        ("name", "content", "note"),
        [
            ("result.json", b"{", "result.json cannot be read"),
            ("result.json", b"[1]", "result.json holds no table"),
            ("config.toml", b"= 1", "config.toml is not TOML"),
            ("config.toml", b"\xff", "config.toml cannot be read"),
        ],
    )
    def test_broken_companions_are_noted(self, write_run: Callable[..., Path], name: str, content: bytes, note: str) -> None:
        folder = write_run("a")
        (folder / name).write_bytes(content)
        assert read_run(folder).notes[0].startswith(note)

    def test_torn_last_line_is_left_out_with_a_note(self, write_run: Callable[..., Path]) -> None:
        folder = write_run("a")
        metrics = folder / "metrics.jsonl"
        metrics.write_bytes(metrics.read_bytes()[:-40])
        run = read_run(folder)
        assert [record["round"] for record in run.records] == [0, 1, 2]
        assert run.notes == ("The last line of metrics.jsonl (line 4) is incomplete and was left out.",)

    def test_line_torn_inside_a_character(self, write_run: Callable[..., Path]) -> None:
        folder = write_run("a")
        with (folder / "metrics.jsonl").open("ab") as file:
            file.write('{"round": 4, "x": "é'.encode()[:-1])
        assert len(read_run(folder).notes) == 1

    def test_missing_last_newline_loses_nothing(self, write_run: Callable[..., Path]) -> None:
        folder = write_run("a")
        metrics = folder / "metrics.jsonl"
        metrics.write_bytes(metrics.read_bytes().rstrip())
        assert len(read_run(folder).records) == 4

    def test_the_last_record_of_a_round_counts(self, write_run: Callable[..., Path]) -> None:
        run = read_run(write_run("a", records=[bare(1, 0.1), bare(2, 0.2), bare(2, 0.3)]))
        assert accuracy(run.records, "target", "last") == 0.3
        assert run.notes == ("Round 2 is recorded more than once; its last record (line 3) was taken.",)

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (b"{oops}", "not JSON"),
            (b"\xff\xfe", "not JSON"),
            (b"[" * 100_000, "not JSON"),
            (b"3", "not a record with a round number"),
            (b'{"views": {}}', "not a record with a round number"),
            (b'{"round": -1}', "not a record with a round number"),
            (b'{"round": true}', "not a record with a round number"),
        ],
    )
    def test_a_broken_line_is_named(self, write_run: Callable[..., Path], line: bytes, message: str) -> None:
        folder = write_run("a")
        metrics = folder / "metrics.jsonl"
        lines = metrics.read_bytes().splitlines()
        metrics.write_bytes(b"\n".join([lines[0], line, *lines[1:], b""]))
        with pytest.raises(UserError, match=message) as caught:
            read_run(folder)
        assert str(caught.value).startswith(f"{metrics}, line 2: ")
        assert "\n" not in str(caught.value)

    def test_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="no such run folder"):
            read_run(tmp_path / "nowhere")

    def test_missing_records(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"no metrics\.jsonl in it"):
            read_run(tmp_path)

    def test_unreadable_records(self, tmp_path: Path) -> None:
        (tmp_path / "metrics.jsonl").mkdir()
        with pytest.raises(UserError, match="cannot be read"):
            read_run(tmp_path)

    @pytest.mark.parametrize("content", ["", "\n\n", '{"round": 0, "vi'])
    def test_no_complete_record(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "metrics.jsonl").write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match="holds no complete record"):
            read_run(tmp_path)

    def test_odd_values_are_missing_values(self, tmp_path: Path) -> None:
        odd = {"round": 1, "views": {"target": 3, "global": {"accuracy": "high"}}, "validation": [1], "clients": None, "server": 5}
        (tmp_path / "metrics.jsonl").write_text(json.dumps(odd) + "\n", encoding="utf-8")
        records = read_run(tmp_path).records
        assert selected_round(records) == ("last", 1)
        assert accuracy(records, "target", "last") is accuracy(records, "global", "last") is None


class TestFindRuns:
    def test_runs_and_folders_of_runs_each_once(self, write_run: Callable[..., Path], tmp_path: Path) -> None:
        second, first = write_run("b"), write_run("a")
        assert find_runs([second, tmp_path]) == [second, first]

    def test_nothing_found(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="no run in it"):
            find_runs([tmp_path])
        with pytest.raises(UserError, match="no such folder"):
            find_runs([tmp_path / "nowhere"])
