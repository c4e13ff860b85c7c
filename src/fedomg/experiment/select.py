"""Read runs back from their folders and decide what a run scored: the one place where rounds are selected and seeds are averaged.

A record is one line of `metrics.jsonl` as `json` reads it. All functions on records work on plain mappings, so that what writes a result
and what draws it afterwards cannot disagree.
"""

import json
import math
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from fedomg.core.errors import UserError
from fedomg.experiment.config import flat

T = TypeVar("T")
Record = Mapping[str, Any]
Rule = Literal["selected", "last", "best", "mean_last_10"]
RULES: tuple[Rule, ...] = get_args(Rule)
VIEWS = ("target", "global", "worst_group", "personalised", "adapted")

# Settings in which runs of one method may differ without being another variant of it: they name the run or do not touch its numbers.
_NOT_A_VARIANT = ("seed", "target", "engine.", "evaluate.", "data.cache")


@dataclass(frozen=True)
class Run:
    """One run folder, read."""

    folder: Path
    method: str
    dataset: str | None
    target: str | None
    seed: int | None
    records: tuple[Record, ...]
    result: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    config_text: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def scope(self) -> tuple[str | None, str | None]:
        """Only runs of one scope are comparable number by number."""
        return self.dataset, self.target

    def settings(self, keys: Sequence[str]) -> tuple[object, ...]:
        """The values of these dotted keys, None for those that the configuration does not name."""
        found = flat(self.config)
        return tuple(found.get(key) for key in keys)


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (None for a single value) of n values, with their range."""

    mean: float
    std: float | None
    n: int
    low: float
    high: float


@dataclass(frozen=True)
class SummaryRow:
    """One method on one target: the spread over its runs of each view that any of them evaluated.

    `late` are the views that were read after the last round, whatever the rule.
    """

    method: str
    dataset: str | None
    target: str | None
    seeds: tuple[int | None, ...]
    views: Mapping[str, Spread]
    late: frozenset[str] = frozenset()


# ---------------------------------------------------------------------------------------------------------------- records


def number(value: object) -> float | None:
    """The value as a finite float, or None: what is null, missing, infinite or no number at all counts as not measured."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        as_float = float(value)
    except OverflowError:
        return None
    return as_float if math.isfinite(as_float) else None


def mapping(value: object) -> Mapping[str, Any]:
    """The value where it is a mapping, otherwise an empty one."""
    return value if isinstance(value, Mapping) else {}


def view_value(record: Record, view: str, metric: str = "accuracy") -> float | None:
    """A metric of a view in one record, None where it was not evaluated."""
    return number(mapping(mapping(record.get("views")).get(view)).get(metric))


def domain_value(record: Record, view: str, domain: str, metric: str = "accuracy") -> float | None:
    """A metric of one domain of a view in one record, None where it was not evaluated."""
    domains = mapping(mapping(mapping(record.get("views")).get(view)).get("domains"))
    return number(mapping(domains.get(domain)).get(metric))


def validation_accuracy(record: Record) -> float | None:
    """Accuracy on the validation data of all source domains together: the mean weighted by the numbers of samples."""
    correct, total = [], 0.0
    for domain in mapping(record.get("validation")).values():
        accuracy_, n = number(mapping(domain).get("accuracy")), number(mapping(domain).get("n"))
        if accuracy_ is not None and n is not None and n > 0:
            correct.append(accuracy_ * n)
            total += n
    return math.fsum(correct) / total if total else None


def validation_score(record: Record) -> float | None:
    """What a round is selected by: the lowest validation accuracy of a group where there are groups, else the accuracy of all."""
    groups = [number(mapping(group).get("accuracy")) for group in mapping(record.get("validation_groups")).values()]
    return min(_present(groups)) if any(group is not None for group in groups) else validation_accuracy(record)


def selected_round(records: Sequence[Record]) -> tuple[str, int]:
    """The round that stands for a run, and by which rule.

    ("validation", round of the highest validation score, the earliest in ties, never the untrained round 0), or ("last", last round)
    where no trained round has validation data.
    """
    best: tuple[float, int] | None = None
    for record in _trained(records):
        score = validation_score(record)
        # Equal counts of correct answers can differ in the last bits after the weighting: that is a tie, too.
        if score is not None and (best is None or score > best[0] + 1e-12):
            best = score, record["round"]
    return ("validation", best[1]) if best else ("last", _last(records)["round"])


