"""Time and memory of `fedomg.omg`.

    python benchmarks/bench_omg.py [--rounds 7] [--small]

1. `direction` against what it cannot do without: one symmetric Gram product of the updates (the faster of BLAS syrk and a matmul) and one
   weighted sum of the rows. All are timed in turn, round by round, so that whatever else the machine does hits them alike. At most 1.25.
2. The solver alone, on families of Gram matrices that are hard for some method or other. At most 10 ms for 100 clients, 1 s for 1000.
3. The peak of the memory beyond the update matrix, in a process of its own: one result of M numbers, U x U numbers, and blocks of a few MB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg.blas import ssyrk

from fedomg import omg
from fedomg.omg import gram_matrix

SHAPES = ((100, 582_026), (4, 11_180_103))  # the CNN for 28 x 28 images, a ResNet-18 with seven classes
SMALL_SHAPES = ((100, 58_203), (4, 1_118_011))
Array = npt.NDArray[np.float64]


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def time_direction(shape: tuple[int, int], rounds: int) -> None:
    updates = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    coefficients = torch.rand(shape[0])
    calls: dict[str, Callable[[], object]] = {
        "syrk": lambda: ssyrk(1.0, updates.numpy().T, trans=1),
        "matmul": lambda: updates @ updates.T,
        "sum": lambda: coefficients @ updates,
        "direction": lambda: omg.direction(updates),
        "gram_matrix": lambda: gram_matrix(updates),
    }
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(seconds(call))
    for kind, pick in (("best", min), ("median", statistics.median)):
        figures = {name: 1e3 * float(pick(values)) for name, values in times.items()}
        floor = min(figures["syrk"], figures["matmul"]) + figures["sum"]
        listed = ", ".join(f"{name} {value:.1f}" for name, value in figures.items())
        print(f"direction {shape[0]} x {shape[1]} {kind:6}: {figures['direction'] / floor:.2f} of Gram product + sum   ({listed} ms)")


def families(clients: int) -> Iterator[tuple[str, Array]]:
    rng = np.random.default_rng(0)
    columns = 2 * clients + 3
    plain = rng.standard_normal((clients, columns))
    yield "gaussian", plain
    yield "common part", plain + 1.0
    yield "nearly orthogonal", np.linalg.qr(rng.standard_normal((columns, clients)))[0].T * (1 + 0.01 * rng.standard_normal((clients, 1)))
    yield "rank deficient", rng.standard_normal((clients, clients // 3))
    yield "rank 5, common part", rng.standard_normal((clients, 5)) + 2.0 * rng.standard_normal(5)
    yield "mixed norms", plain * 10.0 ** rng.uniform(-3, 3, (clients, 1))
    yield "mixed, deficient", rng.standard_normal((clients, clients // 3)) * 10.0 ** rng.uniform(-3, 3, (clients, 1))
    yield "conflicting", 0.1 * plain + rng.choice([-1.0, 1.0], (clients, 1)) * rng.standard_normal(columns)
    yield "duplicated", np.concatenate([plain[: clients // 2]] * 2)
    yield "zero in hull", np.concatenate([plain[:-1], -plain[:-1].mean(axis=0, keepdims=True)])


def time_solver(clients: int, limit: float, rounds: int) -> None:
    worst = 0.0
    for name, updates in families(clients):
        gram = updates @ updates.T
        figures = []
        for kappa in (0.1, 0.5, 1.0, 3.0):
            solution = omg.solve(gram, None, kappa)
            call = partial(omg.solve, gram, None, kappa)
            taken = min(seconds(call) for _ in range(rounds))
            worst = max(worst, taken)
            figures.append(f"{1e3 * taken:7.1f} ms {solution.iterations:3} solves {'' if solution.converged else 'NOT CONVERGED'}")
        print(f"solver {clients:4} {name:20} {'  '.join(figures)}")
    print(f"solver {clients:4} worst {1e3 * worst:.1f} ms of {1e3 * limit:.0f} ms")


def _peak() -> int:
    """The most memory that this process has held, in bytes (Linux; the figure of getrusage is inherited from the parent)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def _measure_memory(shape: tuple[int, int], dtype: torch.dtype, answers: multiprocessing.Queue[int]) -> None:
    omg.direction(torch.ones(4, 100_000).to(dtype))  # libraries loaded, threads started
    updates = torch.empty(shape, dtype=dtype).normal_()
    before = _peak()
    omg.direction(updates)
    answers.put(_peak() - before)


def peak_memory(shape: tuple[int, int], dtype: torch.dtype) -> None:
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[int] = context.Queue()
    process = context.Process(target=_measure_memory, args=(shape, dtype, answers))
    process.start()
    extra = answers.get()
    process.join()
    name, matrix, result = str(dtype).removeprefix("torch."), shape[0] * shape[1] * dtype.itemsize, 4 * shape[1]
    sizes = f"(the matrix has {matrix / 2**20:.0f}, the result {result / 2**20:.1f})"
    print(f"memory {shape[0]} x {shape[1]} {name:8}: {extra / 2**20:6.1f} MiB more at the peak {sizes}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="repetitions of each timing")
    parser.add_argument("--small", action="store_true", help="a tenth of the columns, 100 clients")
    options = parser.parse_args()
    shapes = SMALL_SHAPES if options.small else SHAPES
    for shape in shapes:
        time_direction(shape, options.rounds)
    time_solver(100, 0.010, options.rounds)
    if not options.small:
        time_solver(1000, 1.0, 1)
    for shape in shapes:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            peak_memory(shape, dtype)


if __name__ == "__main__":
    main()
