"""State dicts in, state dict out."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedomg import omg

State = dict[str, Tensor]


class Tied(nn.Module):
    """Two linear maps that share their weight, around a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight


def states(count: int = 3, seed: int = 0) -> tuple[State, list[State]]:
    """A global state and what clients made of it; their tied weights stay tied."""
    generator = torch.Generator().manual_seed(seed)
    model = Tied()
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    start["second.weight"] = start["first.weight"]
    clients = []
    for client in range(count):
        state = {
            name: tensor + (0.1 * torch.randn(tensor.shape, generator=generator)) if tensor.is_floating_point() else tensor + 10 * client
            for name, tensor in start.items()
        }
        state["norm.running_var"] = state["norm.running_var"].abs()
        state["second.weight"] = state["first.weight"]
        clients.append(state)
    return start, clients


def test_the_parameters_take_the_rescaled_step() -> None:
    start, clients = states()
    shares = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    new = omg.aggregate(start, clients, [10, 20, 30], kappa=0.4, server_lr=0.5)
    names = ["first.weight", "first.bias", "norm.weight", "norm.bias"]
    updates = torch.stack([torch.cat([(client[name] - start[name]).flatten() for name in names]) for client in clients])
    step = 0.5 * omg.direction(updates, shares, 0.4, rescale=True)
    moved = torch.cat([(new[name] - start[name]).flatten() for name in names])
    torch.testing.assert_close(moved, step, rtol=1e-4, atol=1e-6)
    assert list(new) == list(start)
    assert torch.equal(new["second.weight"], new["first.weight"])


def test_tied_weights_count_once() -> None:
    start, clients = states()
    untied = {name: tensor.clone() for name, tensor in start.items()}
    once, twice = omg.aggregate(start, clients, [1, 1, 1]), omg.aggregate(untied, clients, [1, 1, 1])
    assert not torch.allclose(once["first.bias"], twice["first.bias"], atol=1e-6)
    without = {name: tensor for name, tensor in start.items() if name != "second.weight"}
    rest = [{name: tensor for name, tensor in client.items() if name in without} for client in clients]
    assert torch.equal(once["first.bias"], omg.aggregate(without, rest, [1, 1, 1])["first.bias"])


def test_floating_buffers_are_averaged_and_integers_become_the_largest() -> None:
    start, clients = states()
    new = omg.aggregate(start, clients, [1, 2, 1])
    mean = sum(share * client["norm.running_mean"] for share, client in zip((0.25, 0.5, 0.25), clients, strict=True))
    torch.testing.assert_close(new["norm.running_mean"], mean)
    assert int(new["norm.num_batches_tracked"]) == 20
    assert new["norm.num_batches_tracked"].dtype == torch.int64
    uniform = omg.aggregate(start, clients, [1, 2, 1], preset="code_fl")
    torch.testing.assert_close(uniform["norm.running_mean"], torch.stack([c["norm.running_mean"] for c in clients]).mean(0))


def test_buffers_can_be_named() -> None:
    start = {"weight": torch.zeros(2), "scale": torch.zeros(1), "flag": torch.tensor([False, False]), "running_mean": torch.zeros(1)}
    clients = [
        {"weight": torch.ones(2), "scale": torch.tensor([1.0]), "flag": torch.tensor([True, False]), "running_mean": torch.ones(1)},
        {"weight": torch.ones(2), "scale": torch.tensor([3.0]), "flag": torch.tensor([False, False]), "running_mean": torch.ones(1)},
    ]
    new = omg.aggregate(start, clients, [1, 1], kappa=0.0, buffers=["scale"])
    assert new["scale"].tolist() == [2.0]
    assert new["flag"].tolist() == [True, False]
    assert new["running_mean"].tolist() == [1.0]  # no buffer now, but part of the vector
    with pytest.raises(ValueError, match="did you mean 'scale'"):
        omg.aggregate(start, clients, [1, 1], buffers=["scales"])
    with pytest.raises(TypeError, match="collection"):
        omg.aggregate(start, clients, [1, 1], buffers="scale")


def test_inputs_are_neither_written_nor_shared() -> None:
    start, clients = states()
    before = copy.deepcopy((start, clients))
    for broken in (False, True):
        if broken:
            for client in clients:
                client["first.bias"] = torch.full((4,), float("nan"))
            before = copy.deepcopy((start, clients))
            with pytest.warns(RuntimeWarning, match="0, 1, 2"):
                new = omg.aggregate(start, clients, [1, 1, 1])
        else:
            new = omg.aggregate(start, clients, [1, 1, 1])
        for tensor in new.values():
            tensor.fill_(7)
        for old, now in zip([before[0], *before[1]], [start, *clients], strict=True):
            for name in old:
                torch.testing.assert_close(now[name], old[name], rtol=0, atol=0, equal_nan=True)


def test_a_broken_client_is_dropped_with_its_buffers() -> None:
    start, clients = states(4)
    kept = [clients[0], clients[2]]
    clients[1]["first.weight"] = clients[1]["first.weight"].clone().fill_(float("inf"))
    clients[3]["norm.running_var"] = torch.full((4,), float("nan"))
    with pytest.warns(RuntimeWarning, match="1, 3"):
        new = omg.aggregate(start, clients, [1, 5, 3, 7])
    expected = omg.aggregate(start, kept, [1, 3])
    for name, tensor in expected.items():
        torch.testing.assert_close(new[name], tensor)


