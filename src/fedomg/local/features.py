"""What a client's features look like, class by class."""

from typing import NamedTuple

import torch
from torch import Tensor

from fedomg.local.loop import Visit
from fedomg.models.split import split

BATCH_SIZE = 256


class ClassFeatures(NamedTuple):
    """Of each class: examples, mean feature, mean squared length of a feature. Absent classes are zero."""

    counts: Tensor
    means: Tensor
    squares: Tensor


def class_features(visit: Visit) -> ClassFeatures:
    """Over the client's whole training split, with the body as it is loaded, in evaluation mode."""
    model = split(visit.model.module)
    model.eval()
    counts = torch.bincount(visit.client.train.labels, minlength=visit.classes).float()
    sums, squares = counts.new_zeros(0), torch.zeros_like(counts)
    with torch.no_grad():
        for inputs, labels in visit.client.train.in_order(BATCH_SIZE):
            features = model.body(inputs)
            if not len(sums):
                sums = counts.new_zeros(visit.classes, features.shape[1])
            sums.index_add_(0, labels, features)
            squares.index_add_(0, labels, features.square().sum(dim=1))
    present = counts.clamp(min=1)
    return ClassFeatures(counts, sums / present.unsqueeze(1), squares / present)
