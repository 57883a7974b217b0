"""Draft source that runs a smaller language model: it reads the committed tokens, and drafts level by level.

It has its own KV cache. Committed tokens are computed as in `decoding.prefill`: prefixes that branches share once, and
those of finished branches are evicted when space is needed. Draft nodes have slots only until the next round, when the
accepted ones become the branch's and the others are freed.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np

from decoding.core import Tokens
from decoding.kv.kv_cache import KVCache
from decoding.kv.sequence import TokenSequence
from decoding.kv.shared_prefix import SharedPrefixGroup, group_by_prefix
from decoding.kv.slots import SlotPool
from decoding.model.backend import Backend, TokenBatch
from decoding.model.batch import SequenceInput, pack_batch
from decoding.scheduler import ScheduledSequence, Scheduler
from decoding.speculation.drafters.draft_nodes import NOWHERE, DraftNodes
from decoding.speculation.drafters.source import Floats, Ints, NextTokens
from decoding.speculation.interfaces import Branch, Feedback
from decoding.validation import is_count


class _DraftedText(TokenSequence):
    """A branch in the draft model's cache; `top` are the candidates after its last token, once all are computed."""

    def __init__(self, request_id: int, tokens: Tokens) -> None:
        super().__init__(request_id, tokens)
        self.top: tuple[Ints, Floats] = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32))
        self.inserted = False


