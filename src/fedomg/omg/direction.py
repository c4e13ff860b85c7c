"""From client updates to the invariant direction, and from state dicts to a state dict.

The update matrix is read twice, for its Gram matrix and for one weighted sum of its rows, and is never copied.
"""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedomg.omg.arguments import Vector, Weights, check_kappa, check_reference
from fedomg.omg.presets import Preset, Solver, solve_preset
from fedomg.omg.presets import preset as named_preset

BUFFER_SUFFIXES = ("running_mean", "running_var", "num_batches_tracked")
_BLOCK_ELEMENTS = 1 << 19  # of the update matrix to a product
_BATCH_ELEMENTS = 1 << 21  # and to a call: small beside one row of a model, large beside the cost of a call
_NARROWEST_BLOCK, _WIDEST_BLOCK = 1024, 2048  # wider ones lose digits in float32


def direction(
    updates: Tensor, reference: Weights | None = None, kappa: float = 0.5, rescale: bool = False, solver: Solver = "exact"
) -> Tensor:
    """The invariant gradient direction g_IGD of FedOMG for the client updates, the rows of ``updates`` (U x M).

    Updates are trained minus broadcast parameters, so the direction is to be *added* to the parameters. ``reference`` holds the weights of
    the reference aggregate, uniform if None. ``rescale`` divides by 1 + kappa², as the published code does and the theorem does not.
    ``solver`` is ``exact`` or ``reference``, the iterations of the published code.

    Rows that are not finite are dropped with a warning that names them; if all are, the direction is zero. The result has the device and
    the dtype of the updates (float32 for half types).
    """
    _check_updates(updates)
    settings = Preset("direction", check_kappa(kappa), solver, "samples", "rescale" if rescale else "none")
    shares = check_reference(reference, len(updates))
    gram = gram_matrix(updates)
    kept = finite_rows(gram)
    if len(kept) < len(updates):
        dropped = sorted(set(range(len(updates))) - set(kept))
        warnings.warn(f"dropped the rows of the updates that are not finite: {_listed(dropped)}", RuntimeWarning, stacklevel=2)
    return combine(_coefficients(gram, shares, kept, settings), updates)


def aggregate(
    global_state: Mapping[str, Tensor],
    client_states: Sequence[Mapping[str, Tensor]],
    num_examples: Weights,
    kappa: float = 0.5,
    server_lr: float = 1.0,
    rescale: bool = True,
    preset: Preset | str | None = None,
    buffers: Collection[str] | None = None,
) -> dict[str, Tensor]:
    """The next global state dict from those that the clients return: the server's part of one FedOMG round.

    ``num_examples`` weights the clients in the reference aggregate. ``preset`` (a name or a `Preset`) replaces ``kappa``, ``server_lr`` and
    ``rescale`` by its own settings, and brings its solver and weighting.

    ``buffers`` names the entries that are not trained; None means those ending in running_mean, running_var or num_batches_tracked.
    Floating ones are averaged with the reference weights; integers, and every other entry that is not floating, become the maximum over
    the clients. Tensors that share their memory in the global state (tied weights) count once. A client whose update or buffers are not
    finite is dropped with a warning. Inputs are never written, and the result shares no memory with them.
    """
    if preset is None:
        settings = Preset("fedomg", check_kappa(kappa), "exact", "samples", "rescale" if rescale else "none", _check_lr(server_lr))
    else:
        settings = preset if isinstance(preset, Preset) else named_preset(preset)
    if not client_states:
        raise ValueError("there are no client states to aggregate")
    shares = check_reference(num_examples, len(client_states), "num_examples")
    layout = _Layout(global_state, buffers)
    for client, state in enumerate(client_states):
        layout.check(client, state)

    with torch.no_grad():
        updates = layout.updates(client_states)
        gram = gram_matrix(updates)
        kept = [client for client in finite_rows(gram) if layout.buffers_finite(client_states[client])]
        if len(kept) < len(client_states):
            dropped = sorted(set(range(len(client_states))) - set(kept))
            warnings.warn(f"dropped the clients whose update is not finite: {_listed(dropped)}", RuntimeWarning, stacklevel=2)
        if shares[kept].sum() == 0.0:
            return layout.unchanged()
        coefficients = _coefficients(gram, shares, kept, settings)
        step = combine(coefficients, updates).mul_(settings.server_lr)
        averaging = np.ones(len(kept)) if settings.weighting == "uniform" else shares[kept]
        return layout.stepped(step, [client_states[client] for client in kept], averaging / averaging.sum())


def _coefficients(gram: Tensor, shares: Vector, kept: list[int], settings: Preset) -> Tensor:
    """Coefficients of all rows, zero for those that are not kept."""
    coefficients = torch.zeros(len(gram), dtype=torch.float64)
    if shares[kept].sum() > 0.0:
        coefficients[kept] = solve_preset(gram[kept][:, kept], shares[kept], settings).coefficients
    return coefficients


# --- the two passes over the update matrix ----------------------------------------------------------------------------------------------


