"""STAND: drafts from the target's distributions after the same few tokens, anywhere in this problem.

A table per problem maps the last n ids to the target's averaged top probabilities (arXiv 2506.04708). All branches
share it, and every verified row updates it; the paper leaves out those of rejected draft tokens. Where the paper takes
the longest known context alone, `mix` interpolates all of them as PPM does, weighted by the measured precision of each
order.

Shapes: F contexts, O orders (the last id in the last column), Z salts: the problem's, then the one of all problems.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import is_

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled
from decoding.speculation.draft import MAX_DRAFT_SIZE
from decoding.speculation.drafters.best_first import TableLookup
from decoding.speculation.drafters.ngram_hash_table import Keys, count_stored_orders
from decoding.speculation.drafters.ngram_table import NGramTable
from decoding.speculation.drafters.source import Ints, NextTokens
from decoding.speculation.interfaces import Branch, Feedback
from decoding.validation import require_count, require_switch

_SHARED_SALT = 1  # salt of the entries that all problems share
MAX_CAPACITY = 100_000_000  # entries; at the default width about 10 GB
LOAD_CAPACITY = range(400_000, 4_000_001)
"""Entries of a table that is sized from the load: 64 to 640 MB at the default width, when they are used."""
_MAX_PROBLEMS = 4096  # with a remembered salt; the entries of older ones were evicted long before
_MAX_REQUESTS = 8192  # of which it is remembered how much was learned
_MOST_MISSED = 256  # tokens that one update learns of rounds that it has not seen: about a quarter of a millisecond


@dataclass(frozen=True)
class _TableStates:
    """Contexts of the frontier nodes."""

    salts_FZ: Keys
    tails_FO: Ints

    def __getitem__(self, rows: Ints) -> _TableStates:
        return _TableStates(self.salts_FZ[rows], self.tails_FO[rows])


class _LatestContexts:
    """Keeps the contexts of the branches that were drafted for, which are learned from next, in another order."""

    def __init__(self) -> None:
        self._branches: list[Branch] = []
        self._states: _TableStates | None = None

    def find(self, branches: Sequence[Branch]) -> _TableStates | None:
        """Returns the contexts of these branches, or None where one of them is another object."""
        if self._states is None:
            return None
        if len(branches) == len(self._branches) and all(map(is_, branches, self._branches)):
            return self._states
        # by `id` of a branch: while it is kept, its number is of nothing else
        row_of = {id(branch): row for row, branch in enumerate(self._branches)}
        rows = [row_of.get(id(branch), -1) for branch in branches]
        return None if min(rows, default=-1) < 0 else self._states[np.array(rows)]

    def store(self, branches: Sequence[Branch], states: _TableStates) -> None:
        """Keeps these contexts in place of the earlier ones. *Mutates*."""
        self._branches, self._states = list(branches), states


@dataclass(frozen=True)
class Stand:
    """Implements `DraftSource` with n-gram distributions.

    The defaults are those of this project; `conf/speculation/stand_published.yaml` has the paper's.

    max_order    longest context, in tokens; the orders tried are ..., 12, 8, 6, 4, 3, 2, 1, between it and min_order
    width        tokens stored per context
    mix          interpolate the orders; False takes the longest known context alone
    prompt       learn the n-grams of a problem's prompt before its first token (cold start)
    rejected     learn also from what the target would have written after rejected draft tokens
    shared       store one more table over all problems, looked up after that of the problem (cold start)
    recent       a context's distribution is the mean of about so many last ones, since long texts change; None: of all
    capacity     maximum entries over all problems; the least recently updated are evicted. None: as many as the running
                 branches have n-grams, within `LOAD_CAPACITY`
    """

    max_order: int = 12
    min_order: int = 1
    width: int = 10
    mix: bool = True
    prompt: bool = True
    rejected: bool = True
    shared: bool = True
    recent: int | None = 16
    capacity: int | None = None
    has_probabilities: bool = True
    table: NGramTable = field(init=False, repr=False, compare=False)
    _salts: dict[str, int] = field(init=False, repr=False, compare=False, default_factory=dict)
    _latest: _LatestContexts = field(init=False, repr=False, compare=False, default_factory=_LatestContexts)
    # request -> number of its tokens that were learned
    _learned_lengths: dict[int, int] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("max_order", "min_order", "width"):
            require_count(name, getattr(self, name), at_least=1, at_most=MAX_DRAFT_SIZE)
        require_count("recent", self.recent, at_least=2, or_null=True)
        require_count("capacity", self.capacity, at_least=1, at_most=MAX_CAPACITY, or_null=True)
        for name in ("mix", "prompt", "rejected", "shared"):
            require_switch(name, getattr(self, name))
        if self.min_order > self.max_order:
            raise ValueError(f"min_order must be at most max_order={self.max_order}, got {self.min_order}")
        table = NGramTable(
            width=self.width,
            # until the load is known: what is read before must have room
            capacity=self.capacity or LOAD_CAPACITY.stop - 1,
            orders=self.max_order,
            salts=2 if self.shared else 1,
            recent=self.recent,
        )
        object.__setattr__(self, "table", table)

    @property
    def feedback_k(self) -> int:
        return self.width

    @property
    def num_problems(self) -> int:
        """Number of problems with a remembered salt."""
        return len(self._salts)

    @property
    def size_bytes(self) -> int:
        """Memory of the table, in bytes."""
        return self.table.size_bytes

    def root_states(self, branches: Sequence[Branch]) -> _TableStates:
        if self.capacity is None:
            entries = self._entries_per_token * sum(len(branch.tokens) for branch in branches)
            # what earlier runs have learned does not push out what this one learns
            least = LOAD_CAPACITY.start + self.table.num_added
            self.table.capacity = min(max(entries, least), LOAD_CAPACITY.stop - 1)
        return self._contexts_of(branches)

    def _contexts_of(self, branches: Sequence[Branch]) -> _TableStates:
        if (states := self._latest.find(branches)) is not None:
            return states
        salts = [self._salt_of(branch) for branch in branches]
        tails = np.array([self._tail_of(branch) for branch in branches], dtype=np.int64)
        states = _TableStates(self._salt_columns(salts), tails.reshape(-1, self.max_order))
        self._latest.store(branches, states)
        return states

    @property
    def _entries_per_token(self) -> int:
        return count_stored_orders(self.max_order, self.min_order) * (2 if self.shared else 1)

    def next_tokens(self, state: _TableStates) -> NextTokens:
        return NextTokens(
            *self.table.next_tokens(state.salts_FZ, state.tails_FO, self.min_order, only_longest=not self.mix)
        )

    def advance(self, state: _TableStates, tokens_F: Ints) -> _TableStates:
        # A new array, not a shift in place: siblings advance from the same parent state.
        return _TableStates(state.salts_FZ, np.concatenate([state.tails_FO[:, 1:], tokens_F[:, None]], axis=1))

    def table_lookup(self, branches: Sequence[Branch]) -> TableLookup:
        """Returns the arguments of `build_best_first`."""
        state = self.root_states(branches)
        table = self.table
        return TableLookup(
            table.entries, state.salts_FZ, state.tails_FO, self.min_order, table.order_weights, not self.mix
        )

    def observe(self, feedback: Sequence[Feedback]) -> None:
        if not feedback:
            return
        self._learn_missed([outcome.branch for outcome in feedback])
        for outcome in feedback:
            # the rows of this round: after its last token, and after each accepted node
            self._learned_lengths[outcome.branch.request_id] += 1 + len(outcome.accepted_nodes)
        salts, tails = self._fed_contexts(feedback)
        ids = np.concatenate([outcome.topk_ids for outcome in feedback])
        # In float32, the type of the entries: Numba would compile every function once more for float64.
        p = np.exp(np.concatenate([outcome.topk_logprobs for outcome in feedback]), dtype=np.float32)
        if not self.rejected:
            is_committed = np.concatenate([_committed_rows(outcome) for outcome in feedback])
            salts, tails, ids, p = salts[is_committed], tails[is_committed], ids[is_committed], p[is_committed]
        self.table.add_observations(salts, tails, self.min_order, ids, p)

    def _learn_missed(self, branches: Sequence[Branch]) -> None:
        """Learns what branches have written in rounds without feedback, the newest tokens first. *Mutates*."""
        missed = []
        for branch in branches:
            length = len(branch.tokens)
            begin = self._learned_lengths.pop(branch.request_id, None)
            if begin is None:  # the text before the request was learned with others, or is the prompt
                begin = length - (branch.params.max_tokens - branch.remaining)
            if 0 < begin < length:
                missed.append((branch, begin))
            # popped and added again: the first in order is the least recently used
            self._learned_lengths[branch.request_id] = length
        while len(self._learned_lengths) > max(_MAX_REQUESTS, len(branches)):
            del self._learned_lengths[next(iter(self._learned_lengths))]
        most = max(1, _MOST_MISSED // max(1, len(missed)))
        self._learn_texts([(branch, max(begin, len(branch.tokens) - most)) for branch, begin in missed])

    def _learn_texts(self, texts: Sequence[tuple[Branch, int]]) -> None:
        """Learns what followed each context of these branches, from their token number `begin` >= 1 on. *Mutates*.

        A token is known there and not its distribution. It is not stored under the shared salt: prompts of other
        problems do not predict answers, and it would double the time.
        """
        if not texts:
            return
        padded, firsts, ids, salts = list[int](), list[int](), list[int](), list[int]()
        for branch, begin in texts:
            count = len(branch.tokens) - begin
            firsts += range(len(padded), len(padded) + count)  # where the context of each token begins
            padded += (-1,) * (self.max_order - begin)
            padded += branch.tokens[max(0, begin - self.max_order) : len(branch.tokens) - 1]
            ids += branch.tokens[begin:]
            salts += [self._salt_of(branch)] * count
        ids_F1 = np.array(ids, dtype=np.int64)[:, None]
        salts_F1 = np.array(salts, dtype=np.uint64)[:, None]
        tails_FO = np.array(padded, dtype=np.int64)[np.array(firsts)[:, None] + np.arange(self.max_order)]
        p_F1 = np.ones(ids_F1.shape, dtype=np.float32)
        self.table.add_observations(salts_F1, tails_FO, self.min_order, ids_F1, p_F1)

    def _salt_columns(self, salts: Sequence[int]) -> Keys:
        # The order of the columns is that of the lookup: the problem's entries take their share first.
        rows = [(salt, _SHARED_SALT) if self.shared else (salt,) for salt in salts]
        return np.array(rows, dtype=np.uint64).reshape(len(salts), 2 if self.shared else 1)

    def _salt_of(self, branch: Branch) -> int:
        salt = self._salts.get(branch.group)
        return self._add_problem(branch) if salt is None else salt

    def _add_problem(self, branch: Branch) -> int:
        """Returns the salt of a new problem, and learns the n-grams of its prompt. *Mutates*."""
        if len(self._salts) >= _MAX_PROBLEMS:
            # Only the salt: it is a hash of the name, so a problem that returns finds its entries again.
            del self._salts[next(iter(self._salts))]
        salt = int.from_bytes(hashlib.blake2b(branch.group.encode(), digest_size=7).digest(), "little")
        self._salts[branch.group] = salt
        if self.prompt and len(branch.tokens) > 1:
            self._learn_texts([(branch, 1)])
        return salt

    def _tail_of(self, branch: Branch) -> tuple[int, ...]:
        # A negative count of -1 is the empty tuple; -1 is no token id, so padded contexts match padded ones only.
        return (-1,) * (self.max_order - len(branch.tokens)) + branch.tokens[-self.max_order :]

    def _fed_contexts(self, feedback: Sequence[Feedback]) -> tuple[Keys, Ints]:
        """Returns the salts and the last O ids at every fed row, branch by branch, the root's row first."""
        roots = self._contexts_of([outcome.branch for outcome in feedback])
        sizes_B = np.array([len(outcome.draft) for outcome in feedback], dtype=np.int64)
        tokens_N = np.concatenate([outcome.draft.columns.tokens_N for outcome in feedback])
        parents_N = np.concatenate([outcome.draft.columns.parents_N for outcome in feedback])
        return _extend_contexts(roots.salts_FZ, roots.tails_FO, sizes_B, tokens_N, parents_N)


