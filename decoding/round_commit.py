"""Commits the outcome of a round: tokens to the requests, their KV to the prefix cache, slots back to the pool."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decoding.core import FinishReason
from decoding.kv.kv_cache import KVCache
from decoding.model.backend import TokenBatch
from decoding.model.batch import SequenceInput
from decoding.request import Request
from decoding.round_result import BatchVerifyResult
from decoding.speculation.draft import VerifyResult
from decoding.stats import EngineStats
from decoding.stopping import StopRule


class RoundCommitter:
    """Commits rounds of requests that end by `stop_rule`."""

    def __init__(self, kv: KVCache, stop_rule: StopRule, stats: EngineStats) -> None:
        self._kv, self._stop, self._stats = kv, stop_rule, stats

    def commit_results(
        self, inputs: Sequence[SequenceInput[Request]], verified: BatchVerifyResult | None, batch: TokenBatch
    ) -> list[tuple[Request, FinishReason]]:
        """Commits every input, and frees the slots of draft nodes that are not part of a text.

        Returns the requests that ended, still in the scheduler. *Mutates* requests, pool, prefix cache and counts.
        """
        attention = None if batch.recorder is None else batch.recorder.iter_sequences(batch.blocks)
        results = {} if verified is None else {item.sequence.arrival: result for item, _, result in verified}
        ended: list[tuple[Request, FinishReason]] = []
        # by row: at first of all draft nodes
        is_free, begin = np.zeros(len(batch.slots_T), dtype=bool), 0
        for item in inputs:
            if item.num_tokens > item.num_committed:
                is_free[begin + item.num_committed : begin + item.num_tokens] = True
            request = item.sequence
            request.forwards += 1
            before = request.num_computed
            reason: FinishReason | None = None
            result = results.get(request.arrival)
            if result is None:  # still filling its prompt
                request.append_slots(item.slots)
                if request.eviction is not None and request.can_insert:
                    self._kv.insert(request)  # all of it that is whole: beyond the border there are holes
            else:
                reason, nodes = self._commit_result(request, item, result)
                for place in nodes:
                    is_free[begin + place] = False
            begin += item.num_tokens
            if attention is not None:
                num_nodes = request.num_computed - before - item.num_committed
                path = () if result is None else result.accepted_nodes[:num_nodes]
                request.observe_attention(before, item.num_committed, path, next(attention))
            if reason is not None:
                ended.append((request, reason))
            elif request.eviction is not None and (is_kept := request.choose_kept()) is not None:
                self._kv.evict(request, is_kept, request.eviction.question_length)
                self._stats.evicted_by_branches += len(is_kept) - int(is_kept.sum())
        if is_free.any():
            # at once: freeing costs the same for any number of slots
            self._kv.pool.free(batch.slots_T[is_free])
        return ended

    def _commit_result(
        self, request: Request, item: SequenceInput[Request], result: VerifyResult
    ) -> tuple[FinishReason | None, list[int]]:
        """Commits a verified draft up to the end of the generation.

        Returns the reason if it ended here, and the places of the committed nodes among the item's tokens.
        """
        before = len(request.output_tokens)
        reason = request.commit_tokens(result.tokens, result.logprobs, self._stop)
        new = len(request.output_tokens) - before
        # a stop may cut the result; the last token of an uncut one has no node
        nodes = [item.num_committed + node for node in result.accepted_nodes[:new]]
        if item.num_tokens == item.num_committed:
            request.append_slots(item.slots)
        else:
            # in the order of the path, which is the order of positions
            request.append_slots(item.slots[[*range(item.num_committed), *nodes]])
            request.drafted += item.num_tokens - item.num_committed
            request.accepted += len(nodes)
            self._stats.accepted += len(nodes)
        # the first round that has the whole prompt: later rounds insert at their end only
        if request.can_insert:
            self._kv.insert(request)  # at once, so that siblings find their common prompt
        self._stats.tokens += new
        return reason, nodes
