"""The toy problem drawn: who holds which points, and which way a linear model with two weights and a bias is pulled."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from fedomg.data.federation import Federation
from fedomg.report.drawing import PALETTE, legend, looks, panels, save, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
PLANES = ((0, 1), (0, 2), (1, 2))
AXES = ("weight of x", "weight of y", "bias")


def points(federation: Federation, out: Path, *, name: str = "points") -> list[Path]:
    """The training points of each client in the plane, by class, with the boundary y = 0 that all share."""
    with styled():
        figure, axes = panels(len(federation.clients), size=(2.6, 2.2), sharex=True, sharey=True)
        for one, client in zip(axes, federation.clients, strict=True):
            inputs, labels = (part.numpy() for part in client.train.batch(torch.arange(len(client.train))))
            for label, title in enumerate(federation.dataset.class_names):
                there = inputs[labels == label]
                one.scatter(
                    there[:, 0], there[:, 1], s=6, marker="o^"[label % 2], color=PALETTE[label], alpha=0.7, linewidths=0, label=title
                )
            one.axhline(0, color="#444444", linewidth=0.8)
            one.set(title=client.name, xlabel="x")
        axes[0].set_ylabel("y")
        legend(figure, axes[:1], markerscale=3)
        return save(figure, out, name)


def trajectories(
    settings: Mapping[str, Mapping[str, Array]],
    out: Path,
    *,
    pulls: Mapping[str, tuple[Array, Array]] | None = None,
    name: str = "trajectories",
) -> list[Path]:
    """Paths of (weight of x, weight of y, bias) over the rounds, an array of rounds x 3 for each method, in rows of settings.

    The columns are the three planes. A path begins at the cross and ends at its marker. `pulls` are arrows of a setting: where each
    begins, (clients, 3), and the client's update there, (clients, 3).
    """
    with styled():
        figure, axes = panels(len(PLANES) * len(settings), columns=len(PLANES), size=(3.0, 2.5))
        styles = looks(dict.fromkeys(method for paths in settings.values() for method in paths))
        for row, (setting, paths) in enumerate(settings.items()):
            for one, plane in zip(axes[row * len(PLANES) :], PLANES, strict=False):
                for method, path in paths.items():
                    line = styles[method].line()
                    one.plot(path[:, plane[0]], path[:, plane[1]], **{**line, "marker": ""}, label=method)
                    one.plot(path[-1:, plane[0]], path[-1:, plane[1]], **line)
                    one.plot(path[:1, plane[0]], path[:1, plane[1]], "x", color="#444444", markersize=6)
                _arrows(one, plane, (pulls or {}).get(setting))
                one.set(xlabel=AXES[plane[0]], ylabel=AXES[plane[1]], title=setting if plane == PLANES[0] else "")
        legend(figure, axes)
        return save(figure, out, name)


def _arrows(axes: "Axes", plane: Sequence[int], pulls: tuple[Array, Array] | None) -> None:
    if pulls is not None:
        starts, updates = (array[:, list(plane)] for array in pulls)
        axes.update_datalim(starts + updates)
        axes.autoscale_view()
        axes.quiver(*starts.T, *updates.T, angles="xy", scale_units="xy", scale=1, width=0.006, color="#888888", zorder=1)
