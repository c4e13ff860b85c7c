"""Flower's simulation: nodes in the processes of a Ray cluster, started with this engine unless `RAY_ADDRESS` names one that runs."""

import logging
import os
import threading
import time
from collections.abc import Sequence
from queue import Empty, Queue
from typing import Any

from fedomg.core.errors import UserError

SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns; no worker asks for an accelerator
}
"""Nothing is reported to anybody, where the user has not said otherwise."""

RAY_ADDRESS = "RAY_ADDRESS"


class Simulation:
    """A grid with so many nodes, which runs until it is closed."""

    def __init__(self, nodes: int, workers: int) -> None:
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        self._python_path = os.environ.get("PYTHONPATH")
        self._grids: Queue[Any] = Queue()
        self._closing = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(nodes, workers), name="flower simulation", daemon=True)
        self._thread.start()
        self.grid = self._wait_for_the_grid()
        self.nodes = self._wait_for_nodes(nodes)

    def _run(self, nodes: int, workers: int) -> None:
        from flwr.serverapp import Grid, ServerApp
        from flwr.simulation import run_simulation

        from fedomg.engine.flower.node import app

        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: object) -> None:
            self._grids.put(grid)
            self._closing.wait()

        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # what goes wrong is told by the engine, in one line
        try:
            run_simulation(server, app, nodes, backend_config=_backend(workers))
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        if not self._thread.is_alive():
            raise UserError(f"Flower's simulation has ended: {self._error or 'without a reason'}") from self._error

    def _wait_for_the_grid(self) -> Any:
        while True:
            try:
                return self._grids.get(timeout=0.1)
            except Empty:
                self.check()

    def _wait_for_nodes(self, count: int) -> Sequence[int]:
        while len(nodes := list(self.grid.get_node_ids())) < count:
            self.check()
            time.sleep(0.01)
        return sorted(nodes)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        if self._python_path is None:  # Flower has set it for Ray's processes
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = self._python_path


def _backend(workers: int) -> dict[str, dict[str, Any]]:
    """One processor a client. A cluster that runs already knows how many it has."""
    start: dict[str, Any] = {} if os.environ.get(RAY_ADDRESS) else {"num_cpus": workers}
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    return {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {**start, **quiet}}
