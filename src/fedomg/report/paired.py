"""Whether the difference between two methods is more than noise: an exact test on runs that differ in the method alone."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedomg.experiment.config import flat
from fedomg.experiment.select import Run

LEVEL = 0.05
EXACT_UP_TO = 16
"""Pairs whose signs are all tried, 2 to this power; of more pairs, `DRAWS` random signs."""
DRAWS = 100_000

_PLACES = ("data.root", "data.cache", "data.download")


@dataclass(frozen=True)
class Comparison:
    """`first` against `second` over `n` pairs of runs: mean difference, and the p value, corrected for the `family` of comparisons made."""

    first: str
    second: str
    n: int
    difference: float | None
    p: float | None
    family: int = 1

    @property
    def verdict(self) -> str:
        if self.p is None:
            return "no two runs of one seed, target and cohorts with these numbers"
        fewest = next(n for n in itertools.count(1) if self.family * 2.0 ** (1 - n) <= LEVEL)
        if self.n < fewest:
            return f"too few pairs to tell: at least {fewest} are needed"
        return "more than noise" if self.p <= LEVEL else "not more than noise"


def sign_flip(differences: Sequence[float]) -> float:
    """The share of all choices of signs under which the mean is at least as far from zero: if the methods are equal, either may lead."""
    values = np.abs(np.asarray(differences, dtype=np.float64))
    n = len(values)
    seen = abs(math.fsum(differences)) * (1 - 1e-12)  # an equal sum in another order is as far
    if n <= EXACT_UP_TO:
        flips = np.arange(2**n)[:, None] >> np.arange(n) & 1
        return float(np.mean(np.abs((1 - 2 * flips) @ values) >= seen))
    signs = np.random.default_rng(0).choice((-1.0, 1.0), size=(DRAWS, n))
    return float((1 + np.sum(np.abs(signs @ values) >= seen)) / (1 + DRAWS))


def compare(first: Sequence[Run], second: Sequence[Run], score: Callable[[Run], float | None]) -> Comparison:
    """Pairs the runs of two methods by data set, target and seed. Pairs with other cohorts, and what is there twice, are left out."""
    ours, theirs = _by_deal(first), _by_deal(second)
    differences = []
    for deal in ours.keys() & theirs.keys():
        one, other = score(ours[deal]), score(theirs[deal])
        if one is not None and other is not None and _cohorts(ours[deal]) == _cohorts(theirs[deal]):
            differences.append(one - other)
    n = len(differences)
    mean = math.fsum(differences) / n if n else None
    return Comparison(first[0].method, second[0].method, n, mean, sign_flip(sorted(differences)) if n else None)


def compare_all(
    runs: Mapping[str, Sequence[Run]], score: Callable[[Run], float | None], pairs: Sequence[tuple[str, str]] | None = None
) -> list[Comparison]:
    """The pairs of methods (by default those of `default_pairs`), their p values corrected after Holm for being several."""
    pairs = default_pairs(list(runs)) if pairs is None else pairs
    return holm([compare(runs[one], runs[other], score) for one, other in pairs])


def default_pairs(methods: Sequence[str]) -> list[tuple[str, str]]:
    """Every method with the matching rule against itself without, and FedOMG against every other method without it."""
    composed = [(method, base) for base in methods for method in methods if method == _composed(base)]
    fedomg = "fedavg+omg"
    others = [(fedomg, base) for base in methods if fedomg in methods and "+omg" not in base]
    return list(dict.fromkeys([*composed, *others]))


def _composed(base: str) -> str:
    """The name with the rule, of a name that may carry settings: `x (lr=1)`."""
    name, space, settings = base.partition(" ")
    return f"{name}+omg{space}{settings}"


def holm(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The p values as if each were the only one: the smallest times their number, the next times one less, never falling."""
    tested = sorted((index for index, found in enumerate(comparisons) if found.p is not None), key=lambda i: comparisons[i].p or 0.0)
    corrected, highest = list(comparisons), 0.0
    for rank, index in enumerate(tested):
        highest = max(highest, min(1.0, (len(tested) - rank) * (comparisons[index].p or 0.0)))
        corrected[index] = replace(comparisons[index], p=highest, family=len(tested))
    return corrected


def _by_deal(runs: Sequence[Run]) -> dict[tuple[object, ...], Run]:
    """By what decides the data and the cohorts, seed included; without what is there more than once."""
    found: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        settings = {key: value for key, value in flat(run.config).items() if key.startswith("data.") or key == "server.participation"}
        dealt = sorted(f"{key}={value}" for key, value in settings.items() if key not in _PLACES)
        found.setdefault((run.dataset, run.target, run.seed, *dealt), []).append(run)
    return {deal: members[0] for deal, members in found.items() if len(members) == 1}


def _cohorts(run: Run) -> dict[int, object]:
    return {record["round"]: record.get("cohort") for record in run.records if record["round"] > 0}