def test_without_a_client_left_the_state_is_an_unchanged_copy() -> None:
    start, clients = states(2)
    for client in clients:
        client["first.bias"] = client["first.bias"] * float("nan")
    with pytest.warns(RuntimeWarning, match="not finite"):
        new = omg.aggregate(start, clients, [1, 1])
    for name, tensor in start.items():
        assert torch.equal(new[name], tensor)
        assert new[name].data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_states_keep_their_dtype(dtype: torch.dtype) -> None:
    start, clients = states()
    wide = omg.aggregate(start, clients, [1, 2, 3])
    cast = [{name: t.to(dtype) if t.is_floating_point() else t for name, t in state.items()} for state in (start, *clients)]
    new = omg.aggregate(cast[0], cast[1:], [1, 2, 3])
    for name, tensor in new.items():
        assert tensor.dtype == cast[0][name].dtype
        torch.testing.assert_close(tensor.float(), wide[name].float(), rtol=0.05, atol=0.05)


def test_double_states_are_computed_in_double() -> None:
    start = {"weight": torch.zeros(2, dtype=torch.float64)}
    client = {"weight": torch.full((2,), 1 + 1e-12, dtype=torch.float64)}
    new = omg.aggregate(start, [client], [1], kappa=0.0)
    assert torch.equal(new["weight"], client["weight"])


def test_one_client_moves_by_one_plus_kappa() -> None:
    new = omg.aggregate({"w": torch.zeros(2)}, [{"w": torch.tensor([1.0, 2.0])}], [5], rescale=False)
    assert new["w"].tolist() == [1.5, 3.0]
    rescaled = omg.aggregate({"w": torch.zeros(2)}, [{"w": torch.tensor([1.0, 2.0])}], [5])
    torch.testing.assert_close(rescaled["w"], torch.tensor([1.2, 2.4]))


def test_a_preset_brings_its_own_settings() -> None:
    start, clients = {"w": torch.zeros(2)}, [{"w": torch.tensor([1.0, 1.0])}, {"w": torch.tensor([1.0, -2.0])}]
    by_name = omg.aggregate(start, clients, [3, 1], kappa=9.0, server_lr=9.0, preset="paper_eq")
    torch.testing.assert_close(by_name["w"], 0.05 * torch.tensor([1.450694, 0.0]), rtol=1e-5, atol=1e-6)
    by_value = omg.aggregate(start, clients, [3, 1], preset=omg.preset("paper_eq"))
    assert torch.equal(by_value["w"], by_name["w"])
    with pytest.raises(ValueError, match="paper_eq"):
        omg.aggregate(start, clients, [3, 1], preset="paper_eqq")


def test_a_state_of_buffers_alone() -> None:
    new = omg.aggregate({"running_mean": torch.zeros(1)}, [{"running_mean": torch.ones(1)}], [1])
    assert new["running_mean"].tolist() == [1.0]


def test_a_model_loads_the_result() -> None:
    model = Tied()
    state = model.state_dict()
    clients = [{name: (t + 0.01 * client).to(t.dtype) for name, t in state.items()} for client in range(2)]
    model.load_state_dict(omg.aggregate(state, clients, [1, 1]))
    assert model.second.weight is model.first.weight


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda state: state.pop("first.bias"), "client 1 lacks the entry 'first.bias'"),
        (lambda state: state.update(extra=torch.ones(1)), "client 1 has the entry 'extra'"),
        (lambda state: state.update({"first.bias": torch.ones(5)}), r"client 1 .*\(5,\).*first\.bias"),
        (lambda state: state.update({"norm.num_batches_tracked": torch.tensor(1.0)}), r"client 1 .*float32.*num_batches_tracked"),
    ],
)
def test_a_client_that_does_not_fit_is_named(change: Any, word: str) -> None:
    start, clients = states()
    change(clients[1])
    with pytest.raises(ValueError, match=word):
        omg.aggregate(start, clients, [1, 1, 1])


@pytest.mark.parametrize(
    ("num_examples", "options", "word"),
    [
        ([1, 1], {}, "num_examples .* 3 updates"),
        ([1, 1, -1], {}, "negative"),
        ([0, 0, 0], {}, "sum to zero"),
        ([1, 1, float("nan")], {}, "finite"),
        ([1, 1, 1], {"kappa": -0.5}, "kappa"),
        ([1, 1, 1], {"server_lr": float("inf")}, "server_lr"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(num_examples: list[float], options: dict[str, float], word: str) -> None:
    start, clients = states()
    with pytest.raises(ValueError, match=word):
        omg.aggregate(start, clients, num_examples, **options)  # type: ignore[arg-type]


def test_no_clients_and_no_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="no client"):
        omg.aggregate({"w": torch.zeros(1)}, [], [])
    with pytest.raises(TypeError, match="'w' of client 0 must be a tensor"):
        omg.aggregate({"w": torch.zeros(1)}, [{"w": 0.0}], [1])  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="complex"):
        omg.aggregate({"w": torch.zeros(1, dtype=torch.complex64)}, [{"w": torch.zeros(1, dtype=torch.complex64)}], [1])
