"""Run in a process of its own, since Ray leaves warnings behind: one Flower simulation for several methods, each compared with one process.

Writes a line a method: its name, and what differs.
"""

import sys
from contextlib import closing

from tests.engine.test_equal import assert_same_run, configure, run
from tests.grids import lend

from fedomg.engine.flower import simulation

NODES = 4


def main(methods: list[str]) -> None:
    with closing(simulation.Simulation(NODES, workers=2)) as running:
        simulation.Simulation = lend(running.grid)  # type: ignore[misc, assignment]
        for method in methods:
            try:
                assert_same_run(run(configure(method, "flower")), run(configure(method, "inline")))
            except Exception as error:
                sys.stdout.write(f"{method} {error!r}\n")
            else:
                sys.stdout.write(f"{method} nothing\n")


if __name__ == "__main__":
    main(sys.argv[1:])
