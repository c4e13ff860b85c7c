"""What each change to a training step is worth: the CNN at batch 16 on one thread, one change after another.

    python benchmarks/bench_changes.py [--repeats 9] [--steps 40] [--small]

The first line is the step as one writes it; each of the next adds one change to the line above it, and those marked `(alone)` stand beside
the fastest float32 step and are not part of it. All variants take turns, repeat by repeat; ratios are medians over the repeats.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench_rounds import BATCH, RATE, in_the_usual_order
from fedomg.core.params import FlatModel, Group
from fedomg.models import build_model

SHAPE, CLASSES = (1, 28, 28), 10
Step = Callable[[Tensor, Tensor], None]


def usual_model(pooling_first: bool = False) -> nn.Module:
    model = build_model("cnn", SHAPE, CLASSES)
    return model if pooling_first else in_the_usual_order(model)


def by_hand(model: nn.Module) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step(inputs: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def channels_last(step: Step) -> Step:
    return lambda inputs, labels: step(inputs.contiguous(memory_format=torch.channels_last), labels)


def on_a_flat_vector(autocast: bool = False) -> Step:
    """As the local loop does it: parameters and gradients are one vector each, the update one fused kernel."""
    flat = FlatModel(build_model("cnn", SHAPE, CLASSES), lambda name: Group.SHARED)
    flat.train_only((Group.SHARED,))
    flat.values[Group.SHARED].grad = flat.gradients[Group.SHARED]
    optimizer = torch.optim.SGD([flat.values[Group.SHARED]], lr=RATE, fused=True)

    def step(inputs: Tensor, labels: Tensor) -> None:
        flat.gradients[Group.SHARED].zero_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(flat.module(inputs), labels)
        loss.backward()
        optimizer.step()

    return channels_last(step)


def traced(model: nn.Module) -> nn.Module:
    """A graph without Python between the layers."""
    example = torch.zeros(BATCH, *SHAPE).contiguous(memory_format=torch.channels_last)
    found = torch.jit.trace(model, example)
    assert isinstance(found, nn.Module)
    return found


def variants() -> dict[str, Step]:
    last, first = usual_model(pooling_first=True), usual_model()
    return {
        "as one writes it": by_hand(usual_model()),
        "+ channels last": channels_last(by_hand(first.to(memory_format=torch.channels_last))),  # type: ignore[call-overload]
        "+ pooling before the ReLU": channels_last(by_hand(last.to(memory_format=torch.channels_last))),  # type: ignore[call-overload]
        "+ one flat vector, fused step": on_a_flat_vector(),
        "+ bf16 arithmetic": on_a_flat_vector(autocast=True),
        "pooling before the ReLU (alone)": by_hand(usual_model(pooling_first=True)),
        "traced graph (alone)": channels_last(by_hand(traced(usual_model(pooling_first=True).to(memory_format=torch.channels_last)))),  # type: ignore[call-overload]
        "gradients zeroed in place (alone)": zeroing_in_place(usual_model()),
    }


def zeroing_in_place(model: nn.Module) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step(inputs: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad(set_to_none=False)
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def seconds(step: Step, batches: list[tuple[Tensor, Tensor]]) -> float:
    start = time.perf_counter()
    for inputs, labels in batches:
        step(inputs, labels)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--small", action="store_true", help="little work, to see that it runs")
    chosen = parser.parse_args()
    repeats, steps = (2, 3) if chosen.small else (chosen.repeats, chosen.steps)
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    batches = [(torch.randn(BATCH, *SHAPE, generator=draw), torch.randint(0, CLASSES, (BATCH,), generator=draw)) for _ in range(steps)]
    contenders = variants()
    spent: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, step in contenders.items():
            taken = seconds(step, batches)
            if repeat:
                spent[name].append(taken)
    usual = spent["as one writes it"]
    print(f"{'':36}{'samples/s':>12}{'ratio':>8}")
    for name, times in spent.items():
        ratio = statistics.median(base / own for base, own in zip(usual, times, strict=True))
        print(f"{name:36}{steps * BATCH / statistics.median(times):12,.0f}{ratio:8.2f}")


if __name__ == "__main__":
    main()
