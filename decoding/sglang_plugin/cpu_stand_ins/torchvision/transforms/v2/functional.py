"""The names that are imported from `torchvision.transforms.v2.functional`."""

from ..functional import InterpolationMode, pil_to_tensor

__all__ = ["InterpolationMode", "pil_to_tensor"]
