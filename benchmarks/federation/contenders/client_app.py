"""What a SuperNode runs: two clients as Flower's quick start writes one, and fedomg's. Each imports what it needs and no more."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_rounds import echo

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    if message.content.config_records["config"]["work"] == "echo":
        return echo(message, context)
    from .step import step

    return step(message, context)


@app.query("census")
def census(message: Message, context: Context) -> Message:
    return _of_fedomg(message, context)


@app.query("exchange")
def exchange(message: Message, context: Context) -> Message:
    return _of_fedomg(message, context)


def _of_fedomg(message: Message, context: Context) -> Message:
    from fedomg.flower.client import client_app

    answer: Message = client_app()(message, context)
    return answer
