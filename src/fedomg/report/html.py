"""One self-contained HTML page that compares any set of runs.

Everything on it comes from the runs' `metrics.jsonl`; `result.json` and `config.toml` only name the runs and fill the details. This file
collects the data; the look and the drawing are in `page.html`, `page.css` and `page.js` beside it, which need no network and no library.
"""

import html
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from fedomg.core.errors import UserError
from fedomg.experiment.config import flat
from fedomg.experiment.select import (
    RULES,
    VIEWS,
    Record,
    Run,
    Spread,
    SummaryRow,
    accuracy,
    curve,
    domain_value,
    grouped,
    mapping,
    name_variants,
    number,
    read_run,
    selected_round,
    spread,
    summary,
    value_by_rule,
    view_value,
)
from fedomg.report.drawing import looks
from fedomg.report.paired import Comparison
from fedomg.report.tables import comparisons

SCRIPTS = ("page.base.js", "page.charts.js", "page.js")
"""They share one scope: what is shown and how it is written, how charts are drawn, and the sections of the page."""

DEFAULT_TITLE = "Federated runs compared"
METRICS = ("accuracy", "loss")
CLIENT_VALUES = ("reference_weight", "omg_weight", "cosine")
SERVER_VALUES = ("mean_pair_cosine", "conflict_ratio")
DOMAIN_VIEWS = ("target", "global")

Baselines = Mapping[str, Mapping[str, float]]


def write_report(runs: Sequence[Path], output: Path, title: str = DEFAULT_TITLE, baselines: Baselines | None = None) -> Path:
    """Write the page that compares the run folders to `output` and return its path.

    `baselines` are rows of constants for the summary table: name -> view -> accuracy. Raises UserError where there is no run, where a
    run cannot be read and where the page cannot be written.
    """
    if not runs:
        raise UserError("no run to report: name at least one run folder (it holds metrics.jsonl)")
    folders = list({folder.resolve(): folder for folder in runs}.values())
    page = render(summarise([read_run(folder) for folder in folders], title, baselines))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        # File names that are no valid UTF-8 reach the title and the notes as lone surrogates.
        output.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{output}: the report cannot be written ({error.strerror})") from None
    return output


