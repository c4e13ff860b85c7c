"""A model of the user's own: a callable `(shape, classes) -> nn.Module`, named by its import path."""

import math

import torch
from torch import Tensor, nn

from fedomg.core.errors import UserError
from fedomg.core.imports import import_object, reason
from fedomg.models.split import SplitModel


def own(path: str, shape: tuple[int, ...], classes: int) -> SplitModel:
    """Builds the model. Where it is not in two parts already, its last linear layer becomes the head."""
    make = import_object("model", path)
    if not callable(make) or isinstance(make, nn.Module):
        raise UserError(f'model "{path}" is of type {type(make).__name__}: it must be a callable (shape, classes) -> nn.Module')
    try:
        module = make(shape, classes)
    except UserError:
        raise
    except Exception as error:  # whatever the user's own code raises
        raise UserError(f'model "{path}" cannot be made for shape {tuple(shape)} and {classes} classes: {reason(error)}') from error
    if not isinstance(module, nn.Module):
        raise UserError(f'model "{path}" returns a {type(module).__name__}: it must return an nn.Module')
    before = _answers(path, module, shape, classes)
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32:
            raise UserError(f'model "{path}": parameter {name} is {parameter.dtype}, only float32 can be trained')
    if isinstance(module, SplitModel):
        return module
    split = _split(path, module)
    if not torch.equal(before, _answers(path, split, shape, classes)):
        raise UserError(f'model "{path}": its last linear layer is not its last step, so it is no head; return a fedomg SplitModel')
    return split


def _split(path: str, module: nn.Module) -> SplitModel:
    linear = [name for name, inner in module.named_modules() if isinstance(inner, nn.Linear)]
    if not linear:
        raise UserError(f'model "{path}" has no linear layer that could be its head; return a fedomg SplitModel')
    head = module.get_submodule(linear[-1])
    if head is module:
        return SplitModel(nn.Identity(), head)
    owner, _, attribute = linear[-1].rpartition(".")
    setattr(module.get_submodule(owner), attribute, nn.Identity())
    return SplitModel(module, head)


def _answers(path: str, module: nn.Module, shape: tuple[int, ...], classes: int) -> Tensor:
    """The logits of two made-up examples. In evaluation mode, which leaves no trace in the model."""
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            answers = module(torch.linspace(-1, 1, 2 * math.prod(shape)).view(2, *shape))
    except Exception as error:  # whatever the user's own code raises
        raise UserError(f'model "{path}" fails on inputs of shape {tuple(shape)}: {reason(error)}') from error
    module.train(was_training)
    if not isinstance(answers, Tensor) or answers.shape != (2, classes):
        found = tuple(answers.shape) if isinstance(answers, Tensor) else type(answers).__name__
        raise UserError(f'model "{path}" answers two examples with {found}, not with logits of shape {(2, classes)}')
    return answers
