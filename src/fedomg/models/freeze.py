"""Parts of a model that do not learn."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


class _Frozen(_BatchNorm):
    """Has no training mode: it normalises with the statistics that it came with, and leaves them as they are."""

    def train(self, mode: bool = True) -> "_Frozen":
        return super().train(False)


def freeze_batchnorm(model: nn.Module) -> int:
    """Makes every BatchNorm keep its statistics for good, and says how many there are. Its scale and shift still learn."""
    found = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    for module in found:
        module.__class__ = _frozen(type(module))
        module.eval()
    return len(found)


def _frozen(kind: type[_BatchNorm]) -> type[_BatchNorm]:
    return type(f"Frozen{kind.__name__}", (_Frozen, kind), {})
