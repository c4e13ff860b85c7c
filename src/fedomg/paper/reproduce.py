"""Runs what tables and figures of the paper are made of, each run once however many of them show it, and makes them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shlex import quote

from fedomg.core.errors import UserError
from fedomg.data.catalogue import FROM_FILES, SOURCES, missing
from fedomg.experiment.config import Config, Table, flat, make_config
from fedomg.experiment.jobs import Failure
from fedomg.experiment.select import read_run
from fedomg.experiment.sweep import STATE, Planned, SweepFolder
from fedomg.models.weights import IMAGENET, NONE, find
from fedomg.paper import outputs, stand_ins
from fedomg.paper.items import Item, Scale, item, names
from fedomg.report.console import console
from fedomg.report.html import write_report
from fedomg.report.sweep import run_and_show, show_failures

ALL = "all"
RUNS = "runs"
STAND_INS = "generated stand-ins, not the data: the numbers say nothing"


@dataclass(frozen=True)
class Ready:
    """The runs of an item that can be made here, and why others cannot, in one line each."""

    item: Item
    runs: tuple[Planned, ...]
    lacking: tuple[str, ...]


def reproduce(asked: Sequence[str], scale: Scale, root: Path, out: Path, workers: int | None = None, overrides: Sequence[str] = ()) -> bool:
    """Runs and makes the items of these names; says whether all is well. What data are missing for stays empty."""
    items = [item(name) for name in dict.fromkeys(names() if ALL in asked else asked)]
    place = stand_ins.make(out) if scale == "smoke" else root
    ready = [prepared(one, scale, place, overrides) for one in items]
    for reason in dict.fromkeys(reason for one in ready for reason in one.lacking):
        console.print(f"left out: {reason}")
    if not any(one.runs or not has_runs(one.item) for one in ready):
        raise UserError(f"nothing can be run for {', '.join(one.item.name for one in ready)}: {ready[0].lacking[0]}")
    folder, failures = _run(ready, scale, out / RUNS, workers)
    made = [_make(one, scale, out, folder, overrides) for one in ready]
    show_failures(failures, sum(len(one.runs) for one in ready), out / RUNS / STATE)
    return all(made) and not failures


def has_runs(one: Item) -> bool:
    return bool(one.options.get("runs", True))


def prepared(one: Item, scale: Scale, root: Path, overrides: Sequence[str] = ()) -> Ready:
    """The item's runs with the places of data and weights, those apart for which one is missing."""
    runs, lacking = [], []
    for planned in one.planned(scale, overrides) if has_runs(one) else []:
        reason = _missing(planned.config, root)
        if reason is None:
            runs.append(Planned(_placed(planned.config, root, scale), {}))
        else:
            lacking.append(reason)
    return Ready(one, tuple(runs), tuple(dict.fromkeys(lacking)))


def _missing(config: Config, root: Path) -> str | None:
    return missing_data(config.dataset, root) or weights_place(config.model.name, config.model.weights, root)[1]


@cache
def missing_data(dataset: str, root: Path) -> str | None:
    return missing(dataset, root)


@cache
def weights_place(model: str, weights: str, root: Path) -> tuple[str, str | None]:
    """Where they are: in the folder `weights` of the root, or where the setting says; or why they are not."""
    if weights == NONE:
        return weights, None
    own = root / "weights"
    for place in ([str(own)] if weights == IMAGENET and own.is_dir() else []) + [weights]:
        try:
            find(model, place)
        except UserError as error:
            reason = str(error).split("; ")
            continue
        return place, None
    fetch = next((part for part in reason if part.startswith("fetch ")), reason[0]).split(" and set")[0]
    return (
        weights,
        f'the ImageNet weights of model "{model}" are neither in {own} nor in torchvision\'s cache; to get them: {fetch} into {own}',
    )


def _placed(config: Config, root: Path, scale: Scale) -> Config:
    """Stand-ins are decoded beside themselves, not in the user's cache."""
    table: Table = config.table()
    if SOURCES[config.dataset].needs_root:
        table["data"]["root"] = str(root)
        if scale == "smoke" and SOURCES[config.dataset] in FROM_FILES:
            table["data"]["cache"] = str(root / "cache")
    table["model"]["weights"] = weights_place(config.model.name, config.model.weights, root)[0]
    return make_config(table)


# ------------------------------------------------------------------------------------------------------------------- running


def _run(ready: Sequence[Ready], scale: Scale, out: Path, workers: int | None) -> tuple[SweepFolder, dict[Path, Failure]]:
    """What is timed runs last, one run after the other. In a trial of the machinery nobody reads the times."""
    apart = [one for one in ready if one.item.alone and scale != "smoke"]
    together = _union([one for one in ready if one not in apart])
    failures: dict[Path, Failure] = {}
    for runs, count in ((together, workers), (_union(apart), 1)):
        if runs:
            failures |= run_and_show(runs, out, count)[1]
    return SweepFolder(_union(ready), out), failures


def _union(ready: Sequence[Ready]) -> list[Planned]:
    return list({run.config.hash(): run for one in ready for run in one.runs}.values())


# -------------------------------------------------------------------------------------------------------------------- making


def _make(ready: Ready, scale: Scale, out: Path, folder: SweepFolder, overrides: Sequence[str]) -> bool:
    """Makes one item of those of its runs that are finished; says whether it could."""
    one = ready.item
    names = {run.name for run in ready.runs}
    runs = [read_run(job.out) for job in folder.those("finished") if job.out.name in names]
    if has_runs(one) and not runs:
        console.print(f"{one.name}: nothing to show, no run of it is finished")
        return not ready.runs
    trial = scale == "smoke" and has_runs(one)
    title = f"{one.title} ({STAND_INS})" if trial else one.title
    order = outputs.Order(one, scale, runs, out / one.name, title, f"{one.name}-stand-ins" if trial else one.name)
    try:
        made = outputs.make(order)
    except UserError as error:
        console.print(f"{one.name}: {error}")
        return False
    made.append(_about(ready, scale, order.out, len(runs), title, overrides))
    if runs:
        made.append(write_report([run.folder for run in runs], order.out / "report.html", f"{one.name}: {title}"))
    console.print(f"{one.name}: {', '.join(path.name for path in made)} in {order.out}")
    return True


def _about(ready: Ready, scale: Scale, out: Path, finished: int, title: str, overrides: Sequence[str]) -> Path:
    """What this is, how it is made again, and in what it departs from the paper's setting."""
    one = ready.item
    settings = "".join(f" --set {quote(override)}" for override in overrides)
    lines = [f"# {one.name}: {title}", "", "```", f"fedomg reproduce {one.name} --scale {scale}{settings}", "```", ""]
    if has_runs(one):
        lines += [f"{finished} of {len(ready.runs)} runs are finished.", ""]
    lines += [f"- Left out: {reason}" for reason in ready.lacking]
    changes = one.changes(scale)
    lines += ["Other than at the scale `paper`:", ""] if changes else []
    lines += [f"- `{key} = {_shown(value)}`" for key, value in changes.items()]
    path = out / "about.md"
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return path


def _shown(value: object) -> str:
    """As TOML has it; the keys of a table that stands in a list are dotted."""
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_shown(inner)}" for key, inner in flat(value).items()) + " }" if value else "{}"
    return json.dumps(value)
