"""Draw the target's token as if there were no guesses, and keep the child that says the same.

The same law, of tokens and of what is kept, as trying the children one by one, each with its probability under
what p has left (EAGLE, vLLM's n-gram drafts, SGLang's target-only rule): a child is kept with probability p.

Lossless given the draft, whatever it is: likeliest tokens, merged sources, draws that were dropped, reordered or
made with noise used before. It asks only that the draft knew nothing of these coins. So it needs no q, and gains
nothing from one.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import ClassVar

from decoding.speculation.acceptance.uniform_stream import Coins
from decoding.speculation.acceptance.verify import P, Walked, walk_down, walk_each
from decoding.speculation.interfaces import Branch, Draft, DrawKind
from decoding.speculation.target_logits import Accepted, Target


@dataclass(frozen=True)
class PointMass:
    """Target-only acceptance: q taken as 1 on every child."""

    lossless: ClassVar[bool] = True
    draws: ClassVar[tuple[DrawKind, ...]] = ("likely", "without_replacement", "iid", "coupled")

    def walk(self, draft: Draft, p: P, coins: Coins) -> Walked:
        return walk_down(draft, lambda node: coins.choose(p(node)))

    def accept(self, branches: Items[Branch], drafts: Items[Draft], target: Target) -> list[Accepted]:
        return walk_each(self.walk, branches, drafts, target)
