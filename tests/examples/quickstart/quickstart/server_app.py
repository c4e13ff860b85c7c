"""The server of the quick start, with another strategy."""

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

from fedomg.flower import FedOMG

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    told = context.run_config
    strategy = FedOMG(min_train_nodes=int(told["nodes"]), min_available_nodes=int(told["nodes"]), fraction_evaluate=0)
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    result = strategy.start(grid, ArrayRecord(model.state_dict()), int(told["rounds"]), float(told["deadline"]))
    state = {name: value.tolist() for name, value in result.arrays.to_torch_state_dict().items()}
    losses = [dict(metrics) for metrics in result.train_metrics_clientapp.values()]
    Path(str(told["out"])).write_text(json.dumps({"dropped": strategy.dropped, "model": state, "metrics": losses}))
