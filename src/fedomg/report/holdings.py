"""What a data set holds and who holds it: as tables, and as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.table import Table
from rich.text import Text
from torch import Tensor

from fedomg.core.errors import UserError
from fedomg.data.catalogue import check_complete, known_dataset, load_dataset
from fedomg.data.dataset import Dataset
from fedomg.data.deal import heterogeneity, label_counts
from fedomg.data.federation import Federation
from fedomg.data.options import DataOptions
from fedomg.experiment.config import Config, make_config, refuse_unread
from fedomg.experiment.experiment import build_federation
from fedomg.report.console import console
from fedomg.report.drawing import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

COLUMNS = 20
"""More classes than this are summed up: nobody reads a hundred columns."""


def show_check(name: str, root: Path | None, download: bool) -> None:
    """Reads a data set, prints its examples by class and domain, and says in an error what it lacks."""
    options = DataOptions(root=None if root is None else str(root), download=download)
    refuse_unread(known_dataset(name), options)
    dataset = load_dataset(name, options, seed=0)
    shape = " x ".join(map(str, dataset.inputs.shape[1:]))
    kind = str(dataset.inputs.dtype).removeprefix("torch.")
    size = f"{len(dataset.labels):,} examples of shape {shape} ({kind}), {len(dataset.class_names)} classes"
    console.print(Text.assemble((name, "bold"), f": {size}\n"))
    _print_table(_by_class(dataset))
    check_complete(name, dataset)
    console.print("\ncomplete")


def _by_class(dataset: Dataset) -> Table:
    counts = torch.zeros(len(dataset.class_names), len(dataset.domain_names), dtype=torch.int64)
    counts.index_put_((dataset.labels, dataset.domains), torch.ones_like(dataset.labels), accumulate=True)
    several = len(dataset.domain_names) > 1
    table = _table("class", *(dataset.domain_names if several else ()), "all")
    for name, row in zip((*dataset.class_names, "all"), torch.cat([counts, counts.sum(dim=0, keepdim=True)]), strict=True):
        table.add_row(name, *(map(str, row.tolist()) if several else ()), str(int(row.sum())))
    return table


def show_partition(name: str, overrides: Sequence[str], root: Path | None, plot: Path | None) -> None:
    """Deals a data set as a run would, and prints who holds what."""
    if plot is not None:
        require_matplotlib()
    config = make_config({"dataset": name, **({} if root is None else {"data": {"root": str(root)}})}, overrides)
    federation = build_federation(config)
    counts = label_counts(federation)
    _print_table(_by_client(federation, counts))
    console.print("\n" + "\n".join(_summary(federation, counts)))
    if plot is not None:
        draw_partition(federation, plot, title=f"{_how(config)}: {_heterogeneity(counts)}")
        console.print(f"drawn in {plot}")


def _how(config: Config) -> str:
    data = config.data
    alpha = None if data.alpha is None else f"alpha {data.alpha:g}"
    return ", ".join(part for part in (config.dataset, data.partition, alpha, f"seed {config.seed}") if part)


def _by_client(federation: Federation, counts: Tensor) -> Table:
    few = federation.classes <= COLUMNS
    names = federation.dataset.class_names
    table = _table("client", "all", "train", "validation", "test", "classes", *(names if few else ("largest",)))
    for client, row in zip(federation.clients, counts, strict=True):
        sizes = (int(row.sum()), len(client.train), len(client.validation), len(client.test), int((row > 0).sum()))
        largest = ", ".join(f"{names[label]} {row[label]}" for label in row.argsort(descending=True, stable=True)[:3] if row[label])
        held = (str(count) if count else "-" for count in row.tolist()) if few else [largest]
        table.add_row(client.name, *map(str, sizes), *held)
    return table


def _summary(federation: Federation, counts: Tensor) -> list[str]:
    sizes = counts.sum(dim=1).double()
    held = (counts > 0).sum(dim=1).double()
    train, validation, test = (sum(len(getattr(c, part)) for c in federation.clients) for part in ("train", "validation", "test"))
    lines = [
        f"{len(counts)} clients, {int(sizes.sum()):,} examples: {train:,} train, {validation:,} validation, {test:,} test",
        f"examples a client: {int(sizes.min()):,} to {int(sizes.max()):,}, median {float(sizes.quantile(0.5)):,.0f}",
        f"classes a client: {int(held.min())} to {int(held.max())}, mean {float(held.mean()):.1f} of {federation.classes}",
        _heterogeneity(counts) + " (mean total-variation distance of a client's labels to all labels; 0 is IID)",
    ]
    if federation.target is not None:
        lines.append(f'held out: domain "{federation.target.name}", {len(federation.target.test):,} examples')
    return lines


def _heterogeneity(counts: Tensor) -> str:
    return f"heterogeneity {heterogeneity(counts):.3f}"


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in numbers:
        table.add_column(name, no_wrap=True, justify="left" if name == "largest" else "right")
    return table


def _print_table(table: Table) -> None:
    """In full width, also where the output is no terminal."""
    needed = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    table.width = needed
    console.print(table)


def draw_partition(federation: Federation, path: Path, title: str) -> None:
    """Clients from left to right: their sizes above, below how many examples of each class they hold."""
    from matplotlib.figure import Figure

    counts = label_counts(federation)
    clients, classes = counts.shape
    width, height = min(16.0, max(7.0, 3 + 0.14 * clients)), min(12.0, max(4.5, 2.2 + 0.28 * classes))
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    sizes, grid = figure.subplots(2, 1, sharex=True, height_ratios=(1.4, height - 2))
    figure.suptitle(title)
    _draw_sizes(sizes, federation)
    image = _draw_counts(grid, federation, counts)
    figure.colorbar(image, ax=[sizes, grid], label="examples (white: none)", fraction=0.04, pad=0.01)
    try:
        figure.savefig(path)
    except ValueError as error:
        raise UserError(f"cannot draw to {path}: {' '.join(str(error).split())}") from None


def _draw_sizes(axes: "Axes", federation: Federation) -> None:
    positions = range(len(federation.clients))
    below = [0] * len(federation.clients)
    for part, colour in (("train", "#35618f"), ("validation", "#9ec3e6"), ("test", "#e0a458")):
        heights = [len(getattr(client, part)) for client in federation.clients]
        if any(heights):
            axes.bar(positions, heights, width=1.0 if len(heights) > 50 else 0.85, bottom=below, color=colour, label=part)
        below = [under + height for under, height in zip(below, heights, strict=True)]
    axes.set_ylabel("examples")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)


def _draw_counts(axes: "Axes", federation: Federation, counts: Tensor) -> "AxesImage":
    """On a root scale, so that a few examples are told from none; none is white."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, PowerNorm

    visible_blues = ListedColormap(colormaps["Blues"](torch.linspace(0.18, 1, 256).numpy()))
    shown = counts.T.double()
    shown[shown == 0] = torch.nan
    norm = PowerNorm(0.5, vmin=0, vmax=float(counts.max()))
    image = axes.imshow(shown.numpy(), cmap=visible_blues, norm=norm, aspect="auto", interpolation="nearest")
    names, few = federation.dataset.class_names, len(counts) <= 30
    step = -(-len(names) // 40)
    axes.set_yticks(range(0, len(names), step), names[::step])
    axes.set_xlabel("client")
    if few:
        axes.set_xticks(range(len(counts)), [client.name for client in federation.clients], rotation=90)
    return image
