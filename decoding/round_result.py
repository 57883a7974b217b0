"""Holds the outcome of a round: verified drafts, and the feedback and hidden states that follow from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from decoding.model.batch import SequenceInput
from decoding.request import Request
from decoding.speculation.draft import VerifyResult
from decoding.speculation.interfaces import Branch, Feedback
from decoding.speculation.target_logits import TargetLogits


@dataclass(frozen=True)
class BatchVerifyResult:
    """The complete inputs of a forward pass, and for each its branch before the round and its verified draft."""

    inputs: list[SequenceInput[Request]]
    branches: list[Branch]
    results: list[VerifyResult]
    target: TargetLogits

    def __iter__(self) -> Iterator[tuple[SequenceInput[Request], Branch, VerifyResult]]:
        return zip(self.inputs, self.branches, self.results, strict=True)

    def collect_feedback(self) -> list[Feedback]:
        """Returns the outcome of each branch for drafter and controller."""
        target = self.target
        ids, logprobs = target.top_logprobs if target.feedback_k else (None, None)
        feedback = []
        for first, (item, branch, result) in zip(target.first_rows, self, strict=True):
            # the row after the last committed token, then one row per draft node
            rows = slice(first, first + 1 + len(item.draft))
            top = (None, None) if ids is None or logprobs is None else (ids[rows], logprobs[rows])
            # `branch` is the view from before the round: the request has grown since
            feedback.append(Feedback(branch, item.draft, result.accepted_nodes, *top))
        return feedback

    def store_hidden(self) -> None:
        """Stores the hidden state from which the last committed token was chosen, where a request needs it.

        *Mutates* the requests, which have committed their tokens.
        """
        if self.target.hidden_WD is None:
            return
        for first, (item, branch, result) in zip(self.target.first_rows, self, strict=True):
            request = item.sequence
            if request.needs_hidden:
                new = len(request.tokens) - len(branch.tokens)
                # row of the last committed token, then those of the accepted nodes; token j comes from rows[j]
                rows = [first, *(first + 1 + node for node in result.accepted_nodes)]
                request.hidden = self.target.hidden_WD[rows[new - 1]]