def render(data: Mapping[str, Any]) -> str:
    """The page for the data of `summarise`."""
    # As JSON inside a script element only "<" could end it; "\u003c" is the same character to the JSON parser.
    embedded = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {"title": html.escape(str(data["title"])), "css": _asset("page.css"), "js": "\n".join(map(_asset, SCRIPTS)), "data": embedded}
    # One pass, so that a placeholder inside the data stays text.
    return re.sub(r"\{\{(title|css|js|data)\}\}", lambda match: parts[match[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return resources.files("fedomg.report").joinpath(name).read_text(encoding="utf-8")


def summarise(runs: Sequence[Run], title: str = DEFAULT_TITLE, baselines: Baselines | None = None) -> dict[str, Any]:
    """All that the page shows, as plain JSON values."""
    runs = name_variants(runs)
    methods = list(dict.fromkeys(run.method for run in runs))
    views = [view for view in VIEWS if any(_evaluated(run, view) for run in runs)]
    scopes = list(dict.fromkeys(run.scope for run in runs))
    return {
        "title": title,
        "scopes": [{"dataset": dataset, "target": target} for dataset, target in scopes],
        "methods": methods,
        "looks": {method: look.places() for method, look in looks(methods).items()},
        "seeds": sorted({run.seed for run in runs if run.seed is not None}),
        "views": views,
        "summary": {rule: [_summary_row(row, scopes) for row in summary(runs, rule)] for rule in RULES},
        "baselines": [
            {"name": name, "views": {view: _short(number(value)) for view, value in views.items()}}
            for name, views in (baselines or {}).items()
        ],
        "groups": [_group(members, scopes) for members in grouped(runs).values()],
        "runs": [_run(run, scopes) for run in runs],
        "comparisons": [_comparison(found) for found in (comparisons(runs, views[0], "selected") if views else ())],
        "settings": _settings(runs),
        "versions": _versions(runs),
        "notices": _notices(runs),
    }


def _comparison(found: Comparison) -> dict[str, Any]:
    numbers = {"n": found.n, "difference": _short(found.difference), "p": _short(found.p)}
    return {"first": found.first, "second": found.second, **numbers, "verdict": found.verdict}


def _settings(runs: Sequence[Run]) -> dict[str, Any]:
    """The configuration keys: what all runs share, and what differs with the number of runs of each value."""
    configured = [flat(run.config) for run in runs if run.config]
    keys = sorted({key for settings in configured for key in settings})
    counted = {key: Counter(_value(settings.get(key)) for settings in configured) for key in keys}
    return {
        "shared": [[key, next(iter(values))] for key, values in counted.items() if len(values) == 1],
        "differing": [[key, sorted(values.items())] for key, values in counted.items() if len(values) > 1],
    }


def _value(value: object) -> str:
    return "not set" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


def _versions(runs: Sequence[Run]) -> list[Any]:
    """What the runs ran with: name, then its versions with the number of runs of each."""
    found: dict[str, Counter[str]] = {}
    for run in runs:
        for name, version in mapping(run.result.get("versions")).items():
            found.setdefault(str(name), Counter())[str(version)] += 1
    return [[name, sorted(versions.items())] for name, versions in found.items()]


# ------------------------------------------------------------------------------------------------------------------- groups


def _summary_row(row: SummaryRow, scopes: list[tuple[str | None, str | None]]) -> dict[str, Any]:
    return {
        "method": row.method,
        "scope": scopes.index((row.dataset, row.target)),
        "seeds": list(row.seeds),
        "views": {view: _spread(found) for view, found in row.views.items()},
    }


def _group(runs: Sequence[Run], scopes: list[tuple[str | None, str | None]]) -> dict[str, Any]:
    """Curves and bars of one method on one target, over its runs."""
    return {
        "method": runs[0].method,
        "scope": scopes.index(runs[0].scope),
        "n": len(runs),
        "curves": {
            view: {metric: _curve(runs, partial(view_value, view=view, metric=metric)) for metric in METRICS}
            for view in VIEWS
            if any(_evaluated(run, view) for run in runs)
        },
        "server": {key: _curve(runs, partial(_server_value, key=key)) for key in SERVER_VALUES},
        "domains": [
            {"view": view, "domain": domain} | _spread(found)
            for view, domain in _domains(runs)
            if (found := spread(_domain_accuracy(run, view, domain) for run in runs)) is not None
        ],
    }


def _curve(runs: Sequence[Run], read: Callable[[Record], float | None]) -> dict[str, list[Any]]:
    points = [(round_, _spread(found)) for round_, found in curve(runs, read)]
    columns: dict[str, list[Any]] = {"round": [round_ for round_, _ in points]}
    return columns | {key: [found[key] for _, found in points] for key in ("mean", "low", "high", "n")}


def _server_value(record: Record, key: str) -> float | None:
    return number(mapping(record.get("server")).get(key))


def _evaluated(run: Run, view: str) -> bool:
    return any(view in mapping(record.get("views")) for record in run.records)


def _domains(runs: Iterable[Run]) -> list[tuple[str, str]]:
    """The (view, domain) pairs of the runs, the unseen domains first."""
    return list(
        dict.fromkeys(
            (view, str(domain))
            for view in DOMAIN_VIEWS
            for run in runs
            for record in run.records
            for domain in mapping(mapping(mapping(record.get("views")).get(view)).get("domains"))
        )
    )


def _domain_accuracy(run: Run, view: str, domain: str) -> float | None:
    return value_by_rule(run.records, "selected", partial(domain_value, view=view, domain=domain))


# --------------------------------------------------------------------------------------------------------------------- runs


def _run(run: Run, scopes: list[tuple[str | None, str | None]]) -> dict[str, Any]:
    rule, round_ = selected_round(run.records)
    return {
        "method": run.method,
        "scope": scopes.index(run.scope),
        "seed": run.seed,
        "folder": str(run.folder),
        "selection": {"rule": rule, "round": round_},
        "rounds": run.records[-1]["round"],
        "accuracy": {by: {view: _short(accuracy(run.records, view, by)) for view in VIEWS} for by in RULES},
        "curves": {view: _run_curve(run, view) for view in VIEWS if _evaluated(run, view)},
        "domains": [
            {"view": view, "domain": domain, "mean": _short(found)}
            for view, domain in _domains([run])
            if (found := _domain_accuracy(run, view, domain)) is not None
        ],
        "clients": _clients(run.records),
        "pairs": _pairs(run.records),
        "server": {key: [_short(_server_value(record, key)) for record in run.records] for key in SERVER_VALUES},
        "record_rounds": [record["round"] for record in run.records],
        "seconds": _total(run.records, "seconds", ("total",)),
        "bytes": {way: _total(run.records, "bytes", (way,)) for way in ("down", "up")},
        "config": run.config_text,
        "config_hash": _text(run.result.get("config_hash")),
        "versions": {str(name): _text(version) for name, version in mapping(run.result.get("versions")).items()},
        "notes": [*run.notes, *_remarks(run)],
    }


def _run_curve(run: Run, view: str) -> dict[str, list[Any]]:
    """A view over the rounds in which it was evaluated; a null in it is a number that was not finite."""
    evaluated = [record for record in run.records if view in mapping(record.get("views"))]
    columns: dict[str, list[Any]] = {"round": [record["round"] for record in evaluated]}
    return columns | {metric: [_short(view_value(record, view, metric)) for record in evaluated] for metric in METRICS}


def _clients(records: Sequence[Record]) -> dict[str, Any]:
    """Matrices of client x round; null where a client was not in the cohort."""
    trained = [record for record in records if mapping(record.get("clients"))]
    names = {client: _client_name(client, values) for record in trained for client, values in record["clients"].items()}
    identifiers = _in_order(names)
    matrices = {
        key: [[_short(number(mapping(record["clients"].get(client)).get(key))) for record in trained] for client in identifiers]
        for key in CLIENT_VALUES
    }
    return {
        "names": _distinct(names, identifiers),
        "rounds": [record["round"] for record in trained],
        # A matrix without a number is not worth its bytes: runs without OMG have no OMG weights.
        **{key: matrix if any(value is not None for row in matrix for value in row) else None for key, matrix in matrices.items()},
    }


def _pairs(records: Sequence[Record]) -> dict[str, Any] | None:
    """The cosine of every two clients' updates, averaged over the rounds in which both took part; None where no round recorded it."""
    names: dict[str, str] = {}
    found: dict[tuple[str, str], list[float]] = {}
    for record in records:
        recorded = mapping(mapping(record.get("server")).get("pairs"))
        clients = [str(client) for client in recorded.get("clients", [])]
        names |= {client: _client_name(client, mapping(record.get("clients")).get(client)) for client in clients}
        for position, row in enumerate(recorded.get("cosine", [])):
            for other, value in zip(clients[position + 1 :], row, strict=False):
                if number(value) is not None:
                    found.setdefault((clients[position], other), []).append(value)
    if not found:
        return None
    identifiers = _in_order(names)
    means = {pair: _short(sum(values) / len(values)) for pair, values in found.items()}
    matrix = [[means.get((one, other), means.get((other, one))) for other in identifiers] for one in identifiers]
    return {"names": _distinct(names, identifiers), "cosine": matrix}


def _in_order(clients: Iterable[str]) -> list[str]:
    return sorted(clients, key=lambda client: (not client.isdigit(), int(client) if client.isdigit() else 0, client))


def _distinct(names: Mapping[str, str], clients: Sequence[str]) -> list[str]:
    """What the clients are called; those who share a name with their numbers."""
    shared = Counter(names.values())
    return [names[client] if shared[names[client]] == 1 else f"{names[client]} ({client})" for client in clients]


def _client_name(client: str, values: object) -> str:
    name = mapping(values).get("name")
    return f"client {client}" if name is None or name == "" else str(name)


def _total(records: Sequence[Record], table: str, keys: Sequence[str]) -> float | None:
    found = [value for record in records for key in keys if (value := number(mapping(record.get(table)).get(key))) is not None]
    return sum(found) if found else None


def _text(value: object) -> str | None:
    return None if value is None else str(value)


# -------------------------------------------------------------------------------------------------------------------- notes


def _notices(runs: Sequence[Run]) -> list[str]:
    """What a reader must know before believing the numbers: reading problems, unfinished runs and seeds that count twice."""
    notices = [f"{run.folder}: {note}" for run in runs for note in (*run.notes, *_unfinished(run))]
    for (_, target, method), members in grouped(runs).items():
        for seed, times in Counter(run.seed for run in members).items():
            if times > 1 and seed is not None:
                where = f" on {target}" if target else ""
                notices.append(f"{method}{where}: seed {seed} is there {times} times and counts {times} times in the means.")
    return notices


def _remarks(run: Run) -> list[str]:
    return [*_unfinished(run), *_dropped(run), *_not_finite(run), *_not_converged(run), *_other_selection(run)]


def _unfinished(run: Run) -> list[str]:
    planned = next((rounds for table in (run.result, run.config) if isinstance(rounds := table.get("rounds"), int)), None)
    recorded = run.records[-1]["round"]
    return [f"Unfinished: {recorded} of {planned} rounds are recorded."] if planned is not None and recorded < planned else []


def _dropped(run: Run) -> list[str]:
    dropped = {record["round"]: clients for record in run.records if isinstance(clients := record.get("dropped"), list) and clients}
    if not dropped:
        return []
    count = sum(map(len, dropped.values()))
    listed = "; ".join(f"round {round_}: {', '.join(map(str, clients))}" for round_, clients in list(dropped.items())[:10])
    more = f"; and in {len(dropped) - 10} more rounds" if len(dropped) > 10 else ""
    return [f"{count} {'update was' if count == 1 else 'updates were'} dropped, by client ({listed}{more})."]


def _not_finite(run: Run) -> list[str]:
    rounds = [record["round"] for record in run.records if any(_lost(record, view) for view in mapping(record.get("views")))]
    return [f"A loss or accuracy was not finite in {_rounds(rounds)}."] if rounds else []


def _lost(record: Record, view: str) -> bool:
    return bool(number(mapping(record["views"][view]).get("n"))) and any(view_value(record, view, metric) is None for metric in METRICS)


def _not_converged(run: Run) -> list[str]:
    rounds = [record["round"] for record in run.records if mapping(record.get("server")).get("converged") is False]
    return [f"The solver missed its certificate in {_rounds(rounds)}."] if rounds else []


def _other_selection(run: Run) -> list[str]:
    noted, found = mapping(run.result.get("selection")).get("round"), selected_round(run.records)[1]
    if noted in (None, found):
        return []
    return [f"result.json selects round {noted}, the records select round {found}; the page shows the latter."]


def _rounds(rounds: Sequence[int]) -> str:
    listed = ", ".join(map(str, rounds[:10]))
    return f"round{'s' if len(rounds) > 1 else ''} {listed}" + (f" and {len(rounds) - 10} more" if len(rounds) > 10 else "")


# ------------------------------------------------------------------------------------------------------------------ numbers


def _short(value: float | None) -> float | None:
    """Six significant digits: more than a screen can show, and half the bytes."""
    return None if value is None else float(f"{value:.6g}")


def _spread(found: Spread) -> dict[str, Any]:
    return {"mean": _short(found.mean), "std": _short(found.std), "n": found.n, "low": _short(found.low), "high": _short(found.high)}