class DraftModel:
    """Implements `DraftSource` over a backend whose vocabulary is the target's.

    k            candidates for each context
    kv_bytes     size of the KV pool
    max_batched_tokens    tokens fed in one forward pass
    max_running_requests  maximum branches with drafts
    vocab_size   ids from here on are never drafted: the padding of an embedding beyond the tokenizer

    State: a node of the round's `DraftNodes` for each context.

    num_fed_tokens   tokens fed so far
    """

    feedback_k = 0
    has_probabilities = True

    def __init__(
        self,
        backend: Backend,
        *,
        k: int = 10,
        kv_bytes: int = 1 << 28,
        max_batched_tokens: int = 1024,
        max_running_requests: int = 256,
        vocab_size: int | None = None,
    ) -> None:
        knobs = {
            "k": k,
            "kv_bytes": kv_bytes,
            "max_batched_tokens": max_batched_tokens,
            "max_running_requests": max_running_requests,
        }
        for name, value in knobs.items():
            if not is_count(value, at_least=1):
                raise ValueError(f"{name} must be an int >= 1, got {value!r}")
        if vocab_size is not None and not is_count(vocab_size, at_least=1):
            raise ValueError(f"vocab_size must be an int >= 1 or None, got {vocab_size!r}")
        self._backend, self._k, self._max_batched_tokens, self._vocab_size = backend, k, max_batched_tokens, vocab_size
        self._kv = KVCache(SlotPool.from_budget(kv_bytes, backend.kv_bytes_per_token))
        self._pool = backend.new_kv_pool(self._kv.pool.capacity)
        self._scheduler: Scheduler[_DraftedText] = Scheduler(
            self._kv, max_running_requests=max_running_requests, max_batched_tokens=max_batched_tokens
        )
        self._texts: dict[int, _DraftedText] = {}
        self._nodes = DraftNodes((), k)
        self._groups: list[tuple[list[int], int]] = []  # of the round's branches: those, and how many pages in common
        self._grouping: tuple[object, list[SharedPrefixGroup]] = (None, [])
        self.num_fed_tokens = 0

    def root_states(self, branches: Items[Branch]) -> Ints:
        """Returns the roots; a branch that does not fit the cache or the model's window gets no draft."""
        try:
            self._sync_texts({branch.request_id: branch.tokens for branch in branches})
            self._prefill_committed()
        except BaseException:
            self._reset_state()
            raise
        texts = [self._texts.get(branch.request_id) for branch in branches]
        ready = [text if text is not None and not text.num_uncomputed else None for text in texts]
        self._nodes = DraftNodes(ready, self._k)
        at = {text.arrival: i for i, text in enumerate(ready) if text is not None}
        if at:
            ordered = [self._texts[arrival] for arrival in sorted(at)]
            self._groups = [
                ([at[ordered[i].arrival] for i in group.members], group.shared_length)
                for group in self._group_texts(ordered)
            ]
            ids, logp = zip(*(text.top for text in ordered), strict=True)
            self._nodes.store_top([at[text.arrival] for text in ordered], np.stack(ids), np.stack(logp))
        return np.array([self._nodes.root_node(i) for i in range(len(branches))], dtype=np.int64)

    def next_tokens(self, state: Ints) -> NextTokens:
        """Runs the model over the contexts that are not computed yet."""
        unfed = self._nodes.unfed_nodes(state.tolist())[: self._kv.num_available]
        try:
            for first in range(0, len(unfed), self._max_batched_tokens):
                self._feed_nodes(unfed[first : first + self._max_batched_tokens])
        except BaseException:
            self._reset_state()
            raise
        return NextTokens(*self._nodes.top_tokens(state), np.zeros(len(state), dtype=np.int64))

    def advance(self, state: Ints, tokens_F: Ints) -> Ints:
        below = [self._child_node(*step) for step in zip(state.tolist(), tokens_F.tolist(), strict=True)]
        return np.array(below, dtype=np.int64)

    def observe(self, feedback: Items[Feedback]) -> None:
        """Nothing to learn: the next round's branches say what was accepted."""

    def assert_invariants(self) -> None:
        """Asserts the account of slots. *Mutates*: frees the draft nodes."""
        self._drop_nodes(keep=[])
        self._scheduler.assert_invariants()

    def _child_node(self, node: int, token: int) -> int:
        if node == NOWHERE or token >= self._backend.vocab_size:
            return NOWHERE
        return (
            NOWHERE
            if self._nodes.token_position(node) + 1 >= self._backend.max_positions
            else self._nodes.add_node(node, token)
        )

    def _sync_texts(self, branches: dict[int, Tokens]) -> None:
        """Ends the last round: keeps accepted nodes, extends texts, adds new and removes finished ones. *Mutates*."""
        accepted: list[int] = []
        for i, text in enumerate(self._nodes.sequences):
            if text is not None and self._extends(text, branches):
                assert isinstance(text, _DraftedText)
                accepted += self._commit_nodes(i, text, branches[text.arrival][len(text.tokens) :])
        self._drop_nodes(keep=accepted)
        for text in list(self._texts.values()):
            if self._extends(text, branches):
                text.append_tokens(branches[text.arrival][len(text.tokens) :])
            else:
                self._scheduler.remove_sequence(self._texts.pop(text.arrival))
        for request_id, tokens in branches.items():
            if request_id not in self._texts and self._fits_pool(tokens) and max(tokens) < self._backend.vocab_size:
                text = self._texts[request_id] = _DraftedText(request_id, tokens)
                self._scheduler.add_waiting(text)

    def _extends(self, text: TokenSequence, branches: dict[int, Tokens]) -> bool:
        tokens = branches.get(text.arrival, ())
        known = len(text.tokens)
        return (
            len(tokens) >= known
            and self._fits_pool(tokens)
            and max(tokens[known:], default=0) < self._backend.vocab_size
        )

    def _fits_pool(self, tokens: Tokens) -> bool:
        return len(tokens) <= min(self._backend.max_positions, self._kv.pool.capacity)

    def _commit_nodes(self, branch: int, text: _DraftedText, tokens: Tokens) -> list[int]:
        """Adds committed tokens; returns the fed nodes among them, whose slots now belong to the text."""
        path = self._nodes.find_path(branch, tokens)
        text.append_tokens(tokens)
        text.append_slots(self._nodes.node_slots(path))
        if path and not text.num_uncomputed:
            ids_FK, logp_FK = self._nodes.top_tokens(np.array(path[-1:]))
            text.top = ids_FK[0], logp_FK[0]
        return path

    def _drop_nodes(self, keep: Items[int]) -> None:
        pages = self._nodes.node_slots()
        self._kv.pool.free(pages[~np.isin(pages, self._nodes.node_slots(keep))])
        self._nodes, self._groups = DraftNodes((), self._k), []

    def _prefill_committed(self) -> None:
        """Computes committed tokens that are not in the cache yet, as far as there is space."""
        while True:
            self._scheduler.admit_waiting()
            turns = self._scheduler.schedule_round()
            if not turns:
                return
            self._run_prefill(turns)

    def _run_prefill(self, turns: Items[ScheduledSequence[_DraftedText]]) -> None:
        turns = sorted(turns, key=lambda turn: turn.sequence.arrival)
        pages, at, feeds = self._kv.allocate(sum(turn.num_tokens for turn in turns)), 0, []
        for turn in turns:
            wanted = turn.num_tokens - 1 if turn.is_complete else turn.num_tokens
            feeds.append(SequenceInput(turn.sequence, turn.num_tokens, pages[at : at + turn.num_tokens], wanted))
            at += turn.num_tokens
        batch, ordered = pack_batch(feeds, self._group_texts([turn.sequence for turn in turns]))
        ids_WK, logp_WK = self._run_model(batch)
        row = 0
        for feed in ordered:
            text = feed.sequence
            assert isinstance(text, _DraftedText)
            text.append_slots(feed.slots)
            if feed.first_output == feed.num_tokens:
                continue
            text.top = ids_WK[row], logp_WK[row]
            row += 1
            if not text.inserted:
                self._kv.insert(text)  # at once, so that siblings find their common prompt
                text.inserted = True

    def _group_texts(self, texts: list[_DraftedText]) -> list[SharedPrefixGroup]:
        # Valid until a sequence joins, leaves or is inserted into the prefix cache: usually from prefill to drafts.
        key = [(text, text.num_cached) for text in texts]
        if self._grouping[0] != key:
            self._grouping = key, group_by_prefix(texts)
        return self._grouping[1]

    def _feed_nodes(self, nodes: Items[int]) -> None:
        """Runs the model over draft nodes. *Mutates* the nodes."""
        batch, rows = self._nodes.make_batch(nodes, self._kv.allocate(len(nodes)), self._groups)
        self._nodes.store_top(rows, *self._run_model(batch))

    def _run_model(self, batch: TokenBatch) -> tuple[Ints, Floats]:
        """Ids and log-probabilities of the candidates after the wanted rows, best first."""
        self.num_fed_tokens += len(batch.tokens_T)
        hidden = self._backend.forward(batch, self._pool)
        if not len(batch.logits_indices):
            return np.empty((0, 0), dtype=np.int64), np.empty((0, 0), dtype=np.float32)
        logp_WV = self._backend.apply_head(hidden).float().log_softmax(-1)[:, : self._vocab_size]
        logp_WK, ids_WK = logp_WV.topk(min(self._k, logp_WV.shape[1]), dim=-1)
        return ids_WK.cpu().numpy(), logp_WK.cpu().numpy()

    def _reset_state(self) -> None:
        """Starts over after a failed forward pass: slots allocated for it have no owner."""
        self._scheduler.abort_running()
        self._scheduler.waiting.clear()
        self._texts.clear()
        self._nodes, self._groups = DraftNodes((), self._k), []
