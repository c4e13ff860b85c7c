"""The files of the paper's tables and figures: complete, valid at every scale, and at the paper's scale what the paper says."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.test_cli import fedomg

from fedomg.core.errors import UserError
from fedomg.experiment.select import read_run
from fedomg.paper.items import SCALES, item, known_scale, merged, names
from fedomg.paper.outputs import MAKERS, Order, make
from fedomg.paper.reproduce import has_runs, prepared
from fedomg.report.numbers import numbers

TABLES = [f"table{number}" for number in range(1, 9)]
FIGURES = [f"figure{number}" for number in range(1, 16)]


def test_every_table_and_figure_has_a_file() -> None:
    assert names() == TABLES + FIGURES


@pytest.mark.parametrize("name", TABLES + FIGURES)
def test_every_file_is_valid_at_every_scale(name: str) -> None:
    one = item(name)
    assert one.kind in MAKERS
    if has_runs(one):
        assert all(one.planned(scale) for scale in SCALES)


@pytest.mark.parametrize("name", [name for name in TABLES if name not in ("table3", "table4")])
def test_the_papers_scale_runs_every_number_of_the_table_and_no_other(name: str) -> None:
    """Every row and column that the paper prints has runs: three seeds, or five on label shift."""
    found: dict[tuple[object, ...], set[int]] = {}
    for config in (planned.config for planned in item(name).planned("paper")):
        place = (config.method, config.dataset, config.target, config.data.alpha, config.server.participation)
        found.setdefault(place, set()).add(config.seed)
    printed = {
        (n.method, n.dataset, n.target, n.settings.get("data.alpha"), n.settings.get("server.participation", 1.0))
        for n in numbers(name)
        if n.target != "average"
    }
    assert found.keys() == printed
    assert {len(seeds) for seeds in found.values()} == {5 if name in ("table1", "table5") else 3}


def test_the_papers_settings_to_the_letter() -> None:
    for planned in item("table5").planned("paper"):
        config = planned.config
        assert (config.rounds, config.local.epochs, config.local.lr, config.local.batch_size) == (800, 5, 0.005, 16)
        assert (config.data.clients, config.model.name) == (100, "cnn")
    for planned in item("table2").planned("paper"):
        config, local = planned.config, planned.config.local
        assert (config.rounds, local.epochs, local.lr, local.batch_size, local.momentum) == (100, 5, 0.001, 16, 0.9)
        assert (local.weight_decay, config.model.name, config.model.weights) == (5e-4, "resnet18", "imagenet")
        assert config.server.lr == (0.05 if "+omg" in config.method else 1.0)


@pytest.mark.parametrize(("shown", "source"), [("table1", "table5"), ("figure5", "table2"), ("table6", "table2"), ("table8", "table2")])
def test_what_shows_the_same_shares_the_runs(shown: str, source: str) -> None:
    for scale in ("paper", "small"):
        ours, theirs = ({run.config.hash() for run in item(name).planned(known_scale(scale))} for name in (shown, source))
        assert len(ours & theirs) >= len(ours) // 3
    assert shown != "figure5" or ours <= theirs


@pytest.mark.parametrize("name", ["table1", "table5", "figure2", "figure13"])
def test_the_small_scale_has_twenty_clients_ten_rounds_and_three_seeds(name: str) -> None:
    runs = [planned.config for planned in item(name).planned("small")]
    assert all(config.data.clients is not None and config.data.clients >= 20 and config.rounds >= 10 for config in runs)
    assert {config.seed for config in runs} == {0, 1, 2}
    assert {config.method for config in runs} == {planned.config.method for planned in item(name).planned("paper")}


@pytest.mark.parametrize("name", ["table2", "table6", "table7", "table8", "figure15"])
def test_the_small_scale_has_every_method_of_unseen_domains(name: str) -> None:
    """Those that work on feature maps beside others that train the whole network, too."""
    runs = [planned.config for planned in item(name).planned("small")]
    assert {config.method for config in runs} == {planned.config.method for planned in item(name).planned("paper")}
    whole = {config.method for config in runs if not config.model.frozen_backbone}
    assert {"fedavg+omg"} < whole
    assert whole & {"stablefdg", "fedadg"}
    assert {config.rounds for config in runs} == {10}
    assert {config.seed for config in runs} == {0, 1, 2}


def test_runs_of_another_network_have_a_table_of_their_own(write_run: Callable[..., Path], tmp_path: Path) -> None:
    runs = [
        read_run(write_run(f"{method}-{frozen}", method, "photo", settings=f"[model]\nfrozen_backbone = {frozen}", dataset="pacs"))
        for method, frozen in (("fedavg", "true"), ("fedga", "true"), ("fedavg", "false"))
    ]
    make(Order(item("table7"), "small", runs, tmp_path / "out", "PACS", "table7"))
    main, apart = ((tmp_path / "out" / f"table{suffix}.md").read_text(encoding="utf-8") for suffix in ("", "-frozen_backbone-false"))
    assert apart.startswith("## PACS: model.frozen")
    assert "fedga" in main
    assert "fedga" not in apart
    assert "frozen_backbone=" not in main, "the others are no variants of it"


def test_tables_are_merged_key_by_key() -> None:
    below = {"a": {"b": 1, "c": [1]}, "d": 1}
    assert merged(below, {"a": {"c": [2], "e": 3}, "d": {"f": 4}}) == {"a": {"b": 1, "c": [2], "e": 3}, "d": {"f": 4}}
    assert below == {"a": {"b": 1, "c": [1]}, "d": 1}


def test_missing_data_name_the_command_that_gets_them(tmp_path: Path) -> None:
    for name, commands in {
        "table1": [f"fedomg data check {name} --root {tmp_path} --download" for name in ("mnist", "cifar10", "cifar100", "emnist")],
        "table2": ["download_vlcs", "download_pacs", "download_office_home"],
        "figure15": ["wilds.get_dataset('celebA'"],
    }.items():
        found = prepared(item(name), "paper", tmp_path)
        assert not found.runs
        assert all(any(command in reason for reason in found.lacking) for command in commands)
        assert not any("\n" in reason for reason in found.lacking)


def test_with_nothing_to_run_a_command_ends_in_one_line(tmp_path: Path) -> None:
    done = fedomg("reproduce", "figure15", "--root", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert re.search(r"nothing can be run for figure15: .*celeba", done.stderr)
    assert not (tmp_path / "out" / "figure15").exists()


def test_names_and_scales_that_nobody_knows(tmp_path: Path) -> None:
    assert 'did you mean "figure' in fedomg("reproduce", "figure99", "--scale", "smoke", "--out", tmp_path).stderr
    assert 'did you mean "small"' in fedomg("reproduce", "table1", "--scale", "smal").stderr
    assert "name a table or figure" in fedomg("reproduce").stderr
    with pytest.raises(UserError, match="no table or figure"):
        item("table9")


def test_the_list_has_a_row_for_each(tmp_path: Path) -> None:
    done = fedomg("reproduce", "--list", "--root", tmp_path)
    assert done.returncode == 0
    for name in TABLES + FIGURES:
        assert re.search(rf"^{name} ", done.stdout, re.MULTILINE)
