"""Drafts of a compiled draft model in one call: what the call needs, and the nodes that it has fed.

Shapes: B branches, F nodes that were fed, K candidates.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, Any

import numpy as np

from decoding.core import SamplingParams
from decoding.kv.kv_cache import KVCache
from decoding.kv.slots import NO_SLOTS, Slots
from decoding.noise import wrap_seeds
from decoding.sampling_columns import SamplingColumns
from decoding.speculation.drafters.calibration import NUM_BUCKETS
from decoding.speculation.drafters.child_selection import COUPLED
from decoding.speculation.drafters.drafted_text import DraftedText
from decoding.speculation.drafters.model_drafts import HeadIds, LevelLimits, ModelDrafts, NodeChoice, RootContexts
from decoding.speculation.drafters.source import TRUST_LEVELS, Floats, Ints
from decoding.threads import count_threads

if TYPE_CHECKING:
    from decoding.model.compiled_attention import Numbers
    from decoding.model.compiled_decoder import CompiledDecoder, CompiledHead  # needs Numba

    CompiledParts = tuple[CompiledDecoder, CompiledHead]

MOST_NEW = 4
"""Committed tokens of a branch that the call computes: the last one, and those whose drafts were not fed. More of them,
as a prompt has, are computed in passes before it."""


class CalledNodes:
    """The nodes that a call has fed, numbered in this order: what `DraftNodes` is for those of `build_levels`."""

    def __init__(
        self, sequences: Items[DraftedText | None], drafts: ModelDrafts, free_slots: Slots, num_new: int
    ) -> None:
        self.num_new = num_new
        self.sequences, self.drafts = tuple(sequences), drafts
        self._slots_F = free_slots[: len(drafts.ids_FK)]
        self._tokens, self._parents, _ = drafts.nodes.ids_3N.tolist()
        self._places, self._ends = drafts.place_N.tolist(), drafts.nodes.ends_B.tolist()

    @property
    def num_fed(self) -> int:
        """How many they are."""
        return len(self._slots_F)

    def find_path(self, branch: int, tokens: Iterable[int]) -> list[int]:
        """Returns the nodes along these tokens from the root, up to the first token without one."""
        begin, end = self._ends[branch - 1] if branch else 0, self._ends[branch]
        path: list[int] = []
        last, node = -1, begin
        for token in tokens:
            # nodes come after their parents
            while node < end and (self._parents[node] != last or self._tokens[node] != token):
                node += 1
            if node == end or self._places[node] < 0:  # it was not fed
                break
            path.append(self._places[node])
            last = node - begin
        return path

    def node_slots(self, nodes: Items[int]) -> Slots:
        """Returns the slots of these nodes."""
        return self._slots_F[nodes]

    def slots_except(self, nodes: Items[int]) -> Slots:
        """Returns the slots of the other nodes."""
        is_other_F = np.ones(len(self._slots_F), dtype=np.bool_)
        is_other_F[nodes] = False
        return self._slots_F[is_other_F]

    def top_after(self, node: int) -> tuple[Ints, Floats]:
        """Returns the candidates after a node and their log-probabilities."""
        return self.drafts.ids_FK[node], self.drafts.logp_FK[node]


FIRST_CALL = (
    LevelLimits(
        np.ones(1, np.int64), np.ones(1, np.int64), np.zeros(1, np.float32), 1, 1, 0.0, 0.0, 0.0,
        np.ones(2), 0.0, 1, 1.0,
    ),
    NodeChoice(
        COUPLED, SamplingColumns.from_params([SamplingParams()]), wrap_seeds([0]), np.ones(1, np.int64),
        np.zeros(NUM_BUCKETS), np.zeros(NUM_BUCKETS), np.ones((1, TRUST_LEVELS)),
    ),
)  # fmt: skip
"""Limits and choice of one branch: arguments of the types that every call has."""


def name_call_loops(parts: CompiledParts) -> str:
    """Names the loops of the call, which are compiled for the types of these parts."""
    decoder, head = parts
    return f"drafts-{decoder.loops}-{head.loops}"


def fit_one_thread(parts: CompiledParts, num_rows: int) -> bool:
    """Returns whether passes of so many rows are to run in one thread, as those of the call do."""
    decoder, head = parts
    return count_threads(decoder.num_weights + head.num_weights, num_rows) == 1


def draft_in_one_call(
    parts: CompiledParts,
    kv: KVCache,
    pool: Numbers,
    texts: Items[DraftedText | None],
    head_ids: HeadIds,
    k: int,
    max_positions: int,
    limits: LevelLimits,
    choice: NodeChoice,
) -> CalledNodes | None:
    """Returns the drafts of these texts, None for a branch without one; None where slots are too few. *Mutates*.

    pool           K and V of all slots
    k              candidates for each context
    max_positions  of the model's window
    """
    # here: it needs Numba, which may be absent
    from decoding.speculation.drafters.level_kernels import draft_levels

    # a branch without drafts has no part in it; if it gets many new tokens, they have passes of their own
    part = [text if most else None for text, most in zip(texts, limits.nodes_B.tolist(), strict=True)]
    num_new = [0 if text is None else text.num_uncomputed for text in part]
    most_fed, total_new = limits.most_fed, sum(num_new)
    if kv.num_available < total_new + most_fed:
        return None
    nodes_B = limits.nodes_B.copy()
    ids_BK = np.full((len(texts), k), -1, dtype=np.int64)
    logp_BK = np.full((len(texts), k), -np.inf, dtype=np.float32)
    slots = kv.allocate(total_new + most_fed)
    free_slots, begin = slots[total_new:], 0
    key_slots, num_keys, new_tokens = [NO_SLOTS], [0] * len(texts), list[int]()
    for b, (text, new) in enumerate(zip(part, num_new, strict=True)):
        if text is None:
            nodes_B[b] = 0
            continue
        key_slots.append(text.view_slots(0, slots[begin : begin + new]))
        num_keys[b], begin = len(key_slots[-1]), begin + new
        if new:
            new_tokens += text.tokens[-new:]
        else:
            ids_BK[b, : len(text.top[0])], logp_BK[b, : len(text.top[1])] = text.top
    num_new_B = np.array(num_new, dtype=np.int64)
    roots = RootContexts(
        np.concatenate(key_slots), np.array(num_keys, dtype=np.int64), num_new_B,
        np.array(new_tokens, dtype=np.int64), ids_BK, logp_BK, free_slots,
    )  # fmt: skip
    decoder, head = parts
    depth, largest, most = int(limits.depth_B.max()), int(choice.ends_B.max()), max(most_fed, total_new)
    arguments: tuple[Any, ...] = (
        *decoder.list_arrays(most, max(num_keys) + depth, largest + depth), *head.list_arrays(most),
        pool, head_ids, max_positions, roots, limits._replace(nodes_B=nodes_B), choice,
    )  # fmt: skip
    drafts = draft_levels(*arguments)
    begin = 0
    for b, (text, new) in enumerate(zip(part, num_new, strict=True)):
        if text is not None and new:
            text.append_slots(slots[begin : begin + new])
            text.top = ids_BK[b], logp_BK[b]
            begin += new
    nodes = CalledNodes(part, drafts, free_slots, total_new)
    kv.pool.free(free_slots[nodes.num_fed :])
    return nodes
