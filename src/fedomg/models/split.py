"""A model in two parts: the body makes features, the head classifies them."""

from torch import Tensor, nn

from fedomg.core.errors import UserError


class SplitModel(nn.Module):
    """`head(body(x))`; methods that treat the two parts differently tell them by the names `body.*` and `head.*`."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(inputs))
        return logits


def split(module: nn.Module) -> SplitModel:
    """The module, known to have two parts."""
    assert isinstance(module, SplitModel)
    return module


def linear_head(method: str, model: SplitModel) -> nn.Linear:
    """The head, for methods that need it to be one linear layer."""
    if not isinstance(model.head, nn.Linear):
        kind = type(model.head).__name__
        raise UserError(f'method "{method}" needs a model whose head is one linear layer, not {kind}; choose another model or method')
    return model.head
