"""Tables of accuracies: what stands where, and that each format is whole."""

import csv
import io
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fedomg.core.errors import UserError
from fedomg.experiment.select import Run, read_run
from fedomg.report import tables
from fedomg.report.numbers import REFERENCES
from fedomg.report.table_formats import escape_latex, latex, markdown, printed

WriteRun = Callable[..., Path]
HOSTILE = 'a_b&c%d$e#f{g}h~i^j\\k<l>|m"n[o]α\nnext'


@pytest.fixture
def unseen(write_run: WriteRun) -> list[Run]:
    """Two methods on two targets of a data set of the paper; one run is missing."""
    return [
        read_run(
            write_run(
                f"{method}-{target}-{seed}",
                method,
                target=target,
                seed=seed,
                start=0.1 + seed / 100 + 0.1 * ("omg" in method),
                dataset="pacs",
            )
        )
        for method in ("fedavg", "fedavg+omg")
        for target in ("photo", "sketch")
        for seed in (0, 1)
        if (method, target, seed) != ("fedavg", "sketch", 1)
    ]


class TestLayout:
    def test_a_table_for_each_view_with_averages_by_seed(self, unseen: list[Run]) -> None:
        found = tables.build(unseen)
        assert [table.columns[0].view for table in found] == ["target", "global", "worst_group"]
        table = found[0]
        assert [column.target for column in table.columns] == ["photo", "sketch", "average"]
        plain, with_omg = table.lines
        assert [cell.ours.n for cell in plain.cells if cell.ours] == [2, 1, 1]
        assert plain.cells[2].ours is not None
        assert plain.cells[2].ours.mean == pytest.approx(0.4)  # of seed 0 alone
        assert [cell.rank for cell in with_omg.cells] == [1, 1, 1]
        assert [cell.rank for cell in plain.cells] == [2, 2, 2]

    def test_one_target_has_a_column_for_each_view(self, unseen: list[Run]) -> None:
        (table,) = tables.build([run for run in unseen if run.target == "photo"])
        assert [column.view for column in table.columns] == ["target", "global", "worst_group"]

    def test_a_missing_cell_is_blank(self, unseen: list[Run]) -> None:
        (table,) = tables.build([run for run in unseen if (run.method, run.target) != ("fedavg", "sketch")], view="target")
        assert [cell.ours is None for cell in table.lines[0].cells] == [False, True, True]
        assert "| fedavg | *40.5 ± 0.7* |  |  |" in markdown(table)
        assert table.lines[1].cells[1].rank == 0  # the best of one is no best

    def test_settings_in_columns_rather_than_in_names(self, write_run: WriteRun) -> None:
        runs = [read_run(write_run(str(alpha), target=None, settings=f"[data]\nalpha = {alpha}\n")) for alpha in (0.5, 0.1)]
        (as_variants,) = tables.build(runs, view="global")
        assert [line.method for line in as_variants.lines] == ["fedavg (alpha=0.1)", "fedavg (alpha=0.5)"][::-1]
        (in_columns,) = tables.build(runs, view="global", columns_by=("data.alpha",))
        assert [line.method for line in in_columns.lines] == ["fedavg"]
        assert [column.levels[0] for column in in_columns.columns] == ["alpha 0.1", "alpha 0.5"]

    def test_equal_digits_share_a_place(self, write_run: WriteRun) -> None:
        runs = [read_run(write_run(name, name, start=start)) for name, start in (("a", 0.1), ("b", 0.1001), ("c", 0.05))]
        assert [line.cells[0].rank for line in tables.build(runs, view="target")[0].lines] == [1, 1, 2]


class TestOfThePaper:
    def test_our_numbers_the_papers_and_the_difference(self, unseen: list[Run]) -> None:
        (table,) = tables.build(unseen, "table2")
        assert len(table.columns) == 15
        line = next(line for line in table.lines if line.method == "fedavg+omg")
        cell = line.cells[[column.target for column in table.columns].index("photo")]
        assert cell.ours is not None
        assert cell.paper is not None
        assert (round(100 * cell.ours.mean, 1), cell.paper.value, cell.paper.deviation) == (50.5, 98.0, 0.2)
        assert cell.difference == pytest.approx(-47.5)
        text = markdown(table)
        assert "| · difference |  |  |  |  |  | −47.5 |  |  | −33.8 |  |" in text
        assert "at the round that is best on the clients' validation data" in text

    def test_an_average_over_fewer_targets_than_the_papers_is_blank(self, unseen: list[Run]) -> None:
        (table,) = tables.build(unseen, "table7")
        assert [cell.ours is None for line in table.lines if line.method == "fedavg+omg" for cell in line.cells] == [
            False,
            True,
            True,
            False,
            True,
        ]

    def test_variants_are_not_the_papers(self, write_run: WriteRun) -> None:
        runs = [
            read_run(write_run(str(mu), "fedavg", target="photo", dataset="pacs", settings=f"[local]\nlr = {mu}\n")) for mu in (0.1, 0.2)
        ]
        (table,) = tables.build(runs, "table7")
        assert [line.method for line in table.lines][-2:] == ["fedavg (lr=0.1)", "fedavg (lr=0.2)"]

    def test_label_shift_by_participation(self, write_run: WriteRun) -> None:
        settings = "[data]\nalpha = 0.1\n[server]\nparticipation = {}\n"
        runs = [
            read_run(write_run(str(share), "fedavg", target=None, dataset="mnist", settings=settings.format(share), view="personalised"))
            for share in (0.4, 1.0)
        ]
        (table,) = tables.build(runs, "table5")
        assert len(table.lines) == 24
        ours = {line.section[0][1]: line.cells[0] for line in table.lines if line.method == "fedavg" and line.cells[0].ours}
        assert set(ours) == {0.4, 1.0}
        paper = ours[0.4].paper
        assert paper is not None
        assert paper.value == 88.04
        assert ours[0.4].as_published is not None
        assert ours[0.4].as_published.mean == pytest.approx(0.4)  # the best round
        assert ours[0.4].ours is not None
        assert ours[0.4].ours.mean == pytest.approx(0.3)  # the mean of the last ten
        assert latex(table).count("\\begin{table}") == 3