def value_by_rule(records: Sequence[Record], rule: Rule, read: Callable[[Record], float | None]) -> float | None:
    """What `read` finds in the record or records that the rule picks; None where it finds nothing there.

    `best` picks the highest value of what is read itself: an oracle, since it looks at the test data.
    """
    if rule == "selected":
        chosen = selected_round(records)[1]
        return read(next(record for record in records if record["round"] == chosen))
    if rule == "last":
        return read(_last(records))
    trained = _trained(records)
    if rule == "best":
        return max(_present(map(read, trained)), default=None)
    if rule == "mean_last_10":
        first = _last(records)["round"] - 9
        values = list(_present(read(record) for record in trained if record["round"] >= first))
        single = len(values) == 1 < len(trained)  # a view that is taken at the end alone has no mean over rounds
        return math.fsum(values) / len(values) if values and not single else None
    raise ValueError(f"unknown rule {rule!r}: one of {', '.join(RULES)}")


def accuracy(records: Sequence[Record], view: str, rule: Rule) -> float | None:
    """Accuracy of a run in a view by a rule; None where the view was not evaluated in what the rule picks."""
    return value_by_rule(records, rule, lambda record: view_value(record, view))


def _trained(records: Sequence[Record]) -> list[Record]:
    """All records but round 0, in order; round 0 alone where nothing was trained."""
    ordered = sorted(records, key=lambda record: int(record["round"]))
    return [record for record in ordered if record["round"] > 0] or ordered


def _last(records: Sequence[Record]) -> Record:
    if not records:
        raise ValueError("a run without records has no last round")
    return max(records, key=lambda record: int(record["round"]))


def _present(values: Iterable[float | None]) -> Iterator[float]:
    return (value for value in values if value is not None)


# ------------------------------------------------------------------------------------------------------------------- seeds


def spread(values: Iterable[float | None]) -> Spread | None:
    """The spread of the values that are present, None where none is."""
    present = list(_present(values))
    n = len(present)
    if not n:
        return None
    mean = math.fsum(present) / n
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in present) / (n - 1)) if n > 1 else None
    return Spread(mean, std, n, min(present), max(present))


def grouped(runs: Sequence[Run]) -> dict[tuple[str | None, str | None, str], list[Run]]:
    """The runs by (dataset, target, method), in the order in which they were given: within a group only the seed differs."""
    groups: dict[tuple[str | None, str | None, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((*run.scope, run.method), []).append(run)
    return groups


def summary(runs: Sequence[Run], rule: Rule) -> list[SummaryRow]:
    """One row for each method and target: mean, standard deviation and n over the runs, for each view."""
    rows = []
    for (dataset, target, method), members in grouped(runs).items():
        late = frozenset(view for view in VIEWS if rule == "selected" and taken_late(members, view))
        spreads = {view: spread(accuracy(run.records, view, "last" if view in late else rule) for run in members) for view in VIEWS}
        views = {view: found for view, found in spreads.items() if found is not None}
        rows.append(SummaryRow(method, dataset, target, tuple(run.seed for run in members), views, late))
    return rows


def taken_late(runs: Sequence[Run], view: str, rule: Rule = "selected") -> bool:
    """Whether more runs have the view after their last round than where the rule looks.

    A view that is taken only at the end would otherwise be averaged over those runs alone whose last round is selected.
    """
    lacking = [accuracy(run.records, view, rule) for run in runs].count(None)
    return lacking > [accuracy(run.records, view, "last") for run in runs].count(None)


def curve(runs: Sequence[Run], read: Callable[[Record], float | None]) -> list[tuple[int, Spread]]:
    """The spread over runs of what `read` finds, round by round, without the rounds in which it finds nothing in any run."""
    by_round: dict[int, list[float]] = {}
    for run in runs:
        for record in run.records:
            value = read(record)
            if value is not None:
                by_round.setdefault(record["round"], []).append(value)
    spreads = ((round_, spread(values)) for round_, values in sorted(by_round.items()))
    return [(round_, found) for round_, found in spreads if found is not None]


def name_variants(runs: Sequence[Run], apart: Sequence[str] = ()) -> list[Run]:
    """The runs, where one method ran with several settings, with these settings in the name of the method.

    Without this a sweep over a setting would be averaged as if its runs were seeds. Runs that differ in the keys `apart` are told apart
    elsewhere: they are no variants of each other.
    """
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.dataset, run.method, run.settings(apart)), []).append(run)
    varying = {
        key: set().union(*(_varying_settings(members) for members in grouped(of_one_name).values())) for key, of_one_name in groups.items()
    }
    return [_with_settings(run, sorted(varying[run.dataset, run.method, run.settings(apart)])) for run in runs]


