"""Which of the paper's claims about Rect-4 hold, over a family of constructions: trained, counted, drawn.

    python benchmarks/rect4_family.py [--out runs/rect4] [--seeds 5] [--jobs 2] [--rows rows.csv]

Writes rect4-claims.csv and the pictures rect4-* in three formats, and prints the table of docs/rect4.md. `--rows` keeps the measures
of every path.
"""

from __future__ import annotations

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

from fedomg.paper.rect4_paths import FAMILY, Construction
from fedomg.paper.rect4_plots import draw
from fedomg.paper.rect4_study import Row, markdown, shares, study, write


def one(construction: Construction, seeds: int) -> list[Row]:
    torch.set_num_threads(1)
    return study(range(seeds), (construction,))


def family(seeds: int, jobs: int) -> list[Row]:
    """In the order of the family, whichever is ready first."""
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(one, construction, seeds): construction for construction in FAMILY}
        found = {}
        for done in as_completed(waiting):
            found[waiting[done]] = done.result()
            print(f"{len(found)} of {len(FAMILY)}: {waiting[done]}", flush=True)
    return [row for construction in FAMILY for row in found[construction]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/rect4"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rows", type=Path)
    given = parser.parse_args()
    rows = family(given.seeds, given.jobs)
    found = shares(rows)
    given.out.mkdir(parents=True, exist_ok=True)
    write(given.out / "rect4-claims.csv", found)
    if given.rows:
        write(given.rows, rows)
    draw(found, given.out)
    print(markdown(found))


if __name__ == "__main__":
    main()
