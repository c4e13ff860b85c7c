import torch

from fedomg.core.params import Tensors
from fedomg.core.records import Reply
from fedomg.local.options import LocalOptions
from fedomg.server.aggregator import Aggregator, merge_buffers
from fedomg.server.optimizer import ServerOptimizer
from fedomg.server.rules import Mean
from fedomg.server.weighting import Samples, Uniform


def _replies(*samples: int) -> list[Reply]:
    return [Reply(client, samples=n) for client, n in enumerate(samples)]


def test_weights_sum_to_one_over_the_replies() -> None:
    assert Samples(LocalOptions()).weights(_replies(1, 3), {})[0].tolist() == [0.25, 0.75]
    assert Uniform(LocalOptions()).weights(_replies(1, 3), {})[0].tolist() == [0.5, 0.5]


def test_the_mean_is_the_weighted_sum_of_the_rows() -> None:
    updates = torch.tensor([[4.0, 0.0], [0.0, 8.0]])
    found, _ = Aggregator(Samples(LocalOptions()), Mean()).direction(updates @ updates.T, updates, _replies(1, 3), {})
    assert found.direction.tolist() == [1.0, 6.0]


def test_buffers_are_averaged_and_counters_take_the_largest() -> None:
    replies = [Reply(i, buffers={"mean": torch.tensor([float(i)]), "count": torch.tensor(10 - i)}) for i in range(2)]
    merged = merge_buffers({"mean": torch.zeros(1), "count": torch.tensor(0)}, replies, torch.tensor([0.25, 0.75], dtype=torch.float64))
    assert merged["mean"].tolist() == [0.75]
    assert merged["mean"].dtype == torch.float32
    assert merged["count"].item() == 10


def test_the_server_adds() -> None:
    step, state = ServerOptimizer(lr=0.5).step(torch.tensor([2.0]), {})
    assert step.tolist() == [1.0]
    assert state == {}


def test_server_momentum() -> None:
    optimizer, steps = ServerOptimizer(lr=1.0, momentum=0.5), []
    state: Tensors = {}
    for _ in range(3):
        step, state = optimizer.step(torch.tensor([1.0]), state)
        steps.append(step.item())
    assert steps == [1.0, 1.5, 1.75]