def _varying_settings(runs: Sequence[Run]) -> set[str]:
    settings = [flat(run.config) for run in runs if run.config]
    keys = {key for setting in settings for key in setting if not key.startswith(_NOT_A_VARIANT)}
    return {key for key in keys if len({json.dumps(setting.get(key), default=str) for setting in settings}) > 1}


def _with_settings(run: Run, keys: Sequence[str]) -> Run:
    if not keys or not run.config:
        return run
    setting = flat(run.config)
    last_parts = Counter(key.rpartition(".")[2] for key in keys)
    names = {key: key.rpartition(".")[2] if last_parts[key.rpartition(".")[2]] == 1 else key for key in keys}
    return replace(run, method=f"{run.method} ({', '.join(f'{names[key]}={_plain(setting.get(key))}' for key in keys)})")


def _plain(value: object) -> str:
    if value is None:
        return "default"
    return value if isinstance(value, str) else json.dumps(value, default=str)


# ----------------------------------------------------------------------------------------------------------------- folders


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The run folders among the paths and below them, each once, those below a path in the order of their names."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path}: no such folder")
        below = [path] if (path / "metrics.jsonl").is_file() else sorted(file.parent for file in path.rglob("metrics.jsonl"))
        if not below:
            raise UserError(f"{path}: no run in it or below it (a run folder holds metrics.jsonl)")
        for folder in below:
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def read_run(folder: Path) -> Run:
    """Read a run folder: all numbers from `metrics.jsonl`, its name from `result.json` or `config.toml`, or else from the folder.

    Raises UserError where the folder or its records are missing or broken. A last line that was torn by a kill is left out with a note.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such run folder")
    records, notes = _read_records(folder / "metrics.jsonl")
    result, result_notes = _read_result(folder / "result.json")
    config_text, config, config_notes = _read_config(folder / "config.toml")
    return Run(
        folder=folder,
        method=_first_of(str, "method", result, config) or folder.resolve().name,
        dataset=_first_of(str, "dataset", result, config),
        target=_first_of(str, "target", result, config),
        seed=_first_of(int, "seed", result, config),
        records=records,
        result=result,
        config=config,
        config_text=config_text,
        notes=(*notes, *result_notes, *config_notes),
    )


def _first_of(kind: type[T], key: str, *sources: Mapping[str, Any]) -> T | None:
    return next((source[key] for source in sources if isinstance(source.get(key), kind)), None)


def _read_records(path: Path) -> tuple[tuple[Record, ...], list[str]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise UserError(f"{path.parent}: no metrics.jsonl in it, so it is not a run folder") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    by_round: dict[int, Record] = {}
    notes = []
    for line_number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = _parse_record(line)
        except (ValueError, RecursionError) as error:
            if line_number < len(lines):  # a whole line: it ends with a newline
                raise UserError(f"{path}, line {line_number}: {_one_line(error)}") from None
            notes.append(f"The last line of metrics.jsonl (line {line_number}) is incomplete and was left out.")
            continue
        if record["round"] in by_round:
            notes.append(f"Round {record['round']} is recorded more than once; its last record (line {line_number}) was taken.")
        by_round[record["round"]] = record
    if not by_round:
        raise UserError(f"{path}: holds no complete record")
    return tuple(by_round[round_] for round_ in sorted(by_round)), notes


def _parse_record(line: bytes) -> Record:
    try:
        record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({_one_line(error)})") from None
    round_ = mapping(record).get("round")
    if isinstance(round_, bool) or not isinstance(round_, int) or round_ < 0:
        raise ValueError("not a record with a round number")
    return mapping(record)


def _read_result(path: Path) -> tuple[Mapping[str, Any], list[str]]:
    try:
        result = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}, []
    except (OSError, ValueError, RecursionError) as error:
        return {}, [f"result.json cannot be read ({_one_line(error)})."]
    return (result, []) if isinstance(result, dict) else ({}, ["result.json holds no table and was left out."])


def _read_config(path: Path) -> tuple[str | None, Mapping[str, Any], list[str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None, {}, []
    except (OSError, ValueError) as error:
        return None, {}, [f"config.toml cannot be read ({_one_line(error)})."]
    try:
        return text, tomllib.loads(text), []
    except (ValueError, RecursionError) as error:
        return text, {}, [f"config.toml is not TOML ({_one_line(error)})."]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
