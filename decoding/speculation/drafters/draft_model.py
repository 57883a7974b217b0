"""Draft source that runs a smaller language model: it reads the committed tokens, and drafts level by level.

It has its own KV cache. Committed tokens are computed as in `decoding.prefill`: prefixes that branches share once, and
those of finished branches are evicted when space is needed. Draft nodes have slots only until the next round, when the
accepted ones become the branch's and the others are freed.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiling_once
from decoding.core import SamplingParams, Tokens
from decoding.kv.kv_cache import KVCache
from decoding.kv.out_of_memory import MEMORY_ERRORS, is_out_of_memory
from decoding.kv.pool_memory import open_pool
from decoding.kv.slots import SlotPool
from decoding.model.backend import Backend, RunsInLoops, TokenBatch
from decoding.model.batch import SequenceInput, pack_inputs
from decoding.model.device_stream import wait_for_stream
from decoding.model.key_table import KeyTable
from decoding.scheduler import ScheduledSequence, Scheduler
from decoding.speculation.draft import MAX_DRAFT_SIZE
from decoding.speculation.drafters.acceptance_head import AcceptanceHead
from decoding.speculation.drafters.draft_nodes import NOWHERE, DraftNodes
from decoding.speculation.drafters.drafted_text import DraftedText
from decoding.speculation.drafters.model_drafts import HeadIds, LevelLimits, ModelDrafts, NodeChoice
from decoding.speculation.drafters.one_call import (
    FIRST_CALL,
    MOST_NEW,
    CalledNodes,
    draft_in_one_call,
    fit_one_thread,
    name_call_loops,
)
from decoding.speculation.drafters.source import Floats, Ints, NextTokens
from decoding.speculation.interfaces import Branch, Feedback
from decoding.token_view import TokenView
from decoding.validation import require_count, require_share

if TYPE_CHECKING:
    from decoding.speculation.drafters.one_call import CompiledParts


class ModelUpdater(Protocol):
    """Changes a draft model between rounds, by what it learns from their outcomes."""

    @property
    def feedback_k(self) -> int:
        """As that of a `Drafter`."""
        ...

    def update_model(self, feedback: Items[Feedback]) -> Backend | None:
        """Returns the model that drafts from now on, or None where it stays as it is. *Mutates* the updater."""
        ...


class RefusalLimit(NamedTuple):
    """Ends a draft below a node where P(a token of its path is refused) is above `threshold` (SpecDec++)."""

    head: AcceptanceHead
    threshold: float


class _TopTokens(NamedTuple):
    """Candidates `[W, K]` after the output rows, best first, and P(accepted) `[W]` of the rows' own tokens."""

    ids_WK: Ints
    logp_WK: Floats
    accepted_W: Floats


