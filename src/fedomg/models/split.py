"""A model in two parts: the body makes features, the head classifies them."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from fedomg.core.errors import UserError


class SplitModel(nn.Module):
    """`head(body(x))`; methods that treat the two parts differently tell them by the names `body.*` and `head.*`.

    `stages` names the modules of the body whose outputs are its feature maps, in the order in which they are passed, with their channels.
    """

    def __init__(self, body: nn.Module, head: nn.Module, stages: Mapping[str, int] | None = None) -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.stages = dict(stages or {})

    def through(self, inputs: Tensor, at_stage: Callable[[int, Tensor], Tensor]) -> Tensor:
        """The features; on the way, what `at_stage` makes of the map of a stage (from 0) takes its place."""

        def replacing(stage: int) -> Callable[[nn.Module, Any, Tensor], Tensor]:
            return lambda module, given, maps: at_stage(stage, maps)

        hooks = [self.body.get_submodule(name).register_forward_hook(replacing(stage)) for stage, name in enumerate(self.stages)]
        try:
            features: Tensor = self.body(inputs)
        finally:
            for hook in hooks:
                hook.remove()
        return features

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
