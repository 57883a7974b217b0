"""The same number of draft nodes for every branch in every round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoding.core import Branch, Load, is_count


@dataclass(frozen=True)
class Fixed:
    """`nodes` per branch; 0 is plain decoding."""

    nodes: int = 0

    def __post_init__(self) -> None:
        if not is_count(self.nodes):
            raise ValueError(f"nodes must be an int >= 0, got {self.nodes!r}")

    def plan(self, branches: Sequence[Branch], load: Load) -> list[int]:
        return [self.nodes] * len(branches)
