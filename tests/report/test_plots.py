"""Figures: what they show is read back from the drawing itself, and each is written in every format."""

import builtins
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedomg.core.errors import UserError
from fedomg.experiment.config import make_config
from fedomg.experiment.experiment import build_federation
from fedomg.experiment.select import Run, read_run
from fedomg.report import drawing, plots, toy

pytest.importorskip("matplotlib")
WriteRun = Callable[..., Path]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are saved, as objects; nothing is written."""
    figures: list[Any] = []

    def keep(figure: Any, out: Path, name: str) -> list[Path]:
        figures.append(figure)
        return []

    for module in (plots, toy):
        monkeypatch.setattr(module, "save", keep)
    return figures


@pytest.fixture
def runs(write_run: WriteRun) -> list[Run]:
    return [
        read_run(write_run(f"{method}-{target}-{seed}", method, target=target, seed=seed, start=0.1 + seed / 10 + 0.05 * ("omg" in method)))
        for method, target, seed in itertools.product(("fedavg", "fedavg+omg"), ("line", "noto"), (0, 1))
    ]


def lines(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {
        line.get_label(): (list(map(float, line.get_xdata())), [round(float(y), 6) for y in line.get_ydata()])
        for line in axes.get_lines()
        if not line.get_label().startswith("_")
    }


def test_curves_have_a_panel_for_each_target_and_a_line_for_each_method(runs: list[Run], drawn: list[Any]) -> None:
    plots.curves(runs, Path())
    (figure,) = drawn
    assert [axes.get_title() for axes in figure.axes] == ["line", "noto"]
    assert lines(figure.axes[0]) == {"fedavg": ([0, 1, 2, 3], [15, 25, 35, 45]), "fedavg+omg": ([0, 1, 2, 3], [20, 30, 40, 50])}
    band = figure.axes[0].collections[0].get_paths()[0].get_extents()
    assert (round(band.ymin, 6), round(band.ymax, 6)) == (10, 50)


def test_curves_of_another_view_and_metric(runs: list[Run], drawn: list[Any]) -> None:
    plots.curves(runs, Path(), view="worst_group", metric="loss")
    assert lines(drawn[0].axes[0])["fedavg"][1] == [1.1] * 4
    with pytest.raises(UserError, match="no run has the view personalised"):
        plots.curves(runs, Path(), view="personalised")
    with pytest.raises(UserError, match="no run to draw"):
        plots.curves([], Path())


def test_a_swept_key_is_the_axis_and_others_are_levels(write_run: WriteRun, drawn: list[Any]) -> None:
    swept = [
        read_run(write_run(f"{lr}-{target}", "fedavg+omg", target=target, start=lr / 10, settings=f"[server]\nlr = {lr}\n"))
        for lr, target in itertools.product((0.1, 1.0, 2.0), ("line", "noto"))
    ]
    plain = [read_run(write_run(f"plain-{target}", target=target, start=0.2)) for target in ("line", "noto")]
    plots.swept([*swept, *plain], Path(), "server.lr")
    axes = drawn[0].axes[0]
    (error_bars,) = axes.containers
    assert list(error_bars[0].get_xdata()) == [0.1, 1.0, 2.0]
    assert list(error_bars[0].get_ydata()) == pytest.approx([31, 40, 50])
    assert lines(axes)["fedavg"][1] == [50, 50]
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "server.lr"


def test_bars_by_target(runs: list[Run], drawn: list[Any]) -> None:
    plots.bars(runs, Path())
    axes = drawn[0].axes[0]
    heights = [[bar.get_height() for bar in container] for container in axes.containers if hasattr(container, "patches")]
    assert heights == [pytest.approx([45, 45]), pytest.approx([50, 50])]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["line", "noto"]


def test_a_long_legend_leaves_the_panels_their_size(write_run: WriteRun, tmp_path: Path) -> None:
    heights = []
    for count in (2, 40):
        runs = [read_run(write_run(f"run{count}-{at}", f"a method with a long name, {at}")) for at in range(count)]
        _, _, png = plots.curves(runs, tmp_path, view="target", name=f"curves{count}")
        heights.append(int.from_bytes(png.read_bytes()[20:24], "big"))
    assert heights[1] > heights[0] + 38 * 0.15 * drawing.STYLE["savefig.dpi"]


def test_bars_have_a_panel_for_each_setting(write_run: WriteRun, drawn: list[Any]) -> None:
    runs = [
        read_run(write_run(f"{method}-{alpha}", method, None, settings=f"[data]\nalpha = {alpha}", start=alpha / 10, view="global"))
        for alpha in (0.5, 0.1)
        for method in ("fedavg", "fedrod")
    ]
    plots.bars(runs, Path(), columns_by=["data.alpha"], view="global")
    first, second = drawn[0].axes
    assert (first.get_title(), second.get_title()) == ("alpha 0.1", "alpha 0.5")
    assert first.get_legend_handles_labels()[1] == ["fedavg", "fedrod"]
    assert max(bar.get_height() for bar in second.patches) - max(bar.get_height() for bar in first.patches) == pytest.approx(4)


def test_seconds_are_medians_after_the_warm_up(write_run: WriteRun, record: Callable[..., dict[str, Any]], drawn: list[Any]) -> None:
    times = [100.0, 100.0, 1.0, 2.0, 30.0]
    records = [record(i + 1, target=None) | {"seconds": {"train": time, "aggregate": 0.5}} for i, time in enumerate(times)]
    plots.seconds([read_run(write_run("a", records=records))], Path(), rounds=10)
    clients, server, _ = drawn[0].axes[0].containers
    assert [bar.get_height() for bar in clients] == [20.0]
    assert [(bar.get_y(), bar.get_height()) for bar in server] == [(20.0, 5.0)]


def test_a_grid_frames_its_best_and_leaves_out_what_was_not_run(write_run: WriteRun, drawn: list[Any]) -> None:
    found = [
        read_run(write_run(f"{epochs}-{lr}", start=epochs / 100 + lr, settings=f"[local]\nepochs = {epochs}\nlr = {lr}\n"))
        for epochs, lr in ((1, 0.1), (5, 0.1), (5, 0.01))
    ]
    plots.grid(found, Path())
    axes = drawn[0].axes[0]
    shown = np.ma.filled(axes.images[0].get_array().astype(float), math.nan)
    np.testing.assert_allclose(shown, np.array([[math.nan, 41], [36, 45]]), atol=1e-4)
    (frame,) = axes.patches
    assert (round(frame.get_x()), round(frame.get_y())) == (1, 1)


def test_cosines_by_client_and_the_generalisation_gap(runs: list[Run], drawn: list[Any]) -> None:
    plots.invariance([run for run in runs if run.target == "line"], Path())
    plain, with_omg, gap = drawn[0].axes
    assert [plain.get_title(), with_omg.get_title(), gap.get_title()] == ["fedavg", "fedavg+omg", "generalisation gap"]
    assert lines(plain) == {"noto": ([1, 2, 3], [0.7] * 3), "blob": ([1, 2, 3], [-0.2] * 3)}
    assert lines(gap)["fedavg"] == ([0, 1, 2, 3], [15.0] * 4)
    assert plain.get_ylim() == with_omg.get_ylim()


def test_a_heat_map_of_clients(runs: list[Run], drawn: list[Any]) -> None:
    plots.heat_map(runs[-1], Path(), value="omg_weight")
    np.testing.assert_allclose(drawn[0].axes[0].images[0].get_array(), [[0.25] * 3, [0.75] * 3])
    with pytest.raises(UserError, match="no client has a omg_weight"):
        plots.heat_map(runs[0], Path(), value="omg_weight")


def test_points_and_trajectories_of_the_toy(drawn: list[Any]) -> None:
    toy.points(build_federation(make_config({"dataset": "rect4"})), Path())
    assert [axes.get_title() for axes in drawn[0].axes] == ["domain1", "domain2", "domain3", "domain4"]
    held = [sum(len(points.get_offsets()) for points in axes.collections) for axes in drawn[0].axes]
    assert len(set(held)) == 1
    assert held[0] > 100
    path = np.arange(12.0).reshape(4, 3)
    toy.trajectories({"all": {"fedavg": path}}, Path(), pulls={"all": (path[:2], np.full((2, 3), 50.0))})
    first = drawn[1].axes[0]
    assert lines(first)["fedavg"] == ([0, 3, 6, 9], [1, 4, 7, 10])
    assert first.get_xlim()[1] >= 53


def test_a_method_keeps_its_colour_and_only_the_rule_makes_it_solid() -> None:
    few = drawing.looks(["fedavg", "fedavg+omg", "fedsam+omg", "fedsam"])
    many = drawing.looks(["fedsam", "fedavg", "fediir", "fedsr", "fedavg+omg"])
    assert few["fedsam"] == many["fedsam"]
    assert few["fedsam"].colour == few["fedsam+omg"].colour
    assert (few["fedsam"].dashes, few["fedsam+omg"].dashes) == (drawing.DASHES[1], "-")
    assert few["fedavg+omg"] == many["fedavg+omg"]
    variants = drawing.looks([f"fedavg+omg (lr={lr})" for lr in range(12)])
    assert len({(look.colour, look.dashes) for look in variants.values()}) >= 9


def test_the_methods_of_each_table_of_the_paper_look_different() -> None:
    from fedomg.report.numbers import REFERENCES, numbers

    for table in REFERENCES:
        found = drawing.looks(dict.fromkeys(number.method for number in numbers(table)))
        assert len({(look.colour, look.dashes) for look in found.values()}) == len(found)


def test_every_format_is_written_and_the_same_again(runs: list[Run], tmp_path: Path) -> None:
    first = plots.curves(runs, tmp_path / "a")
    assert [path.name for path in first] == ["curves.pdf", "curves.svg", "curves.png"]
    assert [path.read_bytes()[:5] for path in first] == [b"%PDF-", b"<?xml", b"\x89PNG\r"]
    again = plots.curves(runs, tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


def test_without_matplotlib_one_line_says_what_to_install(runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def no_matplotlib(name: str, *arguments: Any, **keys: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(name)
        return real(name, *arguments, **keys)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    with pytest.raises(UserError, match=r'pip install "fedomg\[report\]"'):
        plots.curves(runs, tmp_path)
