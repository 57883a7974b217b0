"""Stands in for torchvision, which SGLang and transformers import for models that see. None of these does."""

from . import io, transforms

__version__ = "0"
__all__ = ["io", "transforms"]
