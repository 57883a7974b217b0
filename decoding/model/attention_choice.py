"""Chooses whether attention runs over segments, and whether its rounds run as CUDA graphs."""

from __future__ import annotations

import logging

import torch

from decoding.model.backend import ATTENTION_CHOICES, GRAPHS_CHOICES
from decoding.model.segment_attention import explain_no_segments
from decoding.validation import require_choice

log = logging.getLogger(__name__)


def picks_segments(choice: str, device: torch.device, dtype: torch.dtype) -> bool:
    """Returns whether attention runs over segments, else over blocks; `auto` is segments on CUDA where they can run.

    Raises: ValueError for an unknown choice, and for `segments` where they cannot run.
    """
    require_choice("attention", choice, ATTENTION_CHOICES)
    if choice == "blocks" or (choice == "auto" and device.type != "cuda"):
        return False
    reason = explain_no_segments(device, dtype)
    if choice == "segments" and reason is not None:
        raise ValueError(f"attention=segments cannot run: {reason}; set attention=auto or attention=blocks")
    if reason is not None:
        log.warning("attention runs over blocks, with many more launches: %s", reason)
    return reason is None


def picks_graphs(choice: str, device: torch.device, has_segments: bool) -> bool:
    """Returns whether small rounds run as CUDA graphs; `auto` is wherever they can.

    Raises: ValueError for an unknown choice, and for `always` where they cannot run.
    """
    require_choice("graphs", choice, GRAPHS_CHOICES)
    can_run = device.type == "cuda" and has_segments
    if choice == "always" and not can_run:
        raise ValueError(
            f"graphs=always cannot run: graphs are of rounds with segments on CUDA, and the device is {device.type}, "
            f"with{'' if has_segments else 'out'} segments; set graphs=auto or graphs=never"
        )
    return can_run and choice != "never"
