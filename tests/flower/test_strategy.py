"""The drop-in strategy, with a ClientApp written as Flower's quick start writes one."""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.test_documents import blocks
from torch import Tensor, nn

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.server import LegacyContext
from flwr.server.client_manager import SimpleClientManager
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.serverapp.strategy import FedAvg
from tests.grids import LocalGrid

from fedomg import omg
from fedomg.flower import FedOMG, TooFewNodesError

NODES = 5
Reply = Callable[[int, dict[str, Any], dict[str, Any]], RecordDict]


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def _as_asked(partition: int, state: dict[str, Any], metrics: dict[str, Any]) -> RecordDict:
    return RecordDict({"arrays": ArrayRecord(state), "metrics": MetricRecord(metrics)})


def _trained(partition: int, model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    draw = torch.Generator().manual_seed(partition)
    inputs = torch.randn(20 + 10 * partition, 4, generator=draw) + partition
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    for rows in inputs.split(10):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(rows), (rows[:, 0] > partition).long())
        loss.backward()
        optimizer.step()
    return model.state_dict(), {"train_loss": loss.item(), "num-examples": len(inputs)}


def _client_app(reply: Reply = _as_asked) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = _model()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        partition = int(context.node_config["partition-id"])
        return Message(reply(partition, *_trained(partition, model)), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        state = message.content.array_records["arrays"].to_torch_state_dict()
        metrics: dict[str, Any] = {"eval_loss": float(state["3.weight"].sum()), "num-examples": 10}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def _run(strategy: FedAvg, reply: Reply = _as_asked, rounds: int = 3) -> dict[str, Tensor]:
    result = strategy.start(LocalGrid(_client_app(reply), NODES), ArrayRecord(_model().state_dict()), rounds)
    return result.arrays.to_torch_state_dict()


def _expected(partitions: list[int], **settings: Any) -> dict[str, Tensor]:
    """One round by hand."""
    trained = [_trained(partition, _model()) for partition in partitions]
    states = [{name: value.clone() for name, value in state.items()} for state, _ in trained]
    return omg.aggregate(_model().state_dict(), states, [metrics["num-examples"] for _, metrics in trained], **settings)


def test_without_a_radius_it_is_fedavg() -> None:
    found, expected = _run(FedOMG(kappa=0)), _run(FedAvg())
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name.endswith("num_batches_tracked"):  # FedAvg makes a mean of them that no model can load
            assert found[name].dtype == torch.int64
            continue
        assert float((found[name] - value).double().norm()) <= 1e-6 * float(value.double().norm()), name


def test_a_round_is_that_of_the_library_function_bit_for_bit() -> None:
    found = _run(FedOMG(kappa=0.7, server_lr=0.9, rescale=False), rounds=1)
    expected = _expected(list(range(NODES)), kappa=0.7, server_lr=0.9, rescale=False)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
        assert found[name].dtype == value.dtype


def test_metrics_come_back_as_from_fedavg() -> None:
    grid, start = LocalGrid(_client_app(), NODES), ArrayRecord(_model().state_dict())
    found, expected = (strategy.start(grid, start, 1) for strategy in (FedOMG(kappa=0), FedAvg()))
    assert found.train_metrics_clientapp[1]["train_loss"] == pytest.approx(expected.train_metrics_clientapp[1]["train_loss"])
    assert found.evaluate_metrics_clientapp[1]["eval_loss"] == pytest.approx(expected.evaluate_metrics_clientapp[1]["eval_loss"], rel=1e-4)


def _raise(partition: int, state: dict[str, Any], metrics: dict[str, Any]) -> RecordDict:
    raise RuntimeError("out of data")


def _changed(**changes: Any) -> Reply:
    """A reply with other arrays and metrics."""

    def reply(partition: int, state: dict[str, Any], metrics: dict[str, Any]) -> RecordDict:
        return _as_asked(partition, {**state, **changes.get("arrays", {})}, {**metrics, **changes.get("metrics", {})})

    return reply


def _without(what: str) -> Reply:
    def reply(partition: int, state: dict[str, Any], metrics: dict[str, Any]) -> RecordDict:
        kept = {name: value for name, value in state.items() if name != what}
        return _as_asked(partition, kept, {name: value for name, value in metrics.items() if name != what})

    return reply


def _two_records(partition: int, state: dict[str, Any], metrics: dict[str, Any]) -> RecordDict:
    return RecordDict({"old": ArrayRecord(state), "new": ArrayRecord(state), "metrics": MetricRecord(metrics)})


def _cut(length: int) -> Reply:
    """The bytes of one array end too soon."""

    def reply(partition: int, state: dict[str, Any], metrics: dict[str, Any]) -> RecordDict:
        sent = _as_asked(partition, state, metrics)
        whole = sent.array_records["arrays"]["3.weight"]
        sent.array_records["arrays"]["3.weight"] = Array(whole.dtype, whole.shape, whole.stype, whole.data[:length])
        return sent

    return reply


NAN = torch.full((2, 8), torch.nan)
BROKEN: dict[str, tuple[Reply, str]] = {
    "raises": (_raise, "its ClientApp has raised RuntimeError: out of data"),
    "nan": (_changed(arrays={"3.weight": NAN}), 'its array "3.weight" is not finite'),
    "infinite buffer": (_changed(arrays={"1.running_var": torch.full((8,), torch.inf)}), 'its array "1.running_var" is not finite'),
    "shape": (_changed(arrays={"3.weight": torch.zeros(2, 9)}), 'its array "3.weight" has the shape (2, 9), not (2, 8)'),
    "dtype": (_changed(arrays={"3.bias": torch.zeros(2, dtype=torch.int64)}), 'its array "3.bias" is torch.int64, not torch.float32'),
    "truncated": (_cut(150), "cannot be read: ValueError: "),
    "empty": (_cut(0), 'its array "3.weight" cannot be read: EOFError: '),
    "missing array": (_without("0.bias"), 'it lacks the array "0.bias"'),
    "unknown array": (_changed(arrays={"extra": torch.zeros(1)}), 'it has the array "extra", which the global model lacks'),
    "no examples": (_without("num-examples"), 'its metrics lack "num-examples"'),
    "negative examples": (_changed(metrics={"num-examples": -3}), 'its "num-examples" is -3, not a positive number'),
    "examples not finite": (_changed(metrics={"num-examples": float("nan")}), 'its "num-examples" is nan, not a positive number'),
    "examples by class": (_changed(metrics={"num-examples": [1, 2]}), 'its "num-examples" is [1, 2], not a positive number'),
    "two records": (_two_records, "it holds 2 of ArrayRecord, not one"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_unusable_reply_is_dropped_by_name(name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flwr.supercore.logger.FLOWER_LOGGER.propagate", True)
    broken, reason = BROKEN[name]

    def reply(partition: int, state: dict[str, Any], metrics: dict[str, Any]) -> RecordDict:
        return (broken if partition == 2 else _as_asked)(partition, state, metrics)

    strategy = FedOMG()
    found = _run(strategy, reply, rounds=1)
    assert list(strategy.dropped) == [1]
    assert list(strategy.dropped[1]) == [102]
    assert reason in strategy.dropped[1][102]
    assert f"round 1 goes on without node 102: {strategy.dropped[1][102]}" in caplog.messages
    for array, value in _expected([0, 1, 3, 4]).items():
        assert torch.equal(found[array], value), array


def test_without_a_sound_reply_the_model_stays() -> None:
    grid, start = LocalGrid(_client_app(BROKEN["nan"][0]), NODES), ArrayRecord(_model().state_dict())
    strategy = FedOMG()
    result = strategy.start(grid, start, 2)
    assert len(result.arrays) == 0, "Flower's own sign that there is no new model"
    assert [len(nodes) for nodes in strategy.dropped.values()] == [NODES, NODES]
    expected = _expected_evaluation(_model().state_dict())
    assert [metrics["eval_loss"] for metrics in result.evaluate_metrics_clientapp.values()] == [expected, expected]


def _expected_evaluation(state: dict[str, Any]) -> Any:
    return pytest.approx(float(state["3.weight"].sum()))


@pytest.mark.parametrize("broken", ["raises", "no metrics", "no examples"])
def test_an_evaluation_goes_on_without_who_sends_nothing_of_use(
    broken: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flwr.supercore.logger.FLOWER_LOGGER.propagate", True)
    told = {"raises": "its ClientApp has raised KeyError: 'eyes'", "no metrics": "it holds 0 of MetricRecord, not one"}
    app = _client_app()
    other = ClientApp()

    @other.train()
    def train(message: Message, context: Context) -> Message:
        return app(message, context)

    @other.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] != 2:
            return app(message, context)
        if broken == "raises":
            raise KeyError("eyes")
        return Message(RecordDict({"metrics": MetricRecord({"eval_loss": 1.0})} if broken == "no examples" else {}), reply_to=message)

    strategy = FedOMG()
    result = strategy.start(LocalGrid(other, NODES), ArrayRecord(_model().state_dict()), 1)
    why = told.get(broken, 'its metrics lack "num-examples"')
    assert f"the evaluation of round 1 goes on without node 102: {why}" in caplog.messages
    assert strategy.dropped == {1: {}}
    assert result.evaluate_metrics_clientapp[1]["eval_loss"] == _expected_evaluation(result.arrays.to_torch_state_dict())


def test_metrics_that_not_all_send_are_left_out() -> None:
    def reply(partition: int, state: dict[str, Any], metrics: dict[str, Any]) -> RecordDict:
        return _as_asked(partition, state, metrics if partition else {"num-examples": 20, "train_loss": 1.0, "seconds": 3})

    result = FedOMG().start(LocalGrid(_client_app(reply), NODES), ArrayRecord(_model().state_dict()), 1)
    assert set(result.train_metrics_clientapp[1]) == {"train_loss"}


class Forgetful(LocalGrid):
    """Never brings the replies of one node."""

    def pull_messages(self, message_ids: Any) -> list[Message]:
        return [reply for reply in super().pull_messages(message_ids) if reply.metadata.src_node_id != 103]


def test_a_node_that_does_not_reply_in_time_is_named() -> None:
    strategy = FedOMG(fraction_evaluate=0)
    result = strategy.start(Forgetful(_client_app(), NODES), ArrayRecord(_model().state_dict()), 1)
    assert strategy.dropped == {1: {103: "no reply in time"}}
    found = result.arrays.to_torch_state_dict()
    for array, value in _expected([0, 1, 2, 4]).items():
        assert torch.equal(found[array], value), array


@pytest.mark.parametrize("keys", [{"min_available_nodes": NODES + 1}, {"min_train_nodes": NODES + 1}, {"min_evaluate_nodes": NODES + 1}])
def test_too_few_nodes_end_the_run_at_the_deadline(keys: dict[str, Any]) -> None:
    start = time.monotonic()
    with pytest.raises(TooFewNodesError, match=r"^5 of the 6 nodes that a round needs have come within 0\.3 seconds$"):
        _run(FedOMG(deadline=0.3, **keys))
    assert 0.3 <= time.monotonic() - start < 3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kappa": -0.1}, "kappa must be a finite number of at least 0, not -0.1"),
        ({"kappa": float("nan")}, "kappa must be a finite number of at least 0, not nan"),
        ({"server_lr": float("inf")}, "server_lr must be a finite number, not inf"),
        ({"deadline": -1}, "deadline must be a finite number of at least 0, not -1"),
    ],
)
def test_settings_without_a_meaning_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        FedOMG(**keys)


def test_secure_aggregation_is_refused_with_the_reason() -> None:
    context = LegacyContext(Context(1, 1, {}, RecordDict(), {}), strategy=FedOMG(), client_manager=SimpleClientManager())  # type: ignore[arg-type]
    context.state[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
    context.state[MAIN_PARAMS_RECORD] = ArrayRecord(_model().state_dict())
    with pytest.raises(TypeError, match="cannot be used with secure aggregation: it matches the clients' individual updates"):
        SecAggPlusWorkflow(3, 2)(LocalGrid(_client_app(), NODES), context)


def test_the_app_of_the_documents_runs() -> None:
    (code,) = blocks("docs/flower.md", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    names: dict[str, Any] = {"model": _model()}
    exec(compile(code, "flower.md", "exec"), names)
    before = {name: value.clone() for name, value in _model().state_dict().items()}
    names["app"](LocalGrid(_client_app(), NODES), Context(1, 1, {}, RecordDict(), {}))
    assert any(not torch.equal(value, before[name]) for name, value in names["model"].state_dict().items())


def test_without_flower_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['flwr'] = None; import fedomg.flower"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: fedomg.flower needs Flower: pip install 'fedomg[flower]'"