class TestFormats:
    def checked(self, text: str) -> None:
        """Environments close in order, braces match, and every row has as many cells as its tabular has columns."""
        open_: list[str] = []
        columns = 0
        for line in text.splitlines():
            bare = re.sub(r"\\[\\&%$#_{}]", "", line.removesuffix(" \\\\"))
            for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", bare):
                assert kind == "begin" or open_.pop() == name
                open_ += [name] * (kind == "begin")
            if found := re.search(r"\\begin\{tabular\}\{(\w+)\}", bare):
                columns = len(found[1])
            if line.endswith(" \\\\"):
                spans = sum(int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", bare))
                assert bare.count("&") + 1 + spans == columns, line
        bare = re.sub(r"\\[\\&%$#_{}]", "", text)
        assert open_ == []
        assert bare.count("{") == bare.count("}")

    @pytest.mark.parametrize("name", [None, *REFERENCES])
    def test_latex_is_whole(self, unseen: list[Run], name: str | None) -> None:
        self.checked(printed(tables.build(unseen, name))["tex"])

    def test_hostile_names(self, write_run: WriteRun) -> None:
        runs = [read_run(write_run(str(i), HOSTILE + str(i), target=HOSTILE, dataset=HOSTILE)) for i in range(2)]
        formats = printed(tables.build(runs))
        self.checked(formats["tex"])
        assert r"a\_b\&c\%d\$e\#f\{g\}h\textasciitilde{}i\textasciicircum{}j\textbackslash{}k" in formats["tex"]
        rows = [line for line in formats["md"].splitlines() if line.startswith("| ")]
        assert all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows[:4])
        assert {row["method"] for row in csv.DictReader(io.StringIO(formats["csv"]))} == {HOSTILE + "0", HOSTILE + "1"}

    def test_nothing_outside_of_latin_letters_reaches_latex(self) -> None:
        assert escape_latex("αé[") == "U+03B1é{[}"

    def test_csv_has_a_row_for_each_number(self, unseen: list[Run]) -> None:
        rows = list(csv.DictReader(io.StringIO(printed(tables.build(unseen, "table2"))["csv"])))
        assert len(rows) == 150
        one = next(row for row in rows if (row["method"], row["target"]) == ("fedavg+omg", "photo"))
        assert (one["mean"], one["n"], one["paper"], one["difference"]) == ("50.5", "2", "98.0", "-47.5")
        assert {row["mean"] for row in rows if row["dataset"] == "vlcs"} == {""}

    def test_the_caption_says_where_numbers_stem_from(self, unseen: list[Run], write_run: WriteRun) -> None:
        assert "n = 2 seeds" in tables.build(unseen)[0].caption
        late = read_run(write_run("late", target=None, view="personalised"))
        assert "mean over the last ten rounds: one seed" in tables.build([late], rule="mean_last_10")[0].caption

    @pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX is installed")
    def test_latex_compiles(self, unseen: list[Run], write_run: WriteRun, tmp_path: Path) -> None:
        runs = [read_run(write_run(str(i), HOSTILE + str(i), target=HOSTILE, dataset=HOSTILE)) for i in range(2)]
        text = printed([*tables.build(runs), *tables.build(unseen, "table2")])["tex"]
        document = "\\documentclass{article}\\usepackage{booktabs,graphicx}\\begin{document}\n" + text + "\\end{document}\n"
        (tmp_path / "all.tex").write_text(document, encoding="utf-8")
        done = subprocess.run(
            ["pdflatex", "-halt-on-error", "all.tex"], cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:]
        assert "Overfull" not in done.stdout


class TestWrite:
    def test_three_files(self, unseen: list[Run], tmp_path: Path) -> None:
        written = tables.write(unseen, tmp_path / "out", "table2", name="table2")
        assert [path.name for path in written] == ["table2.md", "table2.tex", "table2.csv"]
        assert all(path.read_text(encoding="utf-8") for path in written)

    def test_no_run_at_all_leaves_the_papers_numbers(self) -> None:
        (table,) = tables.build([], "table6")
        assert "77.6" in markdown(table)
        assert "no run of it here" in table.caption

    def test_a_folder_that_cannot_be_made(self, unseen: list[Run], tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(UserError, match="the table cannot be written"):
            tables.write(unseen, tmp_path / "file")
