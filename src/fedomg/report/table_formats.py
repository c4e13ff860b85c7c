"""Tables as Markdown, as LaTeX (booktabs) and as CSV."""

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from fedomg.experiment.select import Spread
from fedomg.report.layout import Cell, Line, Table, settings_text

PREAMBLE = "% \\usepackage{booktabs,graphicx}\n"
BEST_MARKS = "Bold: best of the column; {}: second best."
TEST = (
    "Exact test by flipping the signs of paired differences: a pair is two runs of one seed and target on the same data and cohorts, and "
    "pairs count as independent. p is corrected after Holm for the number of comparisons; more than noise is p ≤ 0.05."
)


def printed(tables: Sequence[Table]) -> dict[str, str]:
    """The text of each format by its suffix."""
    return {"md": "\n".join(map(markdown, tables)), "tex": PREAMBLE + "\n".join(map(latex, tables)), "csv": comma_separated(tables)}


# ---------------------------------------------------------------------------------------------------------------- numbers


def _rows(line: Line, table: Table) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """What is printed for a method: our numbers, and where the paper has it, its numbers and the difference."""
    yield line.method, [(_spread(cell.ours, table), cell.rank) for cell in line.cells]
    if not any(cell.paper for cell in line.cells):
        return
    compared = any(cell.as_published for cell in line.cells)
    if compared and table.published != table.rule:
        yield "best over rounds" if table.published == "best" else "as the paper", [(_spread(c.as_published, table), 0) for c in line.cells]
    yield "paper", [(_paper(cell, table.digits), 0) for cell in line.cells]
    if compared:
        yield "difference", [("" if (found := cell.difference) is None else f"{found:+.{table.digits}f}", 0) for cell in line.cells]


def _spread(found: Spread | None, table: Table) -> str:
    if found is None:
        return ""
    deviation = "" if found.std is None else f" ± {100 * found.std:.{table.digits}f}"
    return f"{100 * found.mean:.{table.digits}f}{deviation}" + (f" (n = {found.n})" if found.n < table.seeds else "")


def _paper(cell: Cell, digits: int) -> str:
    if cell.paper is None:
        return ""
    deviation = "" if cell.paper.deviation is None else f" ± {cell.paper.deviation:.{digits}f}"
    return f"{cell.paper.value:.{digits}f}{deviation}"


def _shared(table: Table) -> str:
    """What the headings of all columns have in common, for the caption."""
    return ", ".join(text for level, text in enumerate(table.columns[0].levels[:3]) if text and level not in table.heads)


def _sections(table: Table) -> Iterator[tuple[str, list[Line]]]:
    for section, lines in groupby(table.lines, key=lambda line: line.section):
        yield settings_text(section), list(lines)


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


# --------------------------------------------------------------------------------------------------------------- Markdown


def markdown(table: Table) -> str:
    heads = ["<br>".join(filter(None, (escape_markdown(column.levels[level]) for level in table.heads))) for column in table.columns]
    rows = [_md_row(["method", *heads]), _md_row(["---", *["---:"] * len(heads)])]
    for section, lines in _sections(table):
        rows += [_md_row([f"_{escape_markdown(section)}_", *[""] * len(heads)])] if section else []
        for line in lines:
            for number, (label, cells) in enumerate(_rows(line, table)):
                name = f"· {label}" if number else escape_markdown(label)
                rows.append(_md_row([name, *(_md_mark(text.replace("-", "−"), rank) for text, rank in cells)]))
    shared = _shared(table)
    title = table.title + (f", {shared}" if shared else "")
    marks = BEST_MARKS.format("italic")
    return f"## {escape_markdown(title)}\n\n" + "\n".join(rows) + f"\n\n{escape_markdown(table.caption)} {marks}\n{_md_comparisons(table)}"


def _md_comparisons(table: Table) -> str:
    if not table.comparisons:
        return ""
    rows = [
        _md_row(["method", "against", "pairs", "mean difference", "p", "the difference is"]),
        _md_row(["---", "---", *["---:"] * 3, "---"]),
    ]
    for found in table.comparisons:
        difference = "" if found.difference is None else f"{100 * found.difference:+.{table.digits}f}".replace("-", "−")
        names = [escape_markdown(found.first), escape_markdown(found.second)]
        rows.append(_md_row([*names, str(found.n), difference, _p(found.p), found.verdict]))
    return "\n" + "\n".join(rows) + f"\n\n{TEST}\n"


def _md_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _md_mark(text: str, rank: int) -> str:
    return {1: f"**{text}**", 2: f"*{text}*"}.get(rank, text)


