"""Reflective Verification (2025): in one pass the target reads a draft twice, the second time behind a prompt.

`ReflectingDrafter` adds the check to a drafter's trees, as nodes below the likeliest path that are never committed:

    draft path -> prompt -> the same path again

so that the tree's own mask and positions serve the second reading, and its KV is freed with the rejected nodes. The
rule mixes the distributions of both readings, and accepts what the target samples from the mixture with the noise of
the position, as coupled acceptance does. Branches of a tree beside that path keep the first reading alone.

Lossy: the second reading has seen the draft. The prompt and the weight are ours; those of the paper are not confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from decoding.core import Tokens
from decoding.speculation.acceptance.given_tokens import match_tokens
from decoding.speculation.draft import RANDOM_SAMPLING, Draft, DraftSampling, VerifyResult
from decoding.speculation.interfaces import Branch, Drafter, DraftPlan, Feedback, reads_hidden
from decoding.validation import require_share, require_text

if TYPE_CHECKING:  # imports torch, which a wrong setting need not wait for
    from decoding.speculation.target_logits import TargetLogits

_DRAFTED, _PROMPT, _COPY = 0, 1, 2
"""Labels of the nodes of a tree with a check; they outlast a cut."""


@dataclass(frozen=True)
class Reflective:
    """Implements `AcceptanceRule`. Lossy.

    weight  of the second reading in the mixture of log-probabilities; at 0 the result is coupled acceptance
    prompt  text between the draft and its second reading

    Raises: ValueError naming the setting.
    """

    weight: float = 0.3
    prompt: str = "\n\nCheck the last words. They should read: "
    lossless: ClassVar[bool] = False
    supported_sampling: ClassVar[tuple[DraftSampling, ...]] = ("coupled", "likely", *RANDOM_SAMPLING)

    def __post_init__(self) -> None:
        require_share("weight", self.weight)
        require_text("prompt", self.prompt)
        if not isinstance(self.prompt, str) or not self.prompt:
            raise ValueError(f"prompt must be a text that is not empty, got {self.prompt!r}")

    def verify_drafts(self, branches: Items[Branch], drafts: Items[Draft], target: TargetLogits) -> list[VerifyResult]:
        """Returns one result per branch; log-probabilities are those of the mixture."""
        # here, as above
        from decoding.device_arrays import copy_numbers
        from decoding.speculation.target_logits import TargetLogits

        rows, first_rows, mixed_rows, second_rows = list[int](), list[int](), list[int](), list[int]()
        unchecked = [drop_check(draft) for draft in drafts]
        for first, draft, tree in zip(target.first_rows, drafts, unchecked, strict=True):
            start = len(rows)
            first_rows.append(start)
            rows += range(first, first + 1 + len(tree))
            for node, second in pair_readings(draft):
                mixed_rows.append(start + 1 + node)
                second_rows.append(first + 1 + second)
        rows_R = np.array(rows, dtype=np.int64)
        indices = [rows_R, np.array(mixed_rows, dtype=np.int64), np.array(second_rows, dtype=np.int64)]
        selected, mixed, checks = copy_numbers(indices, target.logits_WV.device)
        logits_RV = target.logits_WV[selected]
        if self.weight > 0 and mixed_rows:
            readings = logits_RV[mixed], target.logits_WV[checks]
            first_MV, second_MV = (reading.float().log_softmax(-1) for reading in readings)
            logits_RV[mixed] = ((1 - self.weight) * first_MV + self.weight * second_MV).to(logits_RV.dtype)
        mixture = TargetLogits(logits_RV, target.sampling.select_rows(rows_R), tuple(first_rows))
        tokens, logprobs = target.read_numbers(mixture.sampled, mixture.select_logprobs(mixture.sampled))
        return match_tokens(unchecked, first_rows, tokens.tolist(), logprobs.tolist())


@dataclass(eq=False)
class ReflectingDrafter:
    """Implements `Drafter`: adds a check to the drafts of another one, which learns from its own nodes alone.

    prompt_tokens   the target's ids of `Reflective.prompt`
    """

    drafter: Drafter
    prompt_tokens: Tokens
    _proposed: dict[tuple[int, int], Draft] = field(default_factory=dict)
    _proposed_before: dict[tuple[int, int], Draft] = field(default_factory=dict)

    @property
    def feedback_k(self) -> int:
        """See `Drafter`."""
        return self.drafter.feedback_k

    @property
    def reads_hidden(self) -> bool:
        """See `Drafter`."""
        return reads_hidden(self.drafter)

    def propose(self, branches: Items[Branch], plan: DraftPlan) -> list[Draft]:
        """See `Drafter`. The plan limits the drafted nodes; the round cuts the check where there is no room for it."""
        drafts = self.drafter.propose(branches, plan)
        keys = [(branch.request_id, len(branch.tokens)) for branch in branches]
        # two rounds: on a GPU the outcome of one is learned after the drafts of the next
        self._proposed, self._proposed_before = dict(zip(keys, drafts, strict=True)), self._proposed
        return [add_check(draft, self.prompt_tokens) for draft in drafts]

    def observe(self, feedback: Items[Feedback]) -> None:
        """See `Drafter`."""
        self.drafter.observe([self._drop_check(each) for each in feedback])

    def _drop_check(self, feedback: Feedback) -> Feedback:
        key = feedback.branch.request_id, len(feedback.branch.tokens)
        draft, proposed = drop_check(feedback.draft), self._proposed.get(key) or self._proposed_before.get(key)
        if proposed is not None:
            is_whole = len(draft) == len(proposed)
            draft = proposed if is_whole else replace(draft, labels=proposed.labels[: len(draft)])
        rows = slice(1 + len(draft))
        ids, logprobs = feedback.topk_ids, feedback.topk_logprobs
        return replace(
            feedback,
            draft=draft,
            topk_ids=None if ids is None else ids[rows],
            topk_logprobs=None if logprobs is None else logprobs[rows],
        )


def add_check(draft: Draft, prompt_tokens: Tokens) -> Draft:
    """Returns the draft with a prompt and a second copy below its likeliest path, which is that of first children.

    >>> checked = add_check(Draft((5, 6, 7), (-1, -1, 0)), (1, 2))
    >>> checked.tokens, checked.parents
    ((5, 6, 7, 1, 2, 5, 7), (-1, -1, 0, 2, 3, 4, 5))
    """
    path, node = list[int](), -1
    while node in draft.parents:
        node = draft.parents.index(node)
        path.append(node)
    if not path:
        return draft
    count, check = len(draft), (*prompt_tokens, *(draft.tokens[node] for node in path))
    return Draft(
        draft.tokens + check,
        (*draft.parents, path[-1], *range(count, count + len(check) - 1)),
        draft.path_probabilities and (*draft.path_probabilities, *(0.0 for _ in check)),
        labels=(_DRAFTED,) * count + (_PROMPT,) * len(prompt_tokens) + (_COPY,) * len(path),
    )


def drop_check(draft: Draft) -> Draft:
    """Returns the drafted nodes alone, without labels."""
    if not draft.labels:
        return draft
    return replace(draft.select_nodes(range(draft.labels.count(_DRAFTED))), labels=())


def pair_readings(draft: Draft) -> list[tuple[int, int]]:
    """Returns pairs of nodes after which both readings are at the same place: of the path, -1 for the root, and of the
    check. Empty without a check, or where a cut left less than its prompt and a token of the copy.

    >>> pair_readings(add_check(Draft((5, 6, 7), (-1, -1, 0)), (1, 2)))
    [(-1, 4), (0, 5), (2, 6)]
    """
    if _COPY not in draft.labels:
        return []
    begin, copy = draft.labels.index(_PROMPT), draft.labels.index(_COPY)
    path = (-1, *draft.path_to(draft.parents[begin]))
    return list(zip(path, range(copy - 1, len(draft)), strict=False))
