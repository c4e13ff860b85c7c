"""What it is worth to train clients as one: the in-process engine against the vectorised one, on one device, in turn.

    python benchmarks/bench_vectorised.py [--device cuda] [--work cnn|resnet18] [--together 32] [--repeats 5] [--small]

The work is that of `bench_rounds.py`: one local epoch of SGD at batch 16 in every client. Printed: samples a second of a whole round, the
ratio, the largest memory on the device, and how far the models are apart after all rounds, as a share of the way they went.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import closing

import torch

from bench_rounds import SMALL, WORKS, config, federation
from fedomg.experiment.config import EngineOptions
from fedomg.experiment.experiment import Experiment
from fedomg.experiment.state import ServerState

ENGINES = ("inline", "vectorised")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--work", choices=WORKS, default="cnn")
    parser.add_argument("--together", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="a few seconds of work")
    arguments = parser.parse_args()
    work = (SMALL if arguments.small else WORKS)[arguments.work]
    people = federation(work)
    engines = {"inline": EngineOptions(name="inline", device=arguments.device)}
    engines["vectorised"] = EngineOptions(name="vectorised", device=arguments.device, together=arguments.together)
    trials = {name: Experiment(config(work, name).model_copy(update={"engine": engines[name]}), people) for name in ENGINES}
    states = {name: trial.initial_state() for name, trial in trials.items()}
    start = states["inline"].shared.clone()
    seconds: dict[str, list[float]] = {name: [] for name in ENGINES}
    memory = dict.fromkeys(ENGINES, 0)
    for repeat in range(arguments.repeats + 1):
        for name, trial in trials.items():
            states[name], spent, used = _round(trial, states[name])
            if repeat:  # the first warms up
                seconds[name].append(spent)
                memory[name] = max(memory[name], used)
    for trial in trials.values():
        with closing(trial.engine):
            pass
    _show(work.clients * work.images, seconds, memory)
    way = float((states["inline"].shared - start).norm())
    print(f"apart after {arguments.repeats + 1} rounds: {float((states['vectorised'].shared - states['inline'].shared).norm()) / way:.1e}")


def _round(trial: Experiment, state: ServerState) -> tuple[ServerState, float, int]:
    on_device = trial.federation.device.type == "cuda"
    if on_device:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    state, _ = trial.advance(state)
    if on_device:
        torch.cuda.synchronize()
    return state, time.perf_counter() - begin, torch.cuda.max_memory_allocated() if on_device else 0


def _show(samples: int, seconds: dict[str, list[float]], memory: dict[str, int]) -> None:
    ratio = statistics.median(one / other for one, other in zip(seconds["inline"], seconds["vectorised"], strict=True))
    for name, spent in seconds.items():
        share = f", {ratio:.2f} times" if name == "vectorised" else ""
        used = f", {memory[name] / 2**20:,.0f} MiB on the device" if memory[name] else ""
        print(f"{name:>10}: {samples / statistics.median(spent):12,.0f} samples/s{share}{used}")


if __name__ == "__main__":
    main()
