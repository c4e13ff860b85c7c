"""How the cost of a round grows with clients and parameters: measured, fitted, drawn.

    python benchmarks/bench_growth.py [--out docs/growth.png] [--small]

Each point is the median of three. An exponent is the slope of a straight line through the upper half of the points on doubly logarithmic
axes, where what does not grow no longer counts.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch

from bench_rounds import Engine, Work, config, federation
from fedomg import omg

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

REPEATS = 3
CLIENTS = (10, 30, 100, 300, 1000)
SIDES = (32, 100, 316, 1000)
"""Of the images of a linear model with ten classes: 10 thousand to 10 million parameters."""
Points = list[tuple[int, float]]


def median_seconds(call: Callable[[], object]) -> float:
    call()
    spent = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


def round_seconds(work: Work) -> float:
    with closing(Engine(config(work, "pool", method="fedomg"), federation(work))) as engine:
        return median_seconds(engine.round)


def aggregation_seconds(clients: int, parameters: int) -> float:
    updates = torch.randn(clients, parameters, generator=torch.Generator().manual_seed(0))
    return median_seconds(lambda: omg.direction(updates))


def exponent(points: Points) -> float:
    upper = points[len(points) // 2 :] if len(points) > 3 else points
    slope, _ = np.polyfit([math.log(size) for size, _ in upper], [math.log(seconds) for _, seconds in upper], 1)
    return float(slope)


def draw(axes: Axes, title: str, label: str, series: dict[str, Points]) -> None:
    for (name, points), marker in zip(series.items(), "os^", strict=False):
        axes.loglog(*zip(*points, strict=True), marker=marker, label=f"{name}: exponent {exponent(points):.2f}")
    axes.set(title=title, xlabel=label, ylabel="seconds")
    axes.grid(alpha=0.3)
    axes.legend()


def measure(clients: Sequence[int], sides: Sequence[int]) -> tuple[dict[str, Points], dict[str, Points]]:
    def cnn(count: int) -> Work:
        return Work("cnn", (1, 28, 28), count, 32)

    def linear(side: int) -> Work:
        return Work("linear", (1, side, side), 10, 16)

    by_clients = {
        "a round (CNN, 2 steps a client)": [(count, round_seconds(cnn(count))) for count in clients],
        "the aggregation (100,000 parameters)": [(count, aggregation_seconds(count, 100_000)) for count in clients],
    }
    by_parameters = {
        "a round (linear model, 10 clients, 1 step)": [(10 * side**2, round_seconds(linear(side))) for side in sides],
        "the aggregation (20 clients)": [(10 * side**2, aggregation_seconds(20, 10 * side**2)) for side in sides],
    }
    return by_clients, by_parameters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/growth.png"))
    parser.add_argument("--small", action="store_true", help="little work, to see that it runs")
    chosen = parser.parse_args()
    by_clients, by_parameters = measure(CLIENTS[:3] if chosen.small else CLIENTS, SIDES[:3] if chosen.small else SIDES)
    for name, points in {**by_clients, **by_parameters}.items():
        print(f"{name}: exponent {exponent(points):.2f}; " + ", ".join(f"{size:,}: {seconds:.4f} s" for size, seconds in points))
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    draw(left, "Against clients", "clients", by_clients)
    draw(right, "Against parameters", "parameters", by_parameters)
    figure.savefig(chosen.out, dpi=110)
    print(f"drawn in {chosen.out}")


if __name__ == "__main__":
    main()
