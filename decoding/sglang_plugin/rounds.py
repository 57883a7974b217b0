"""The rounds of an SGLang server: what is drafted, how far trees are padded, what is accepted and learned. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from decoding.sglang_plugin.adaptive_nodes import AdaptiveNodes
from decoding.sglang_plugin.parts import SpeculativeParts
from decoding.sglang_plugin.request_padding import RequestPadding
from decoding.sglang_plugin.trees import FlatTrees, flatten_trees, sampling_rows
from decoding.speculation.controllers.speculation_gate import RoundKind
from decoding.speculation.draft import Draft, VerifyResult
from decoding.speculation.interfaces import Branch, Feedback, LogProbs, TokenIds
from decoding.speculation.target_logits import TargetLogits

if TYPE_CHECKING:
    from torch import Tensor

_EMPTY = Draft()


class PlannedRound(NamedTuple):
    """A round before it runs. `learns`: whether the drafter observes its outcome."""

    kind: RoundKind
    branches: Sequence[Branch]
    drafts: Sequence[Draft]
    trees: FlatTrees
    learns: bool

    @property
    def nodes(self) -> int:
        """Nodes of every tree, the last committed token and padding included."""
        return len(self.trees.tokens) // len(self.branches)


class VerifiedRound(NamedTuple):
    """Results of a round; `top` are the most likely ids and their log-probabilities after every node, if it learns."""

    outcomes: Sequence[VerifyResult]
    top: tuple[TokenIds, LogProbs] | None


class ServerRounds:
    """Plans rounds, one after the other.

    parts     drafts and learns; replaced when the server's cache is flushed
    adaptive  None: every round has as many nodes as `parts` allow
    counts    rounds by draft nodes per branch, padding included
    """

    def __init__(self, parts: SpeculativeParts, adaptive: AdaptiveNodes | None) -> None:
        self.parts, self.adaptive = parts, adaptive
        self.counts: Counter[int] = Counter()
        self._padding = RequestPadding()
        self._unmeasured: tuple[PlannedRound, int] | None = None

    def plan_round(self, branches: Sequence[Branch], last_seconds: float | None) -> PlannedRound:
        """Returns the next round; `last_seconds` are those of the round before, None where they say nothing."""
        kind: RoundKind = "drafted"
        if self.adaptive is not None:
            self._observe_last(self.adaptive, last_seconds)
            kind = self.adaptive.plan_round(len(branches), sum(len(branch.tokens) for branch in branches))
        if kind != "drafted":
            drafts, nodes = [_EMPTY] * len(branches), 0
        else:
            drafts, nodes = self._propose_drafts(branches)
        return PlannedRound(kind, branches, drafts, flatten_trees(branches, drafts, 1 + nodes), kind != "plain")

    def verify_round(self, planned: PlannedRound, logits_WV: Tensor) -> VerifiedRound:
        """Returns what is accepted, given the target's logits after every node of every tree."""
        rows = sampling_rows(planned.branches, planned.trees.depths)
        first_rows = tuple(range(0, len(planned.trees.tokens), planned.nodes))
        feedback_k = self.parts.drafter.feedback_k if planned.learns else 0
        target = TargetLogits(logits_WV, rows, first_rows, feedback_k=feedback_k)
        outcomes = self.parts.acceptance.verify_drafts(planned.branches, planned.drafts, target)
        return VerifiedRound(outcomes, target.top_logprobs if planned.learns else None)

    def end_round(self, planned: PlannedRound, verified: VerifiedRound) -> None:
        """Lets the drafter learn from a round, and remembers what it committed until its seconds are known."""
        self.counts[planned.nodes - 1] += 1
        if verified.top is not None:
            self.parts.drafter.observe(_list_feedback(planned, verified.outcomes, verified.top))
        self._unmeasured = planned, sum(len(outcome.tokens) for outcome in verified.outcomes)

    def _propose_drafts(self, branches: Sequence[Branch]) -> tuple[list[Draft], int]:
        drafts, most = self.parts.draft_trees(branches), self.parts.most_nodes
        if self.adaptive is None or not self.parts.may_cut:
            return drafts, most
        # nodes come in order of falling probability, so the first ones are the best draft of that size
        expected = {size: [sum(draft.path_probabilities[:size]) for draft in drafts] for size in self.adaptive.sizes}
        nodes = self.adaptive.choose_nodes(len(drafts), [sum(tokens) for tokens in expected.values()])
        if not nodes:
            return [_EMPTY] * len(drafts), 0
        chosen = self._padding.choose_drafts([branch.request_id for branch in branches], expected[nodes])
        return [
            draft.truncate_to(nodes=nodes, depth=nodes) if has_draft else _EMPTY
            for draft, has_draft in zip(drafts, chosen, strict=True)
        ], nodes

    def _observe_last(self, adaptive: AdaptiveNodes, seconds: float | None) -> None:
        last, self._unmeasured = self._unmeasured, None
        if last is not None and seconds is not None:
            planned, tokens = last
            adaptive.observe(
                planned.kind,
                branches=len(planned.branches),
                nodes=planned.nodes - 1,
                context_tokens=sum(len(branch.tokens) for branch in planned.branches),
                tokens=tokens,
                seconds=seconds,
            )


def _list_feedback(
    planned: PlannedRound, outcomes: Sequence[VerifyResult], top: tuple[TokenIds, LogProbs]
) -> list[Feedback]:
    ids, logprobs = top
    feedback = []
    for i, (branch, draft, outcome) in enumerate(zip(planned.branches, planned.drafts, outcomes, strict=True)):
        rows = slice(i * planned.nodes, i * planned.nodes + 1 + len(draft))  # without the padding after the draft
        feedback.append(Feedback(branch, draft, outcome.accepted_nodes, ids[rows], logprobs[rows]))
    return feedback


class RoundTimer:
    """Measures rounds from the beginning of one to that of the next, with all that the server does in between."""

    def __init__(self) -> None:
        self._last: tuple[float, frozenset[str]] | None = None

    def begin_round(self, request_ids: frozenset[str], now: float) -> float | None:
        """Returns the seconds of the round before, or None where something else was done since: nothing, or prompts."""
        last, self._last = self._last, (now, request_ids)
        # a server with a request that ran on had no pause
        return None if last is None or last[1].isdisjoint(request_ids) else now - last[0]

    def interrupt(self) -> None:
        """Forgets the round that runs: another kind of work follows it."""
        self._last = None
