"""Plain tables of text, as Markdown, LaTeX and CSV: for what is counted, set or timed rather than learned."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from fedomg.report.table_formats import escape_latex, escape_markdown

Row = Sequence[str]


def write(out: Path, title: str, heads: Row, rows: Sequence[Row], caption: str = "") -> list[Path]:
    """`table.md`, `table.tex` and `table.csv` in a folder that is there."""
    texts = {"md": _markdown(title, heads, rows, caption), "tex": _latex(title, heads, rows, caption), "csv": _csv(heads, rows)}
    written = [out / f"table.{suffix}" for suffix in texts]
    for path, text in zip(written, texts.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return written


def _markdown(title: str, heads: Row, rows: Sequence[Row], caption: str) -> str:
    head, *body = ([escape_markdown(cell) for cell in row] for row in (heads, *rows))
    lines = [head, ["---", *["---:"] * (len(heads) - 1)], *body]
    return (
        f"## {escape_markdown(title)}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + (f"\n{caption}\n" if caption else "")
    )


def _latex(title: str, heads: Row, rows: Sequence[Row], caption: str) -> str:
    head, *body = (" & ".join(map(escape_latex, row)) + " \\\\" for row in (heads, *rows))
    return "\n".join(
        [
            "% \\usepackage{booktabs}",
            "\\begin{table}[htbp]",
            "\\centering",
            f"\\caption{{{escape_latex(f'{title}. {caption}'.strip())}}}",
            f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
            *("\\toprule", head, "\\midrule", *body, "\\bottomrule"),
            "\\end{tabular}",
            "\\end{table}\n",
        ]
    )


def _csv(heads: Row, rows: Sequence[Row]) -> str:
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows([heads, *rows])
    return lines.getvalue()
