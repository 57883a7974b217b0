"""Lets drafters learn from recorded texts, in which nothing is known of what follows a rejected draft token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from decoding.speculation.drafters.best_first import TableLookup
from decoding.speculation.drafters.draft_walks import WalkDrafter
from decoding.speculation.drafters.goose import GooseDrafter
from decoding.speculation.drafters.source import DraftSource, Ints, NextTokens
from decoding.speculation.drafters.token_recycling import TokenRecycling
from decoding.speculation.drafters.tree_builder import TableSource
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import Branch, Drafter, Feedback, reads_hidden


@dataclass
class AcceptedPathSource:
    """Implements `DraftSource` by another source, which receives feedback for accepted nodes only."""

    source: DraftSource

    @property
    def feedback_k(self) -> int:
        return self.source.feedback_k

    @property
    def has_probabilities(self) -> bool:
        return self.source.has_probabilities

    def root_states(self, branches: Sequence[Branch]) -> Any:
        return self.source.root_states(branches)

    def next_tokens(self, state: Any) -> NextTokens:
        return self.source.next_tokens(state)

    def advance(self, state: Any, tokens_F: Ints) -> Any:
        return self.source.advance(state, tokens_F)

    def observe(self, feedback: Sequence[Feedback]) -> None:
        self.source.observe([_accepted_feedback(each) for each in feedback])


@dataclass
class AcceptedPathTable(AcceptedPathSource):
    """Implements `TableSource` by an n-gram table, which receives feedback for accepted nodes only."""

    source: DraftSource

    def table_lookup(self, branches: Sequence[Branch]) -> TableLookup:
        """See `TableSource`."""
        assert isinstance(self.source, TableSource)
        return self.source.table_lookup(branches)


class AcceptedPathRecycling(TokenRecycling):
    """Token Recycling that receives feedback for accepted nodes only, for a drafter that takes no other class."""

    def observe(self, feedback: Sequence[Feedback]) -> None:
        super().observe([_accepted_feedback(each) for each in feedback])


def learn_accepted_paths(drafter: Drafter) -> Drafter:
    """Returns the drafter with a source that learns from accepted nodes only, and without random draws.

    The drafter itself observes rejected nodes too: that they were rejected is known. Drafters that learn nothing are
    returned as they are.

    Raises: ValueError for a drafter that reads hidden states, which a recorded text has not.
    """
    if reads_hidden(drafter):
        raise ValueError(f"{type(drafter).__name__} reads the target's hidden states, and recorded texts have none")
    match drafter:
        case TreeDrafter():
            wrap = AcceptedPathTable if isinstance(drafter.source, TableSource) else AcceptedPathSource
            return replace(drafter, source=wrap(drafter.source), draw="likely")
        case WalkDrafter():
            return replace(drafter, source=AcceptedPathSource(drafter.source))
        case GooseDrafter():
            return replace(drafter, source=AcceptedPathRecycling(drafter.source.k))
    return drafter


def _accepted_feedback(feedback: Feedback) -> Feedback:
    path = tuple(range(len(feedback.accepted_nodes)))
    draft = feedback.draft.select_nodes(feedback.accepted_nodes)
    if feedback.topk_ids is None:
        return Feedback(feedback.branch, draft, path)
    ids, logprobs = feedback.top_tokens()
    rows = [0, *(1 + node for node in feedback.accepted_nodes)]
    return Feedback(feedback.branch, draft, path, ids[rows], logprobs[rows])
