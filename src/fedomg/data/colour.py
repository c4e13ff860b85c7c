"""Changes of colour, for batches of pictures (B, 3, H, W) with values in [0, 1] and an amount (B, 1, 1, 1) for each."""

from collections.abc import Callable

import torch
from torch import Tensor


def grey(pictures: Tensor) -> Tensor:
    """The brightness that the eye sees, (B, 1, H, W)."""
    red, green, blue = pictures.unbind(dim=1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue).unsqueeze(1)


def brightness(pictures: Tensor, factors: Tensor) -> Tensor:
    return _blend(pictures, torch.zeros_like(factors), factors)


def contrast(pictures: Tensor, factors: Tensor) -> Tensor:
    return _blend(pictures, grey(pictures).mean(dim=(1, 2, 3), keepdim=True), factors)


def saturation(pictures: Tensor, factors: Tensor) -> Tensor:
    return _blend(pictures, grey(pictures), factors)


def _blend(pictures: Tensor, others: Tensor, factors: Tensor) -> Tensor:
    return torch.lerp(others, pictures, factors).clamp(0, 1)


def hue(pictures: Tensor, turns: Tensor) -> Tensor:
    """Turned on the circle of colours; value and saturation of every pixel stay."""
    red, green, blue = pictures.unbind(dim=1)
    high, low = pictures.amax(dim=1), pictures.amin(dim=1)
    spread = high - low
    divisor = torch.where(spread == 0, torch.ones_like(spread), spread)
    sector = torch.where(
        high == red,
        (green - blue) / divisor,
        torch.where(high == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    turned = sector.unsqueeze(1) + 6 * turns
    # A channel is at its highest within one sixth of the circle of its own colour, and at its lowest from two sixths on.
    centres = torch.tensor([0.0, 2.0, 4.0], device=pictures.device).view(1, 3, 1, 1)
    distance = (turned - centres + 3).remainder(6).sub(3).abs()
    return high.unsqueeze(1) - spread.unsqueeze(1) * (distance - 1).clamp(0, 1)


CHANGES: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (brightness, contrast, saturation, hue)
