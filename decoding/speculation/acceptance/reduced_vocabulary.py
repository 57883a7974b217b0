"""Restates a draft over a small vocabulary at each node: the ids that were drawn from, and one outcome for all others.

A rejection rule compares p with q, which has those ids only. All others keep their ratios whatever is rejected, because
residuals subtract nothing from them. So a rule may take them as one outcome, and the token is drawn among them at the
end, in proportion to p: the accepted nodes and the token are distributed as they are over the whole vocabulary.

Shapes: K ids drawn from at a node; the outcome of all others is number K.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from decoding.speculation.acceptance.uniform_stream import SeededUniformStream, Vector
from decoding.speculation.draft import Draft, SamplingRecord

_NO_IDS: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class ReducedDraft:
    """A draft whose tokens are outcomes: the place of a token among the ids that were drawn from after its parent.

    ids_of   these ids, by parent
    """

    draft: Draft
    ids_of: Mapping[int, npt.NDArray[np.int64]]

    def list_ids(self, node: int) -> npt.NDArray[np.int64]:
        """Returns the ids drawn from after `node`, none after a leaf."""
        return self.ids_of.get(node, _NO_IDS)


def reduce_draft(draft: Draft) -> ReducedDraft:
    """Returns the draft over its reduced vocabulary. A draft with nodes must have its sampling record."""
    record = draft.sampling_record
    if record is None:
        assert not len(draft), "a draft without a sampling record"
        return ReducedDraft(draft, {})
    ids_of = {node: record.draft_probs[node][0] for node in record.children}
    outcomes = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        # Unpacked: ids of a record are distinct, and a child that was not drawn from q must fail here.
        (outcome,) = np.flatnonzero(ids_of[parent] == token)
        outcomes.append(int(outcome))
    draft_probs = {node: (np.arange(len(ids)), record.draft_probs[node][1]) for node, ids in ids_of.items()}
    reduced = SamplingRecord(record.sampling, record.children, draft_probs)
    return ReducedDraft(replace(draft, tokens=tuple(outcomes), sampling_record=reduced), ids_of)


class DeferringStream(SeededUniformStream):
    """A stream that leaves the final draw to the device: it answers with the last outcome, which no node has.

    weights_V, uniform   of that draw: weights of the outcomes, and the uniform number that decides
    """

    weights_V: Vector
    uniform: float

    def sample_index(self, weights_V: Vector) -> int:
        self.weights_V, self.uniform = weights_V, self.next_uniform()
        return len(weights_V) - 1
