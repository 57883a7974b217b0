"""Holds the outcome of a round: verified drafts, and the feedback, hidden states and uncertainty that follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from decoding.core import Matrix, Vector
from decoding.fork import LazyProperty
from decoding.model.batch import SequenceInput
from decoding.request import Request
from decoding.speculation.draft import VerifyResult
from decoding.speculation.interfaces import Branch, Feedback
from decoding.speculation.target_logits import Ints, TargetLogits


@dataclass(frozen=True)
class BatchVerifyResult:
    """The complete inputs of a forward pass, and for each its branch before the round and its verified draft.

    reads_hidden  whether the drafter reads hidden states; where it does not, none is selected or copied
    """

    inputs: list[SequenceInput[Request]]
    branches: list[Branch]
    results: list[VerifyResult]
    target: TargetLogits
    reads_hidden: bool = False

    def __iter__(self) -> Iterator[tuple[SequenceInput[Request], Branch, VerifyResult]]:
        return zip(self.inputs, self.branches, self.results, strict=True)

    def read_logits(self) -> None:
        """Computes all that is needed of the logits: after the commit there must be no operation that memory can fail.

        *Mutates*: keeps the results.
        """
        if self.target.feedback_k:
            _ = self.target.top_logprobs
        if any(item.sequence.num_top for item in self.inputs):
            _ = self._uncertainty
        if self.reads_hidden:
            _ = self._hidden

    def collect_feedback(self) -> list[Feedback]:
        """Returns the outcome of each branch for drafter and controller, once the requests have their tokens."""
        target = self.target
        hidden = self._select_committed_hidden() if self.reads_hidden else {}
        ids, logprobs = target.top_logprobs if target.feedback_k else (None, None)
        feedback = []
        for first, (item, branch, result) in zip(target.first_rows, self, strict=True):
            # the row after the last committed token, then one row per draft node
            rows = slice(first, first + 1 + len(item.draft))
            top_ids, top_logprobs = (None, None) if ids is None or logprobs is None else (ids[rows], logprobs[rows])
            # `branch` is the view from before the round: the request has grown since
            of_request = hidden.get(item.sequence.arrival)
            feedback.append(Feedback(branch, item.draft, result.accepted_nodes, top_ids, top_logprobs, of_request))
        return feedback

    def _select_committed_hidden(self) -> dict[int, Matrix]:
        """Returns the hidden states of the new tokens, by arrival."""
        return {
            request.arrival: self._hidden[request.arrival][: len(rows)] for request, rows in self._iterate_committed()
        }

    def store_hidden(self) -> None:
        """Stores the hidden state from which the last committed token was chosen, where a request needs it.

        *Mutates* the requests, which have committed their tokens.
        """
        if self.target.hidden_WD is None or not any(item.sequence.needs_hidden for item in self.inputs):
            return
        for request, rows in self._iterate_committed():
            if request.needs_hidden:
                request.hidden = self.target.hidden_WD[rows[-1]]

    def store_uncertainty(self) -> None:
        """Stores log-probabilities of the most likely tokens, and entropies, where a request needs them.

        *Mutates* the requests, which have committed their tokens.
        """
        if not any(item.sequence.num_top for item in self.inputs):
            return
        for request, rows in self._iterate_committed():
            if request.num_top:
                ids_RK, top_RK, entropies_R = self._uncertainty[request.arrival]
                num, width = len(rows), request.num_top
                request.add_uncertainty(ids_RK[:num, :width], top_RK[:num, :width], entropies_R[:num])

    @LazyProperty
    def _hidden(self) -> dict[int, Matrix]:
        """By arrival, the hidden state from which each token of a result was chosen, float32 `[tokens, D]`."""
        hidden_WD = self.target.hidden_WD
        if hidden_WD is None or hidden_WD.ndim != 2 or not hidden_WD.is_floating_point():
            raise ValueError(
                "the drafter reads the target's hidden states (reads_hidden), and this backend gives none; choose "
                "another drafter"
            )
        rows_of = {request.arrival: rows for request, rows, _ in self._iterate_rows()}
        # all rows together: one wait for the device
        rows_R = torch.tensor([row for rows in rows_of.values() for row in rows], device=hidden_WD.device)
        hidden_RD = hidden_WD[rows_R].float().cpu().numpy()
        ends = np.cumsum([len(rows) for rows in rows_of.values()])
        return dict(zip(rows_of, np.split(hidden_RD, ends[:-1]), strict=True))

    @LazyProperty
    def _uncertainty(self) -> dict[int, tuple[Ints, Matrix, Vector]]:
        """By arrival, what `TargetLogits.measure_rows` measures for each token of a result."""
        measured = [(request, rows) for request, rows, _ in self._iterate_rows() if request.num_top]
        num_top = max(request.num_top for request, _ in measured)
        # all rows together: one wait for the device
        measures = self.target.measure_rows([row for _, rows in measured for row in rows], num_top)
        by_arrival, at = {}, 0
        for request, rows in measured:
            end = at + len(rows)
            ids_RK, top_RK, entropies_R = measures
            by_arrival[request.arrival] = ids_RK[at:end], top_RK[at:end], entropies_R[at:end]
            at = end
        return by_arrival

    def _iterate_committed(self) -> Iterator[tuple[Request, list[int]]]:
        """Yields each request with the rows from which its new tokens were chosen, in their order."""
        for request, rows, branch in self._iterate_rows():
            # a stop may have cut the result
            yield request, rows[: len(request.tokens) - len(branch.tokens)]

    def _iterate_rows(self) -> Iterator[tuple[Request, list[int], Branch]]:
        """Yields each request, the rows from which the tokens of its result were chosen, and its branch."""
        for first, (item, branch, result) in zip(self.target.first_rows, self, strict=True):
            # row of the last committed token, then those of the accepted nodes; token j comes from rows[j]
            yield item.sequence, [first, *(first + 1 + node for node in result.accepted_nodes)], branch
