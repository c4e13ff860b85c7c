"""The paired test between two methods."""

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedomg.experiment.select import Run, accuracy, read_run
from fedomg.report.paired import Comparison, compare, compare_all, default_pairs, holm, sign_flip

WriteRun = Callable[..., Path]


def score(run: Run) -> float | None:
    return accuracy(run.records, "target", "last")


@pytest.mark.parametrize("differences", [[1.0, 2.0, 3.0], [0.5, -0.2, 0.9, 0.4, -0.1, 0.3], [0.0, 0.0], [0.1] * 8])
def test_p_is_that_of_scipy(differences: list[float]) -> None:
    expected = stats.permutation_test(
        (differences,), lambda x, axis: x.mean(axis=axis), permutation_type="samples", n_resamples=10**6
    ).pvalue
    assert sign_flip(differences) == pytest.approx(expected, abs=1e-12)


def test_many_pairs_are_drawn_and_agree_with_the_t_test() -> None:
    differences = np.random.default_rng(1).normal(0.2, 1.0, 40).tolist()
    assert sign_flip(differences) == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, abs=0.01)
    assert sign_flip(differences) == sign_flip(differences)


def test_six_pairs_can_tell_and_five_cannot() -> None:
    def found(n: int) -> Comparison:
        return Comparison("a", "b", n, 0.1, sign_flip([0.1] * n))

    assert found(6).verdict == "more than noise"
    assert found(5).verdict == "too few pairs to tell: at least 6 are needed"
    assert Comparison("a", "b", 6, 0.1, 0.5).verdict == "not more than noise"
    assert Comparison("a", "b", 6, 0.1, 1 / 32, family=10).verdict == "too few pairs to tell: at least 9 are needed"


def test_pairs_are_of_one_seed_target_and_cohorts(write_run: WriteRun) -> None:
    runs = {
        method: [
            read_run(
                write_run(
                    f"{method}-{target}-{seed}", method, target=target, seed=seed, start=0.1 + (0.05 + seed / 100) * (method != "fedavg")
                )
            )
            for target, seed in itertools.product(("line", "noto"), range(3))
        ]
        for method in ("fedavg", "fedavg+omg")
    }
    (found,) = compare_all(runs, score)
    assert (found.first, found.second, found.n) == ("fedavg+omg", "fedavg", 6)
    assert found.difference == pytest.approx(0.06)
    assert found.p == pytest.approx(2 / 64)
    assert compare(runs["fedavg"][:2], runs["fedavg+omg"][1:4], score).n == 1


def test_other_cohorts_data_and_doubled_seeds_are_no_pairs(write_run: WriteRun, record: Callable[..., dict[str, object]]) -> None:
    plain = read_run(write_run("a", "fedavg"))
    cohorts = read_run(write_run("b", "fedavg+omg", rounds=1, records=[record(1, target=0.5) | {"cohort": [1]}]))
    dealt = read_run(write_run("c", "fedavg+omg", settings="[data]\nalpha = 0.5\n"))
    found = compare([plain], [cohorts], score)
    assert (found.n, found.difference, found.p) == (0, None, None)
    assert found.verdict == "no two runs of one seed, target and cohorts with these numbers"
    assert compare([plain], [dealt], score).n == 0
    assert compare([plain, plain], [read_run(write_run("d", "fedavg+omg"))], score).n == 0


def test_holm() -> None:
    found = holm([Comparison("a", "b", 9, 0.1, p) for p in (0.02, None, 0.01, 0.9)])
    assert [one.p for one in found] == [pytest.approx(0.04), None, pytest.approx(0.03), 0.9]


def test_whom_to_compare() -> None:
    assert default_pairs(["fedavg", "fedsam", "fedsam+omg", "fedavg+omg"]) == [
        ("fedavg+omg", "fedavg"),
        ("fedsam+omg", "fedsam"),
        ("fedavg+omg", "fedsam"),
    ]
    assert default_pairs(["fedavg (lr=1)", "fedavg+omg (lr=1)"]) == [("fedavg+omg (lr=1)", "fedavg (lr=1)")]
