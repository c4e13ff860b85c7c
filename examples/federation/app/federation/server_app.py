"""What the SuperLink runs."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedomg.experiment.config import load_config
from fedomg.flower.server import Patience, serve

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    told = context.run_config
    config = load_config(Path(str(told["config"])), [f"method={told['method']}", *str(told["set"]).split()])
    patience = Patience(int(told["nodes"]), float(told["wait"]), float(told["deadline"]))
    serve(grid, config, Path(str(told["out"])), patience, resume=bool(told["resume"]))
