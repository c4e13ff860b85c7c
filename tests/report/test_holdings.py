"""Who holds what, as text and as a picture."""

import re
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from tests import files

from fedomg.core.errors import UserError
from fedomg.data.dataset import Dataset
from fedomg.data.deal import deal
from fedomg.data.federation import Federation
from fedomg.data.options import DataOptions
from fedomg.report import holdings


def federation(classes: int, clients: int, count: int = 3000) -> Federation:
    labels = torch.arange(count) % classes
    names = tuple(f"class number {label}" for label in range(classes))
    dataset = Dataset(torch.zeros(count, 1), labels, torch.zeros(count, dtype=torch.int64), names, ("all",))
    return deal(dataset, None, DataOptions(clients=clients, alpha=1.0, least=1), seed=0)


@pytest.mark.parametrize(("classes", "clients"), [(2, 1), (10, 12), (10, 100), (100, 60)])
def test_pictures_of_every_size(tmp_path: Path, classes: int, clients: int) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.png"
    holdings.draw_partition(federation(classes, clients), path, "title")
    with Image.open(path) as image:
        assert min(image.size) >= 400
        colours = image.convert("RGB").getcolors(1 << 20)
    assert colours is not None
    assert len(colours) > 20


def test_a_format_that_cannot_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(UserError, match=r"cannot draw to .*Format 'txt' is not supported"):
        holdings.draw_partition(federation(2, 2), tmp_path / "picture.txt", "title")


def test_without_matplotlib_one_line_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=re.escape('pip install "fedomg[report]"')):
        holdings.show_partition("mnist", [], None, tmp_path / "picture.png")


def test_every_client_is_a_row_of_counts(capsys: pytest.CaptureFixture[str]) -> None:
    holdings.show_partition("rect4", ["data.partition=iid", "data.clients=3", "data.points=30", "data.test=0.2"], None, None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["client", "all", "train", "validation", "test", "classes", "below", "above"]
    assert lines[1].split() == ["client-0", "40", "28", "4", "8", "2", "20", "20"]
    assert len(lines) == 1 + 3 + 1 + 4
    assert lines[5] == "3 clients, 120 examples: 84 train, 12 validation, 24 test"
    assert lines[8].startswith("heterogeneity 0.000 (mean total-variation distance")


def test_a_target_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    holdings.show_partition("rect4", ["target=domain2", "data.points=30"], None, None)
    assert 'held out: domain "domain2", 30 examples' in capsys.readouterr().out


def test_many_classes_are_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.write_cifar100(tmp_path, count=400)
    holdings.show_partition("cifar100", ["data.partition=pathological", "data.clients=50"], tmp_path, None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-1] == "largest"
    assert re.fullmatch(r"client-0 +16 +12 +0 +4 +2 +fine\d+ 8, fine\d+ 8 *", lines[1])


def test_lines_are_not_cut_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files.write_cifar10(tmp_path, count=100)
    holdings.show_partition("cifar10", ["data.clients=5"], tmp_path, None)
    first = capsys.readouterr().out.splitlines()[0]
    assert first.split()[-10:] == ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
