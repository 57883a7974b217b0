"""The names that are imported from `torchvision.transforms.v2`."""

from ..functional import InterpolationMode
from . import functional

__all__ = ["InterpolationMode", "functional"]
