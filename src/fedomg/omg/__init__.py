"""On-server matching gradients: client updates in, invariant direction out, with a certificate that the optimum was reached.

Usable alone: it needs torch and nothing else of this package.
"""

from fedomg.omg.direction import aggregate, combine, direction, gram_matrix
from fedomg.omg.presets import Preset, preset, solve_preset
from fedomg.omg.published import solve_reference
from fedomg.omg.shortest import shortest
from fedomg.omg.solver import Solution, solve

__all__ = [
    "Preset",
    "Solution",
    "aggregate",
    "combine",
    "direction",
    "gram_matrix",
    "preset",
    "shortest",
    "solve",
    "solve_preset",
    "solve_reference",
]
