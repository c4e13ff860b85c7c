"""One style for every figure: colours that colour-blind readers tell apart (Okabe and Ito, 2008), and files in print and screen formats."""

import io
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedomg.core.errors import UserError
from fedomg.methods import ENTRIES, OMG_SUFFIX

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("pdf", "svg", "png")
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000", "#8c8200")
"""Okabe and Ito's, with the yellow darkened: on white nobody sees the original as a line."""

MARKERS = "osD^vPX<>phd"
DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
PANEL = (3.2, 2.4)
"""Inches of one panel: two fill the width of a page."""

LETTER, LINE = 0.065, 0.17
"""Inches of a letter and a line of a legend."""

STYLE: Mapping[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,  # letters stay letters
    "svg.fonttype": "none",
    "svg.hashsalt": "fedomg",  # the same figure is the same file
}

_LABEL_SHIFT = {"fedavg": 6, "fedprox": 0, "scaffold": 4, "peravg": 1, "fedrod": 2, "fedpac": 3, "fedbabu": 4, "fedas": 7}
_UNSEEN = {"fedga": 1, "fedsam": 4, "mofedsam": 0, "fediir": 2, "fedsr": 3, "stablefdg": 0, "fedadg": 7}
_COLOURS = {**_LABEL_SHIFT, **_UNSEEN, "erm": 7, "fish": 0, "fishr": 1}
"""Methods that stand in one figure of the paper have colours of their own; FedOMG has the one that no other has."""

FEDOMG_COLOUR = 5


@dataclass(frozen=True)
class Look:
    """How a method looks in every figure."""

    colour: str
    dashes: Any
    marker: str
    hollow: bool

    def bar(self) -> str:
        """Without the rule paler, half way to white."""
        channels = (int(self.colour[at : at + 2], 16) for at in (1, 3, 5))
        return "#" + "".join(f"{(channel + 255) // 2:02x}" for channel in channels) if self.hollow else self.colour

    def places(self) -> tuple[int, int]:
        """In the palette, and in the dashes."""
        return PALETTE.index(self.colour), DASHES.index(self.dashes)

    def line(self) -> dict[str, Any]:
        return {
            "color": self.colour,
            "linestyle": self.dashes,
            "marker": self.marker,
            "markerfacecolor": "white" if self.hollow else self.colour,
        }


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """A method keeps its colour from figure to figure; with the matching rule its line is solid, without it dashed."""
    found: dict[str, Look] = {}
    for number, method in enumerate(methods):
        name = method.partition(" ")[0]
        base = name.removesuffix(OMG_SUFFIX)
        composed = name != base
        colour = FEDOMG_COLOUR if name == "fedavg+omg" else _COLOURS.get(base, number % len(PALETTE))
        marker = MARKERS[list(ENTRIES).index(base) % len(MARKERS)] if base in ENTRIES else MARKERS[number % len(MARKERS)]
        own = [(PALETTE[colour], DASHES[dash]) for dash in ((0, 3) if composed else (1, 2))]
        others = [(other, DASHES[0 if composed else 1]) for other in PALETTE]
        taken = [(look.colour, look.dashes) for look in found.values()]
        unused = [pair for pair in others if pair[0] not in dict(taken)]
        free = next((pair for pair in (own[0], *unused, *others, *own) if pair not in taken), own[0])
        found[method] = Look(*free, marker, not composed)
    return found


# ----------------------------------------------------------------------------------------------------------------- figures


def require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError('drawing needs matplotlib: pip install "fedomg[report]"') from None


def styled() -> AbstractContextManager[None]:
    """Everything drawn and saved inside has the style."""
    require_matplotlib()
    from matplotlib import rc_context

    settings: Any = dict(STYLE)  # matplotlib types its keys as a list of literals
    return rc_context(settings)


def panels(count: int, columns: int = 4, size: tuple[float, float] = PANEL, **keys: Any) -> "tuple[Figure, list[Axes]]":
    """A figure of `count` panels in rows, the unused ones of the last row removed."""
    from matplotlib.figure import Figure

    columns = min(count, columns)
    rows = -(-count // columns)
    figure = Figure(figsize=(max(size[0] * columns, 4.2), size[1] * rows + 0.2), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **keys).flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def legend(figure: "Figure", axes: "Sequence[Axes]", **keys: Any) -> None:
    """One legend for all panels below them, each name once. The figure grows by what it takes."""
    handles = {label: handle for one in axes for handle, label in zip(*one.get_legend_handles_labels(), strict=True)}
    if handles:
        width, height = figure.get_size_inches()
        columns = min(len(handles), max(1, int(width / (0.5 + LETTER * max(map(len, handles))))))
        figure.set_size_inches(width, height + LINE * -(-len(handles) // columns))
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=columns, **keys)


def save(figure: "Figure", out: Path, name: str) -> list[Path]:
    """The figure as `name.pdf`, `name.svg` and `name.png` in the folder `out`; the same figure gives the same bytes."""
    written = []
    for suffix in FORMATS:
        path = out / f"{name}.{suffix}"
        drawn = io.BytesIO()
        undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[suffix]
        figure.savefig(drawn, format=suffix, metadata=undated, bbox_inches="tight", pad_inches=0.05)
        try:
            out.mkdir(parents=True, exist_ok=True)
            path.write_bytes(drawn.getvalue())
        except OSError as error:
            raise UserError(f"{path}: the figure cannot be written ({error.strerror})") from None
        written.append(path)
    return written
