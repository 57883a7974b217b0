"""The names that are imported from `torchvision.transforms`."""

from . import functional
from .functional import InterpolationMode

__all__ = ["InterpolationMode", "functional"]
