"""What a round costs among real processes: a SuperLink and three SuperNodes on loopback, with TLS and node authentication.

    python benchmarks/bench_federation.py [--rounds 12] [--model cnn --model resnet18] [--out FOLDER] [--json FILE]

The contenders take turns round by round, each after each other equally often, on the same nodes and without evaluation. `echo`:
Flower's FedAvg and the strategy FedOMG, with a client that sends back what it was sent, a little changed, and needs no torch. `step`:
Flower's FedAvg with a client that reads a folder of images and takes one step on one of them in plain torch, and a round of fedomg,
whose own client does the same. The median of the rounds after the first is printed. Every process that is started is ended.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "federation"))
from run import OWNERS, Federation, FederationError, until, unwind_on_termination

HERE = Path(__file__).parent.resolve()
NODES = OWNERS[:3]
PATIENCE = 7200.0
REFERENCE = "Flower's FedAvg"


def measure(federation: Federation, model: str, rounds: int) -> dict[str, list[float]]:
    """The seconds of each counted round, by contender."""
    out = federation.out / model
    out.mkdir()
    told = {"out": str(out), "model": model, "nodes": len(NODES), "rounds": rounds}
    run = federation.launch(HERE / "federation", told)
    until(lambda: federation.over(run), f"the rounds of {model}", PATIENCE, pause=20)  # each look starts a process
    if not (out / "seconds.json").exists():
        raise FederationError(f"the rounds of {model} ended as {federation.status(run)}: {federation.log(run)}")
    found: dict[str, list[float]] = json.loads((out / "seconds.json").read_text(encoding="utf-8"))
    return found


def show(model: str, spent: dict[str, list[float]]) -> None:
    print(f"{model}, {len(next(iter(spent.values())))} rounds each; load {os.getloadavg()[1]:.1f}")
    for contender, seconds in spent.items():
        median = statistics.median(seconds)
        reference = statistics.median(spent[f"{contender.partition(':')[0]}: {REFERENCE}"])
        spread = f"{min(seconds):.1f} to {max(seconds):.1f}"
        print(f"  {contender:28} {median:6.2f} s a round ({spread}), {median / reference:5.2f} of {REFERENCE}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--model", action="append", choices=["cnn", "resnet18"])
    parser.add_argument("--out", type=Path, help="where keys, images and logs are kept; a temporary folder by default")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    unwind_on_termination()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])  # for flower_rounds
    results = {}
    with ExitStack() as stack:
        out = asked.out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="federation-")))
        out.mkdir(parents=True, exist_ok=True)
        federation = Federation(out.resolve(), stack, NODES)
        federation.start()
        for model in asked.model or ["cnn", "resnet18"]:
            results[model] = measure(federation, model, asked.rounds)
            show(model, results[model])
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
