"""Keep a draft as far as the target's likeliest token agrees (blockwise parallel decoding, arXiv 1811.03115).

Greedy decoding, whatever the temperature: the same as every other rule at temperature 0, lossy above.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import ClassVar

from decoding.speculation.acceptance.verify import Walked, outcomes, walk_down
from decoding.speculation.interfaces import Branch, Draft, DrawKind
from decoding.speculation.target_logits import Accepted, Target


@dataclass(frozen=True)
class GreedyMatch:
    """Not lossless: a request's temperature is ignored."""

    lossless: ClassVar[bool] = False
    draws: ClassVar[tuple[DrawKind, ...]] = ("likely", "without_replacement", "iid", "coupled")

    def accept(self, branches: Items[Branch], drafts: Items[Draft], target: Target) -> list[Accepted]:
        best_W = target.logits_WV.float().argmax(-1).tolist()

        def walk(draft: Draft, first: int) -> Walked:
            return walk_down(draft, lambda node: best_W[first + 1 + node])

        return outcomes(list(map(walk, drafts, target.first)), drafts, target)