def escape_markdown(text: str) -> str:
    """Names as text: no markup, no cell or line ends."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", " ".join(text.split()))


# ------------------------------------------------------------------------------------------------------------------ LaTeX

_TEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",
    "[": "{[}",  # after the end of a row it would begin an option
    "±": r"$\pm$",
    "−": r"$-$",
    "·": r"$\cdot$",
}


def escape_latex(text: str) -> str:
    """Names as text. What the common engines have no letter for is named by its number."""
    return "".join(
        _TEX.get(letter) or (letter if " " <= letter <= "\u017f" else f"U+{ord(letter):04X}") for letter in " ".join(text.split())
    )


def latex(table: Table) -> str:
    """A `table` for each section, none wider than the text."""
    return "\n".join(_tex_table(table, section, lines) for section, lines in _sections(table))


def _tex_table(table: Table, section: str, lines: Sequence[Line]) -> str:
    title = ", ".join(filter(None, (table.title, _shared(table), section)))
    caption = escape_latex(f"{title}. {table.caption}") + " " + BEST_MARKS.format("underlined")
    rows = [_tex_head(table), ["\\midrule"], _tex_body(table, lines)]
    return "\n".join(
        [
            "\\begin{table}[htbp]",
            "\\centering",
            f"\\caption{{{caption}}}",
            "\\resizebox{\\ifdim\\width>\\textwidth\\textwidth\\else\\width\\fi}{!}{%",
            f"\\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
            "\\toprule",
            *(row for part in rows for row in part),
            "\\bottomrule",
            "\\end{tabular}}",
            "\\end{table}\n",
        ]
    )


def _tex_head(table: Table) -> list[str]:
    """A row for each level in which columns differ; neighbours that share it share one cell with a rule below."""
    rows = []
    for depth in range(1, len(table.heads)):
        cells, rules, at = [""], [], 2
        for shared, group in groupby(table.columns, key=lambda column: [column.levels[level] for level in table.heads[:depth]]):
            span = len(list(group))
            cells.append(f"\\multicolumn{{{span}}}{{c}}{{{escape_latex(shared[-1])}}}")
            rules.append(f"\\cmidrule(lr){{{at}-{at + span - 1}}}")
            at += span
        rows += [_tex_row(cells), "".join(rules)]
    return [*rows, _tex_row(["method", *(escape_latex(column.levels[table.heads[-1]]) for column in table.columns)])]


def _tex_body(table: Table, lines: Sequence[Line]) -> list[str]:
    rows: list[str] = []
    for line in lines:
        for number, (label, cells) in enumerate(_rows(line, table)):
            name = f"\\quad {escape_latex(label)}" if number else escape_latex(label)
            rows.append(_tex_row([name, *(_tex_mark(escape_latex(text.replace("-", "−")), rank) for text, rank in cells)]))
    return rows


def _tex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + " \\\\"


def _tex_mark(text: str, rank: int) -> str:
    return {1: f"\\textbf{{{text}}}", 2: f"\\underline{{{text}}}"}.get(rank, text)


# -------------------------------------------------------------------------------------------------------------------- CSV

_CSV = (
    *("table", "section", "settings", "dataset", "target", "view", "method", "rule", "mean", "std", "n"),
    *("published_rule", "mean_by_published_rule", "paper", "paper_std", "difference"),
)


def comma_separated(tables: Sequence[Table]) -> str:
    """One row for each number, accuracies in percent; what is missing is empty."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(_CSV)
    for table in tables:
        for line in table.lines:
            for column, cell in zip(table.columns, line.cells, strict=True):
                settings, dataset, target, _ = column.levels
                place = [table.title, settings_text(line.section), settings, dataset, target, column.view, line.method]
                ours = [table.rule, *_percent(cell.ours, lambda found: (found.mean, found.std)), cell.ours.n if cell.ours else 0]
                published = [table.published or "", *_percent(cell.as_published, lambda found: (found.mean,))]
                paper = ["", ""] if cell.paper is None else [cell.paper.value, _blank(cell.paper.deviation)]
                writer.writerow([*place, *ours, *published, *paper, _blank(cell.difference)])
    return lines.getvalue()


def _percent(found: Spread | None, read: Callable[[Spread], Sequence[float | None]]) -> list[str]:
    if found is None:
        return [""] * len(read(Spread(0, None, 0, 0, 0)))
    return [_blank(None if value is None else 100 * value) for value in read(found)]


def _blank(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
