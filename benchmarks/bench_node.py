"""What a node takes for the training of its clients, from message to reply, with and without worker processes.

    python benchmarks/bench_node.py [--clients 40] [--workers 2] [--epochs 1 10 40] [--repeat 3]

Each message is answered by a new process, as Flower has it, which has imported what Flower's own has. The clients share 400 images of the
federation in `examples/`, with its experiment. The median is printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FEDERATION = Path(__file__).resolve().parents[1] / "examples" / "federation"
OWNER = "noto"
ENOUGH = 3600.0


def answer(folder: Path, clients: int, workers: int, epochs: int) -> float:
    """Seconds that this process takes for one message."""
    import flwr.supernode.cli  # noqa: F401  what Flower's process has imported
    from flwr.app import Context, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from fedomg import methods
    from fedomg.core.records import FIT, Broadcast
    from fedomg.engine.flower.messages import Requests, SiteOf, read_replies
    from fedomg.engine.flower.node import QUERY
    from fedomg.engine.states import ClientStates
    from fedomg.engine.turn import Turn
    from fedomg.experiment.config import load_config
    from fedomg.experiment.site import initial_model
    from fedomg.flower.client import client_app
    from fedomg.flower.holdings import of_this_node

    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    config = load_config(FEDERATION / "experiment.toml", [f"data.clients_per_domain={clients}", f"local.epochs={epochs}"])
    federation = of_this_node(config, folder / OWNER)
    model = initial_model(config, federation, methods.build(config.method, config.local, config.aggregator).trainer)
    numbers = {client.name: client.id for client in federation.everyone}
    site = SiteOf("", json.dumps({"config": {**config.table(), "engine": {}}, "numbers": numbers, "run": "0" * 16}))
    turn = Turn(FIT, {client: Broadcast(1, model.shared) for client in range(clients)}, with_rows=True)
    message = Message(Requests(turn, site).to(turn.clients, ClientStates()), 1, QUERY, ttl=ENOUGH)
    settings: dict[str, bool | float | int | str] = {
        "data-root": str(folder / OWNER),
        "state-dir": str(folder / "memory"),
        "workers": workers,
    }
    app, context = client_app(), Context(1, 1, settings, RecordDict(), {})
    start = time.perf_counter()
    reply = app(message, context)
    spent = time.perf_counter() - start
    header, _, _ = read_replies(reply.content)
    assert len(header.get("replies", [])) == clients, header
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, nargs="+", default=[1, 10, 40])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # to answer one message, in a process of its own
    asked = parser.parse_args()
    if asked.folder:
        print(answer(asked.folder, asked.clients, asked.workers, *asked.epochs))
        return
    sys.path.insert(0, str(FEDERATION))
    from run import write_images

    with tempfile.TemporaryDirectory(prefix="node-") as name:
        write_images(Path(name), [OWNER])
        for epochs in asked.epochs:
            for workers in dict.fromkeys([1, asked.workers]):
                told = ["--folder", name, "--clients", str(asked.clients), "--workers", str(workers), "--epochs", str(epochs)]
                command = [sys.executable, __file__, *told]
                spent = [float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(asked.repeat)]
                print(f"{epochs:3} epochs, workers={workers}: {statistics.median(spent):6.2f} s from message to reply", flush=True)


if __name__ == "__main__":
    main()
