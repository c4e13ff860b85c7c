"""The paper's numbers as they lie in the file, against what the paper says of itself."""

import pytest

from fedomg import methods
from fedomg.core.errors import UserError
from fedomg.data.catalogue import SOURCES
from fedomg.report.numbers import AVERAGE, REFERENCES, all_numbers, numbers, reference

UNSEEN = ("table2", "table6", "table7", "table8")
NOT_THE_MEAN: dict[tuple[str, str | None], float] = {
    ("fedavg", "pacs"): -0.5,
    ("fedga", "vlcs"): 0.225,
    ("fedsam+omg", "officehome"): -0.175,
}
"""Where the average that is printed is not that of the columns (beyond a rounding of 0.1): mean less print."""


def test_every_method_and_data_set_is_known() -> None:
    for name in {number.method for number in all_numbers() if number.method}:
        assert methods.parse(name).canonical == name
    assert {number.dataset for number in all_numbers() if number.dataset} <= SOURCES.keys()


@pytest.mark.parametrize(
    ("table", "count"), [("table1", 80), ("table2", 150), ("table5", 192), ("table6", 35), ("table7", 35), ("table8", 35)]
)
def test_a_table_is_whole(table: str, count: int) -> None:
    found = numbers(table)
    assert len(found) == count
    assert len({(n.method, n.dataset, n.target, *n.settings.items()) for n in found}) == count
    assert all(0 < number.value < 100 for number in found)
    assert all((number.deviation is None) == (number.target == AVERAGE) for number in found)


@pytest.mark.parametrize("table", UNSEEN)
def test_printed_averages(table: str) -> None:
    rows: dict[tuple[str, str | None], dict[str | None, float]] = {}
    for number in numbers(table):
        rows.setdefault((number.method, number.dataset), {})[number.target] = number.value
    for row, values in rows.items():
        printed = values.pop(AVERAGE)
        assert len(values) == 4
        assert sum(values.values()) / 4 - printed == pytest.approx(
            NOT_THE_MEAN.get(row, 0), abs=1e-9 if row in NOT_THE_MEAN else 0.1 + 1e-9
        )


def test_targets_are_the_domains_of_the_data_sets() -> None:
    named = {(number.dataset, number.target) for table in UNSEEN for number in numbers(table) if number.target != AVERAGE}
    assert named == {(name, domain) for name in ("pacs", "vlcs", "officehome") for domain in SOURCES[name].domains}


def test_the_first_table_repeats_the_fifth_where_all_take_part() -> None:
    whole = {(n.method, n.dataset, n.settings["data.alpha"]): n.value for n in numbers("table5") if n.settings["server.participation"] == 1}
    first = {(n.method, n.dataset, n.settings["data.alpha"]): n.value for n in numbers("table1")}
    assert {row: value for row, value in first.items() if row in whole} == whole


def test_federated_rows_of_the_later_tables_are_those_of_the_second() -> None:
    second = {(n.method, n.dataset, n.target): (n.value, n.deviation) for n in numbers("table2")}
    later = {(n.method, n.dataset, n.target): (n.value, n.deviation) for table in UNSEEN[1:] for n in numbers(table)}
    shared = later.keys() & second.keys()
    assert {row: later[row] for row in shared} == {row: second[row] for row in shared}
    assert {method for method, _, _ in later.keys() - second.keys()} == {"erm", "fish", "fishr"}


def test_what_the_text_says_of_figures() -> None:
    assert [(n.quantity, n.value) for n in numbers("figure6")] == [("best local.epochs", 5), ("best local.lr", 0.001)]


def test_an_unknown_table_names_the_nearest() -> None:
    with pytest.raises(UserError, match='no table of accuracies in the paper is called "table22"; did you mean "table2"'):
        reference("table22")
    assert set(REFERENCES) == {"table1", *UNSEEN, "table5"}