class DraftModel:
    """Implements `DraftSource` over a backend whose vocabulary is the target's.

    k            candidates for each context
    kv_bytes     size of the KV pool
    max_batched_tokens    tokens fed in one forward pass
    max_running_requests  maximum branches with drafts
    vocab_size   number of ids that may be drafted; an embedding may be padded beyond the tokenizer
    head_ids     the id of each output of the backend's head, where it has a part of the vocabulary only (VocabTrim,
                 arXiv 2506.22694): other ids are not drafted, q is normalised over these
    stop_rule    ends drafts where a refusal is likely
    updater      changes the model between rounds; what was computed with the old one is computed anew

    State: for each context a node of the round's `DraftNodes`.

    num_fed_tokens   tokens fed to the model so far
    num_updates      models that came from the updater so far

    Raises: ValueError naming the setting.
    """

    has_probabilities = True
    is_trained = True

    def __init__(
        self,
        backend: Backend,
        *,
        k: int = 10,
        kv_bytes: int = 1 << 28,
        max_batched_tokens: int = 1024,
        max_running_requests: int = 256,
        vocab_size: int | None = None,
        head_ids: Ints | None = None,
        stop_rule: RefusalLimit | None = None,
        updater: ModelUpdater | None = None,
    ) -> None:
        require_count("k", k, at_least=1, at_most=MAX_DRAFT_SIZE)
        require_count("vocab_size", vocab_size, at_least=1, or_null=True)
        if stop_rule is not None:
            require_share("stop_threshold", stop_rule.threshold)
        self._k, self._max_batched_tokens, self._vocab_size = k, max_batched_tokens, vocab_size
        self._head_ids, self._stop_rule, self._updater = head_ids, stop_rule, updater
        self._kv_bytes, self._max_running_requests = kv_bytes, max_running_requests
        self.num_fed_tokens = self.num_updates = 0
        self._drafts_in_one_call = False
        self._open_model(backend)
        self._compile()

    def _open_model(self, backend: Backend) -> None:
        """Starts with an empty cache for this model. *Mutates*: forgets all texts."""
        self._backend = backend
        self._parts = backend.compiled_parts if isinstance(backend, RunsInLoops) else None
        self._kv = KVCache(SlotPool.from_budget(self._kv_bytes, backend.kv_bytes_per_token))
        self._most_tokens = min(backend.max_positions, self._kv.pool.capacity)
        self._pool = open_pool(backend.new_kv_pool, self._kv.pool.capacity, backend.kv_bytes_per_token)
        self._numbers = None if self._parts is None else self._parts[0].view_numbers(self._pool)
        self._key_table = KeyTable(self._kv.pool.capacity)
        self._scheduler: Scheduler[DraftedText] = Scheduler(
            self._kv,
            max_running_requests=self._max_running_requests,
            max_batched_tokens=self._max_batched_tokens,
            memory_advice="a smaller kv_mib of the draft model leaves more memory for its rounds",
        )
        self._texts: dict[int, DraftedText] = {}
        # kept: every round begins without nodes
        self._nodes = self._no_nodes = DraftNodes((), self._k)
        self._called: CalledNodes | None = None  # the last round's nodes, where one call drafted them
        ids_V = np.arange(backend.vocab_size) if self._head_ids is None else self._head_ids
        most = backend.vocab_size if self._vocab_size is None else self._vocab_size
        is_token_V = ids_V < most
        num_whole = len(ids_V) if is_token_V.all() else int(is_token_V.argmin())
        self._output_ids = HeadIds(np.where(is_token_V, ids_V, -1), num_whole)
        self._path_acceptance: dict[int, float] = {}  # of fed nodes: P(all tokens of the path to it are accepted)

    def _compile(self) -> None:
        """Loads the machine code of `draft_levels`, which the first start compiles: not during the first request."""
        if (parts := self._find_parts(1)) is not None:
            self._drafts_in_one_call = True
            with compiling_once("drafts", name_call_loops(parts)):
                self.draft_levels([Branch(0, "", (0,), 0, SamplingParams(), 2)], *FIRST_CALL)
            self._reset_state()

    def _find_parts(self, num_branches: int) -> CompiledParts | None:
        """Returns what drafts of so many branches in one call; None where it cannot."""
        parts = self._parts if self._stop_rule is None else None
        return parts if parts is not None and fit_one_thread(parts, num_branches) else None

    @property
    def feedback_k(self) -> int:
        """See `DraftSource`."""
        return 0 if self._updater is None else self._updater.feedback_k

    def root_states(self, branches: Items[Branch]) -> Ints:
        """Returns the roots; a branch that does not fit the cache or the model's window gets no draft."""
        try:
            self._sync_texts({branch.request_id: branch.tokens for branch in branches})
            self._prefill_committed()
        except BaseException:
            self._reset_state()
            raise
        # A text may still have uncomputed tokens: prefill stops when the pool is full.
        texts = [self._texts.get(branch.request_id) for branch in branches]
        ready = [text if text is not None and not text.num_uncomputed else None for text in texts]
        self._nodes = DraftNodes(ready, self._k)
        index_of = {text.arrival: i for i, text in enumerate(ready) if text is not None}
        if index_of:
            # One by one: as many as the model has where it has fewer than k, or k that were stored for a node.
            for arrival in sorted(index_of):
                ids_K, logp_K = self._texts[arrival].top
                self._nodes.store_top([index_of[arrival]], ids_K[None], logp_K[None])
        return np.array([self._nodes.root_node(i) for i in range(len(branches))], dtype=np.int64)

    def draft_levels(self, branches: Items[Branch], limits: LevelLimits, choice: NodeChoice) -> ModelDrafts | None:
        """See `LevelSource`: None where a pass has more than one thread, or the model is not compiled."""
        if not self._drafts_in_one_call or (parts := self._find_parts(len(branches))) is None:
            return None
        try:
            self._sync_texts({branch.request_id: branch.tokens for branch in branches})
            self._prefill_committed(most_left=MOST_NEW)
            texts = [self._texts.get(branch.request_id) for branch in branches]
            # one that waits has no prefix, and holds no slots
            ready = [
                None if text is None or text.prefix_node is None or text.num_uncomputed > MOST_NEW else text
                for text in texts
            ]
            window = self._backend.max_positions
            assert self._numbers is not None, "it has parts"
            nodes = draft_in_one_call(
                parts, self._kv, self._numbers, ready, self._output_ids, self._k, window, limits, choice
            )
        except BaseException as error:
            # levels feed fewer nodes in a pass
            self._drafts_in_one_call = not (isinstance(error, MEMORY_ERRORS) and is_out_of_memory(error))
            self._reset_state()
            raise
        if nodes is None:
            return None
        self._called = nodes
        self.num_fed_tokens += nodes.num_new + nodes.num_fed
        return nodes.drafts

    def needs_pass(self, state: Ints) -> npt.NDArray[np.bool_]:
        """See `TakesPasses`."""
        return np.isin(state, self._nodes.unfed_nodes(state.tolist()))

    def next_tokens(self, state: Ints) -> NextTokens:
        """Runs the model over the contexts that are not computed yet."""
        # Parents first, so a cut at the free slots never leaves a fed node without its parent.
        unfed = self._nodes.unfed_nodes(state.tolist())[: self._kv.num_available]
        try:
            most = min(self._max_batched_tokens, self._scheduler.limit.tokens)
            for first in range(0, len(unfed), most):
                self._feed_nodes(unfed[first : first + most])
        except BaseException:
            self._reset_state()
            raise
        ids_FK, logp_FK = self._nodes.top_tokens(state)
        if self._stop_rule is not None:
            # only here, not where they are stored: an accepted node is the next root, and has candidates
            refused_F = np.array([1 - self._path_acceptance.get(node, 1.0) for node in state.tolist()])
            ends_F = refused_F > self._stop_rule.threshold
            ids_FK[ends_F], logp_FK[ends_F] = -1, -np.inf
        return NextTokens(ids_FK, logp_FK, np.zeros(len(state), dtype=np.int64))

    def advance(self, state: Ints, tokens_F: Ints) -> Ints:
        children = [self._child_node(*step) for step in zip(state.tolist(), tokens_F.tolist(), strict=True)]
        return np.array(children, dtype=np.int64)

    def observe(self, feedback: Items[Feedback]) -> None:
        """Lets the updater learn; the tokens of the next round's branches show which nodes were accepted."""
        if self._updater is not None and (backend := self._updater.update_model(feedback)) is not None:
            self.num_updates += 1
            # the pool and the model that are freed now may be of the stream that loaded them
            wait_for_stream(self._pool.device)
            self._open_model(backend)

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

    def _sync_texts(self, branches: dict[int, Tokens | TokenView]) -> None:
        """Commits the accepted nodes of the last round; then extends, removes and adds texts. *Mutates*."""
        places = {text.arrival: i for i, text in enumerate(self._drafted_nodes.sequences) if text is not None}
        accepted_nodes: list[int] = []
        ended: list[DraftedText] = []
        for text in self._texts.values():
            if (tokens := self._find_new_tokens(text, branches)) is None:
                ended.append(text)
            elif (place := places.get(text.arrival)) is None:
                text.append_tokens(tokens)
            else:
                accepted_nodes += self._commit_nodes(place, text, tokens)
        self._drop_nodes(keep=accepted_nodes)
        for text in ended:
            self._scheduler.remove_sequence(self._texts.pop(text.arrival))
        for request_id, all_tokens in branches.items():
            if request_id not in self._texts and self._fits_pool(all_tokens) and self._has_ids(all_tokens):
                text = self._texts[request_id] = DraftedText(request_id, all_tokens[:])
                self._scheduler.add_waiting(text)

    def _find_new_tokens(self, text: DraftedText, branches: dict[int, Tokens | TokenView]) -> Tokens | None:
        """Returns the tokens that a text does not have yet; None where its branch has ended, or does not go on."""
        tokens, length = branches.get(text.arrival, ()), len(text.tokens)
        if len(tokens) < length or not self._fits_pool(tokens):
            return None
        # A request's tokens only grow, so the length shows whether it continues; only new ids are checked.
        new = tokens[length:]
        return new if self._has_ids(new) else None

    def _has_ids(self, tokens: Tokens | TokenView) -> bool:
        return max(tokens, default=0) < self._backend.vocab_size

    def _fits_pool(self, tokens: Tokens | TokenView) -> bool:
        return len(tokens) <= self._most_tokens

    def _commit_nodes(self, branch: int, text: DraftedText, tokens: Tokens) -> list[int]:
        """Adds committed tokens; returns the fed nodes among them, whose slots now belong to the text."""
        nodes = self._drafted_nodes
        # Nodes that were added but not fed end the path: their tokens have no KV and go through prefill.
        path = nodes.find_path(branch, tokens)
        text.append_tokens(tokens)
        text.append_slots(nodes.node_slots(path))
        if path and not text.num_uncomputed:
            text.top = nodes.top_after(path[-1])
        return path

    def _drop_nodes(self, keep: Items[int]) -> None:
        self._kv.pool.free(self._drafted_nodes.slots_except(keep))
        self._clear_nodes()

    @property
    def _drafted_nodes(self) -> DraftNodes | CalledNodes:
        return self._nodes if self._called is None else self._called

    def _clear_nodes(self) -> None:
        self._nodes, self._called, self._path_acceptance = self._no_nodes, None, {}

    def _prefill_committed(self, most_left: int = 0) -> None:
        """Computes committed tokens that are not in the cache yet, as far as there are slots. *Mutates*.

        Ends where no text has more than `most_left` of them.
        """
        while True:
            if self._scheduler.waiting:
                self._scheduler.admit_waiting()
            # those that wait for a prefix wait until it is whole
            if not self._scheduler.waiting and all(s.num_uncomputed <= most_left for s in self._scheduler.running):
                return
            scheduled = self._scheduler.schedule_round()
            if not scheduled:
                return
            self._run_prefill(scheduled)

    def _run_prefill(self, scheduled: Items[ScheduledSequence[DraftedText]]) -> None:
        scheduled = sorted(scheduled, key=lambda one: one.sequence.arrival)
        slots, start, inputs = self._kv.allocate(sum(one.num_tokens for one in scheduled)), 0, []
        for one in scheduled:
            # Only the last token of a complete text needs candidates; [n, n) of an incomplete one is no row.
            first_output = one.num_tokens - 1 if one.is_complete else one.num_tokens
            inputs.append(
                SequenceInput(one.sequence, one.num_tokens, slots[start : start + one.num_tokens], first_output)
            )
            start += one.num_tokens
        batch, ordered = pack_inputs(inputs, self._backend, self._key_table)
        top = self._run_model(batch)
        row = 0
        for sequence_input in ordered:  # the packed order, which is that of the output rows
            text = sequence_input.sequence
            assert isinstance(text, DraftedText)
            text.append_slots(sequence_input.slots)
            if sequence_input.first_output == sequence_input.num_tokens:
                continue
            text.top = top.ids_WK[row], top.logp_WK[row]
            row += 1
            if not text.inserted:
                self._kv.insert(text)  # at once, so that siblings find their common prompt
                text.inserted = True

    def _feed_nodes(self, nodes: Items[int]) -> None:
        """Runs the model over draft nodes. *Mutates* the nodes."""
        slots = self._kv.allocate(len(nodes))
        batch, rows = self._nodes.make_batch(nodes, slots, self._backend, self._key_table)
        top = self._run_model(batch)
        self._nodes.store_top(rows, top.ids_WK, top.logp_WK)
        for node, accepted in sorted(zip(rows, top.accepted_W.tolist(), strict=True)):  # parents first
            above = self._path_acceptance.get(self._nodes.parent_of(node), 1.0)
            self._path_acceptance[node] = above * accepted

    def _run_model(self, batch: TokenBatch) -> _TopTokens:
        """Returns the candidates after the output rows.

        Raises: what says that memory is used up; later passes are then smaller. This round has no drafts.
        """
        self.num_fed_tokens += len(batch.tokens_T)
        try:
            outputs = self._compute_top(batch)
        except MEMORY_ERRORS as error:
            if is_out_of_memory(error):
                self._scheduler.limit.shrink(len(batch.tokens_T), 0, error)
            raise
        self._scheduler.limit.count_fitted()
        return outputs

    def _compute_top(self, batch: TokenBatch) -> _TopTokens:
        hidden = self._backend.forward(batch, self._pool)
        if not len(batch.logits_indices):
            none = np.empty((0, 0), dtype=np.float32)
            return _TopTokens(none.astype(np.int64), none, none.reshape(0))
        # Normalised over all ids and cut afterwards: padding ids keep their share, so probabilities may sum to below 1.
        logp_WV = self._backend.apply_head(hidden).float().log_softmax(-1)
        if self._head_ids is None:
            logp_WV = logp_WV[:, : self._vocab_size]
        logp_WK, ids_WK = logp_WV.topk(min(self._k, logp_WV.shape[1]), dim=-1)
        ids = ids_WK.cpu().numpy() if self._head_ids is None else self._head_ids[ids_WK.cpu().numpy()]
        accepted_W = np.ones(len(ids), dtype=np.float32)
        if self._stop_rule is not None:
            accepted_W = self._stop_rule.head.predict_logits(hidden).sigmoid().cpu().numpy()
        return _TopTokens(ids, logp_WK.cpu().numpy(), accepted_W)

    def _reset_state(self) -> None:
        """Starts over after a failed forward pass: slots allocated for it have no owner."""
        self._scheduler.abort_running()
        self._scheduler.waiting.clear()
        self._texts.clear()
        self._clear_nodes()
