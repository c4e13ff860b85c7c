"""torchvision beside a torch without CUDA, in fresh processes: what is imported once stays."""

import importlib.machinery
import subprocess
import sys

import pytest
import torch

from fedomg.core import torchvision_compat


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_models_datasets_and_transforms_work() -> None:
    code = """
import torch
from fedomg.core.torchvision_compat import torchvision
assert torchvision("models").resnet18(num_classes=3).eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 3)
assert torchvision("datasets").MNIST
assert torchvision("transforms").Resize(4)(torch.zeros(1, 8, 8)).shape == (1, 4, 4)
assert torchvision("transforms.v2").Resize(4)(torch.zeros(1, 8, 8)).shape == (1, 4, 4)
torchvision("ops")
print("works")
"""
    assert run(code) == "works"


@pytest.mark.parametrize("stand_in", ["torch.version.cuda = '12.8'", "compat._extension_loads = lambda: True"])
def test_a_healthy_torchvision_is_left_alone(stand_in: str) -> None:
    code = f"""
import torch
import fedomg.core.torchvision_compat as compat
{stand_in}
compat.declare_missing_operators()
print(len(compat._declared), hasattr(torch.ops.torchvision, "nms"))
"""
    assert run(code).startswith("0 ")


def test_operators_are_declared_where_the_extension_cannot_be_loaded() -> None:
    code = """
import torch
import fedomg.core.torchvision_compat as compat
torch.version.cuda = None
compat._extension_loads = lambda: False
if hasattr(torch.ops.torchvision, "nms"):
    print("there already")
else:
    for _ in range(2):
        compat.declare_missing_operators()
    assert len(compat._declared) == 1
    print(torch.ops.torchvision.nms.default._schema, torch.ops.torchvision.qnms.default._schema, sep="; ")
"""
    schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    assert run(code) in ("there already", f"torchvision::nms{schema}; torchvision::qnms{schema}")


def test_nothing_is_declared_twice_nor_after_the_import() -> None:
    torchvision_compat.torchvision("models")
    declared = len(torchvision_compat._declared)
    torchvision_compat.declare_missing_operators()
    assert len(torchvision_compat._declared) == declared <= 1
    assert hasattr(torch.ops.torchvision, "nms")


def test_a_torchvision_without_an_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.machinery, "EXTENSION_SUFFIXES", [".none"])
    assert not torchvision_compat._extension_loads()


def test_the_models_do_not_import_it_before_it_is_needed() -> None:
    assert run("import sys, fedomg.models, fedomg.data.catalogue; print('torchvision' in sys.modules)") == "False"
