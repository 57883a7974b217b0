"""Keep a draft exactly as far as the target, with the position's own noise, says the same.

The target's token after a row is a function of its logits, the request's seed and the position. So the
output is what plain decoding would have given, token for token, whatever tree was guessed and how.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import ClassVar

from decoding.speculation.interfaces import Branch, Draft, DrawKind
from decoding.speculation.target_logits import Accepted, Target


def walk(draft: Draft, chosen: Items[int]) -> tuple[int, ...]:
    """The nodes kept, from the top: `chosen[0]` is the target's token after the anchor, `chosen[1 + i]` after node i.

    >>> walk(Draft((5, 6, 9), (-1, 0, 0)), chosen=[5, 9, 1, 2])
    (0, 2)
    """
    if not len(draft):
        return ()
    child = {(parent, token): i for i, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True))}
    path: list[int] = []
    node = -1
    while (found := child.get((node, int(chosen[node + 1])))) is not None:
        path.append(found)
        node = found
    return tuple(path)


@dataclass(frozen=True)
class Coupled:
    """Coupled acceptance (DESIGN D2)."""

    lossless: ClassVar[bool] = True
    draws: ClassVar[tuple[DrawKind, ...]] = ("coupled", "likely", "without_replacement", "iid")

    def accept(self, branches: Items[Branch], drafts: Items[Draft], target: Target) -> list[Accepted]:
        tokens, logprobs = target.tokens.tolist(), target.logprobs.tolist()
        outcomes = []
        for first, draft in zip(target.first, drafts, strict=True):
            path = walk(draft, tokens[first : first + 1 + len(draft)])
            rows = [first, *(first + 1 + node for node in path)]
            outcomes.append(Accepted(path, tuple(tokens[r] for r in rows), tuple(logprobs[r] for r in rows)))
        return outcomes