def _committed_rows(outcome: Feedback) -> npt.NDArray[np.bool_]:
    """Returns for each row of a branch whether its token was committed: the root's, and those of accepted nodes."""
    is_committed = np.zeros(1 + len(outcome.draft), dtype=np.bool_)
    is_committed[[0, *(1 + node for node in outcome.accepted_nodes)]] = True
    return is_committed


@compiled
def _extend_contexts(
    salts_BZ: Keys, roots_BO: Ints, sizes_B: Ints, tokens_N: Ints, parents_N: Ints
) -> tuple[Keys, Ints]:
    """Returns the salts and tails of the roots and of the nodes below them."""
    rows, salts, orders = len(sizes_B) + len(tokens_N), salts_BZ.shape[1], roots_BO.shape[1]
    salts_FZ, tails_FO = np.empty((rows, salts), dtype=np.uint64), np.empty((rows, orders), dtype=np.int64)
    root = node = 0  # the row of this branch's root, the number of its first node
    for b in range(len(sizes_B)):
        # number by number: Numba compiles the assignment of a row for 2.5 s longer
        for order in range(orders):
            tails_FO[root, order] = roots_BO[b, order]
        for i in range(sizes_B[b]):
            # Parents come before children, so the row above is filled; parent -1 is the root's own row.
            above = root + 1 + parents_N[node + i]
            for order in range(1, orders):
                tails_FO[root + 1 + i, order - 1] = tails_FO[above, order]
            tails_FO[root + 1 + i, orders - 1] = tokens_N[node + i]
        for row in range(root, root + 1 + sizes_B[b]):
            for salt in range(salts):
                salts_FZ[row, salt] = salts_BZ[b, salt]
        root, node = root + 1 + sizes_B[b], node + sizes_B[b]
    return salts_FZ, tails_FO
