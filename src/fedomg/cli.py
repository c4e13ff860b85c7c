"""The command line. Everything heavy is imported inside the command that needs it, so that help answers at once."""

import json
import re
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import click
import typer

from fedomg.core.errors import explained

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")

OUT = typer.Option("--out", help="Folder for the results.", show_default=False)


@app.callback()
def about() -> None:
    """Federated domain generalization with on-server matching gradients (FedOMG)."""


@app.command()
def demo(
    out: Annotated[Path, OUT] = Path("runs/demo"),
    target: Annotated[str, typer.Option(help="The style held out from training.")] = "line",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds a method.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Communication rounds.")] = 10,
) -> None:
    """Train FedAvg and FedOMG on the same emoji drawn by different hands; test on a style that neither has seen."""
    from fedomg.report.demo import show_demo

    show_demo(out, target, seeds, rounds)


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="The experiment, a TOML file.", metavar="CONFIG.toml")],
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key: local.lr=0.01.")] = None,
    out: Annotated[Path | None, OUT] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue after the last finished round.")] = False,
    track: Annotated[list[str] | None, typer.Option("--track", metavar="TRACKER", help="Follow it: tensorboard, mlflow, wandb.")] = None,
) -> None:
    """Run one experiment."""
    from fedomg.experiment.config import load_config
    from fedomg.report.console import show_run

    show_run(load_config(config, overrides or []), out, resume, track or [])


@app.command()
def sweep(
    config: Annotated[Path, typer.Argument(help="The experiments, a TOML file with a [sweep] table.", metavar="CONFIG.toml")],
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As for run: sweep.seed=[0,1].")] = None,
    out: Annotated[Path | None, OUT] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time; by default one a core.", show_default=False)] = None,
) -> None:
    """Run every combination of methods, targets, seeds and settings; what is finished is skipped, what was broken off goes on."""
    from fedomg.experiment.sweep import load_sweep
    from fedomg.report.sweep import show_sweep

    if not show_sweep(load_sweep(config, overrides or []), out or Path("runs") / config.stem, jobs):
        raise typer.Exit(1)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders of these.", metavar="DIR...")],
    out: Annotated[Path | None, typer.Option("--out", help="The page to write; by default report.html in the first folder.")] = None,
    paper: Annotated[
        str | None, typer.Option(metavar="TABLE", help="Lay the tables out as this one of the paper, with its numbers: table2.")
    ] = None,
) -> None:
    """Compare runs: tables here and as Markdown, LaTeX and CSV, and one self-contained HTML page."""
    from fedomg.report.console import show_report

    show_report(folders, out, paper)


@app.command()
def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="table1 ... table8, figure1 ... figure15, or all.", metavar="NAME...")] = None,
    scale: Annotated[str, typer.Option(help="smoke: minutes, on generated stand-ins; small: about an hour; paper: as printed.")] = "small",
    root: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the data sets; weights are in its folder weights.")] = Path(
        "data"
    ),
    out: Annotated[Path | None, OUT] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As for sweep, for all of them.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time; by default one a core.", show_default=False)] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show what there is, and what it needs.")] = False,
) -> None:
    """Make tables and figures of the paper. Runs are shared; what is finished is skipped, what was broken off goes on."""
    from fedomg.paper.items import known_scale
    from fedomg.paper.listing import show_items
    from fedomg.paper.reproduce import reproduce

    if listed:
        show_items(root)
        return
    if not names:
        raise click.UsageError("name a table or figure, such as table2, or all; fedomg reproduce --list shows them")
    if not reproduce(names, known_scale(scale), root, out or Path("runs") / f"paper-{scale}", jobs, overrides or []):
        raise typer.Exit(1)


@app.command()
def track(
    tracker: Annotated[str, typer.Argument(help="tensorboard, mlflow or wandb.", metavar="TRACKER")],
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders of these.", metavar="DIR...")],
) -> None:
    """Send recorded runs to TensorBoard, MLflow or Weights & Biases."""
    from fedomg.report.console import show_tracking

    show_tracking(tracker, folders)


AS_JSON = typer.Option("--json", help="As JSON, for programs.")


@app.command()
def methods(as_json: Annotated[bool, AS_JSON] = False) -> None:
    """List the methods."""
    from fedomg.methods import catalogue
    from fedomg.report.console import show_table

    rows = catalogue()
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        show_table(rows, ("name", "aliases", "kind", "summary", "citation"))


@app.command()
def datasets(as_json: Annotated[bool, AS_JSON] = False) -> None:
    """List the data sets."""
    from fedomg.data.catalogue import catalogue
    from fedomg.report.console import show_table

    rows = catalogue()
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        show_table(rows, ("name", "domains", "needs_root", "summary"))


data = typer.Typer(no_args_is_help=True, help="Look at a data set, and at who holds what of it.")
app.add_typer(data, name="data")

NAME = typer.Argument(help="A data set: see fedomg datasets.", metavar="NAME")
ROOT = typer.Option("--root", help="The folder of the data set.", metavar="DIR", show_default=False)


@data.command()
def check(
    name: Annotated[str, NAME],
    root: Annotated[Path | None, ROOT] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch what is missing, through torchvision.")] = False,
) -> None:
    """Verify the files of a data set, and count its examples by class."""
    from fedomg.report.holdings import show_check

    show_check(name, root, download)


@data.command()
def partition(
    name: Annotated[str, NAME],
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As for run: data.alpha=0.5.")] = None,
    root: Annotated[Path | None, ROOT] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it, too.", show_default=False)] = None,
) -> None:
    """Deal a data set to clients as a run would, and print who holds what."""
    from fedomg.report.holdings import show_partition

    show_partition(name, overrides or [], root, plot)


def main() -> None:
    """What a user can cause ends in one line and status 2."""
    try:
        sys.exit(app(prog_name="fedomg", standalone_mode=False))
    except click.UsageError as error:
        _fail_with_usage(error)
    except Exception as error:
        message = explained(error)
        if message is None:
            raise
        _fail(message)


def _fail(message: str) -> NoReturn:
    typer.echo(f"fedomg: {message}", err=True)
    sys.exit(2)


def _fail_with_usage(error: click.UsageError) -> NoReturn:
    """Without a message the error is that nothing was asked for, and help has been shown."""
    sentences = dict.fromkeys(re.split(r"(?<=[.?]) ", error.format_message()))  # click and typer may both suggest the same
    if not any(sentences):
        sys.exit(error.exit_code)
    _fail(f"{' '.join(' '.join(sentences).split())} (help: {error.ctx.command_path if error.ctx else 'fedomg'} --help)")