def gram_matrix(updates: Tensor) -> Tensor:
    """H Hᵀ of the rows of ``updates`` in float64 on the CPU, accumulated over blocks of columns.

    Blocks of float32 and half types are multiplied in float32 on the CPU and summed in float64, so that an entry is good to about 1e-7
    (half types 1e-6) of the product of the two lengths, whatever the other rows are; on other devices blocks are converted to float64,
    which keeps TF32 out. A row whose squared length is not finite has a diagonal entry that is not finite, and spoils no entry but those
    of its own row and column.
    """
    _check_updates(updates)
    with torch.no_grad():
        gram = _gram(updates, working := _working_dtype(updates))
        if working == torch.float32 and updates.device.type == "cpu" and _leaves_float32(gram.diagonal(), updates):
            return _gram(updates, torch.float64)
        return gram


def finite_rows(gram: Tensor) -> list[int]:
    """The rows that can be used, read off the diagonal of their Gram matrix."""
    return [int(row) for row in torch.nonzero(torch.isfinite(gram.diagonal()))]


def combine(coefficients: Tensor, updates: Tensor) -> Tensor:
    """Σ coefficients_u · updates_u in the dtype and on the device of the updates, in float32 for half types.

    Rows with the coefficient 0 are left out, so that they need not be finite. The same input gives the same bits.
    """
    _check_updates(updates)
    if coefficients.shape != (len(updates),):
        raise ValueError(f"there must be one coefficient for each of the {len(updates)} updates, not the shape {tuple(coefficients.shape)}")
    with torch.no_grad():
        working = _working_dtype(updates)
        factors = coefficients.detach().to(updates.device, working)
        result = torch.zeros(updates.shape[1], dtype=_result_dtype(updates), device=updates.device)
        for first, end in _runs(coefficients.tolist()):
            rows = updates[first:end].detach()
            if working == updates.dtype == result.dtype:
                result.addmv_(rows.T, factors[first:end])
            else:
                width = max(1, _BATCH_ELEMENTS // len(rows))
                for part, columns in zip(result.split(width), rows.split(width, dim=1), strict=True):
                    part += (factors[first:end] @ columns.to(working)).to(result.dtype)
        return result


def _gram(updates: Tensor, working: torch.dtype) -> Tensor:
    """Blocks of columns side by side, several to a batched product: faster than one product of the whole, and good to more digits."""
    updates = updates.detach()
    exact = torch.float32 if updates.device.type == "mps" else torch.float64
    total = torch.zeros(len(updates), len(updates), dtype=exact, device=updates.device)
    width = min(max(_NARROWEST_BLOCK, _BLOCK_ELEMENTS // len(updates)), _WIDEST_BLOCK)
    whole = updates.shape[1] // width
    blocks = updates[:, : whole * width].unflatten(1, (whole, width)).transpose(0, 1)
    for batch in (*blocks.split(max(1, _BATCH_ELEMENTS // (len(updates) * width))), updates[None, :, whole * width :]):
        columns = batch.to(working)
        total += (columns @ columns.mT).sum(0, dtype=exact)
    return torch.tril(total).add_(torch.tril(total, -1).T).to("cpu").to(torch.float64)


def _leaves_float32(squares: Tensor, updates: Tensor) -> bool:
    """Whether a finite row has squares beyond the range of float32, above or below."""
    smallest = 1e-30 * updates.shape[1]
    for row in torch.nonzero(~(torch.isfinite(squares) & (squares >= smallest))):
        values = updates[int(row)]
        if bool(torch.isfinite(values).all()) and bool(values.any()):
            return True
    return False


def _working_dtype(updates: Tensor) -> torch.dtype:
    """What is multiplied and summed in: off the CPU float64, except where the device (Apple's) has none."""
    if updates.dtype == torch.float64 or updates.device.type not in ("cpu", "mps"):
        return torch.float64
    return torch.float32


def _result_dtype(updates: Tensor) -> torch.dtype:
    return updates.dtype if updates.dtype in (torch.float32, torch.float64) else torch.float32


def _runs(coefficients: list[float]) -> Iterator[tuple[int, int]]:
    """Stretches of neighbouring coefficients that are not zero: views of the updates, where a choice of rows would be a copy."""
    first = 0
    for place, value in enumerate([*coefficients, 0.0]):
        if value == 0.0:
            if first < place:
                yield first, place
            first = place + 1


def _check_updates(updates: Tensor) -> None:
    if not isinstance(updates, Tensor):
        raise TypeError(f"the updates must be a tensor, not {type(updates).__name__}")
    if not updates.is_floating_point():
        raise TypeError(f"the updates must be floating, not {updates.dtype}")
    if updates.ndim != 2 or len(updates) == 0:
        raise ValueError(f"the updates must be a matrix with a row for each client, not of shape {tuple(updates.shape)}")


# --- state dicts ------------------------------------------------------------------------------------------------------------------------


class _Layout:
    """Which entries of a state dict make the vector, where each stands in it, and which are buffers."""

    def __init__(self, state: Mapping[str, Tensor], buffers: Collection[str] | None) -> None:
        self.state = {name: _tensor(tensor, f"the entry {name!r} of the global state").detach() for name, tensor in state.items()}
        names = _buffer_names(self.state, buffers)
        self.places: dict[str, slice] = {}
        self.averaged: list[str] = []
        self.maxima: list[str] = []
        self.tied: dict[str, str] = {}
        owners: dict[tuple[object, ...], str] = {}
        self.size = 0
        for name, tensor in self.state.items():
            if tensor.is_complex():
                raise TypeError(f"the entry {name!r} is complex; only real states can be aggregated")
            if not tensor.is_floating_point():
                self.maxima.append(name)
            elif name in names:
                self.averaged.append(name)
            elif (owner := owners.setdefault(_memory(tensor, name), name)) != name:
                self.tied[name] = owner
            else:
                self.places[name] = slice(self.size, self.size + tensor.numel())
                self.size += tensor.numel()
        floating = [self.state[name] for name in (*self.places, *self.averaged)]
        self.dtype = torch.float64 if floating and all(tensor.dtype == torch.float64 for tensor in floating) else torch.float32
        self.device = floating[0].device if floating else torch.device("cpu")

    def check(self, client: int, state: Mapping[str, Tensor]) -> None:
        for name, tensor in self.state.items():
            if name not in state:
                raise ValueError(f"client {client} lacks the entry {name!r}")
            _tensor(state[name], f"the entry {name!r} of client {client}")
            if state[name].shape != tensor.shape:
                shapes = f"{tuple(state[name].shape)} where the global state has {tuple(tensor.shape)}"
                raise ValueError(f"client {client} has the shape {shapes} in the entry {name!r}")
            if state[name].is_floating_point() != tensor.is_floating_point():
                raise ValueError(f"client {client} has {state[name].dtype} where the global state has {tensor.dtype} in the entry {name!r}")
        for name in state:
            if name not in self.state:
                raise ValueError(f"client {client} has the entry {name!r}, which the global state lacks")

    def updates(self, client_states: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """Trained minus global parameters, a row for each client, written in place."""
        matrix = torch.empty(len(client_states), self.size, dtype=self.dtype, device=self.device)
        for row, state in zip(matrix, client_states, strict=True):
            for name, place in self.places.items():
                trained, old = (found[name].detach().reshape(-1).to(self.device, self.dtype) for found in (state, self.state))
                torch.sub(trained, old, out=row[place])
        return matrix

    def buffers_finite(self, state: Mapping[str, Tensor]) -> bool:
        return all(bool(torch.isfinite(state[name]).all()) for name in self.averaged)

    def unchanged(self) -> dict[str, Tensor]:
        copies = {name: tensor.clone() for name, tensor in self.state.items() if name not in self.tied}
        return self._in_order(copies)

    def stepped(self, step: Tensor, clients: Sequence[Mapping[str, Tensor]], averaging: Vector) -> dict[str, Tensor]:
        """The global state after ``step``, with the buffers of the clients merged."""
        new: dict[str, Tensor] = {}
        for name, place in self.places.items():
            old = self.state[name]
            new[name] = (old.to(self.dtype) + step[place].view(old.shape).to(old.device)).to(old.dtype)
        for name in self.averaged:
            old = self.state[name]
            mean = torch.zeros_like(old, dtype=torch.float64)
            for share, state in zip(averaging.tolist(), clients, strict=True):
                mean += share * state[name].detach().to(old.device, torch.float64)
            new[name] = mean.to(old.dtype)
        for name in self.maxima:
            old = self.state[name]
            largest = clients[0][name].to(old.device, old.dtype, copy=True)
            for state in clients[1:]:
                largest = torch.maximum(largest, state[name].to(old.device, old.dtype))
            new[name] = largest
        return self._in_order(new)

    def _in_order(self, new: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: new[self.tied.get(name, name)] for name in self.state}


def _tensor(value: Tensor, what: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} must be a tensor, not {type(value).__name__}")
    return value


def _memory(tensor: Tensor, name: str) -> tuple[object, ...]:
    """Equal for tensors that are the same memory seen the same way; empty tensors have none and equal nothing but themselves."""
    if tensor.numel() == 0:
        return (name,)
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())


def _buffer_names(state: Mapping[str, Tensor], buffers: Collection[str] | None) -> set[str]:
    if buffers is None:
        return {name for name in state if name.endswith(BUFFER_SUFFIXES)}
    if isinstance(buffers, str):
        raise TypeError("buffers must be a collection of names, not one string")
    for name in buffers:
        if name not in state:
            nearest = difflib.get_close_matches(name, state, n=1, cutoff=0.0)
            raise ValueError(f"the global state lacks the buffer {name!r}" + (f"; did you mean {nearest[0]!r}?" if nearest else ""))
    return set(buffers)


def _check_lr(server_lr: float) -> float:
    number = float(server_lr)
    if not math.isfinite(number):
        raise ValueError(f"server_lr must be finite, not {number}")
    return number


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers)
