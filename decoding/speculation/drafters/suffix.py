"""SuffixDecoding (arXiv 2411.04975): drafts what followed the best match of the text's end in earlier texts.

The match is selected as published: for each length, follow the most frequent continuation while its probability is at
least `min_probability`, for at most `factor` times the length of the match plus `offset` tokens; the match with the
largest sum of path probabilities is taken.

The paper matches in two trees, one of the request's own prompt and output and one of all finished answers, and takes
the match with the larger sum. Here a tree can also belong to a problem, with the texts of all its branches while they
are written: every token of the search tree once, because a forked branch continues a text that the tree has.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from decoding.core import Tokens
from decoding.speculation.drafters.ngram_hash_table import Int32s
from decoding.speculation.drafters.source import Floats, Ints, NextTokens
from decoding.speculation.drafters.text_forest import SuffixMatch, TextForest, TextName
from decoding.speculation.drafters.text_forest_kernels import follow_tokens, rank_followers
from decoding.speculation.interfaces import Branch, Feedback
from decoding.token_view import TokenView
from decoding.validation import (
    MAX_VALUE,
    require_count,
    require_not_negative,
    require_number,
    require_share,
)

MAX_TEXT_TOKENS = 100_000_000  # about 9 GB
_WIDTH = 8
_TRUST_EDGES = np.array([2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 25, 33, 49, 65, 97])  # shortest match of levels 1, 2, ...
_ALL_TEXTS = "all"  # the tree of all texts, or of all finished ones

# One context: where its places begin among those of the round, and how many they are; how many tokens deeper a draft
# may go; the probability of the path from the root to here; the number of matching tokens; the score at the root.
_States = npt.NDArray[Any]
_ROW = np.dtype([("first", "i8"), ("size", "i8"), ("budget", "i8"), ("likely", "f8"), ("match", "i8"), ("score", "f8")])


@dataclass(eq=False)
class SuffixDecoding:
    """Implements `DraftSource`.

    max_match        longest match, in tokens
    factor, offset   maximum depth of a draft: factor * length of the match + offset
    min_probability  minimum probability of a path
    across_groups    False: a tree for each problem; True: one for all problems; "both": both; "finished", as published:
                     one for each running request, and one of all finished ones
    max_tokens       maximum tokens in all trees, up to 0.1 KB each, and at least twice those of the running branches in
                     every tree; the text that ended first is evicted first, none of a running problem
    """

    max_match: int = 64
    factor: float = 1.0
    offset: float = 0.0
    min_probability: float = 0.1
    across_groups: bool | Literal["both", "finished"] = False
    max_tokens: int = 1 << 17
    forest: TextForest = field(init=False, repr=False, default_factory=TextForest)
    _running: dict[int, str] = field(init=False, repr=False, default_factory=dict)  # request -> its problem
    _places: Int32s = field(init=False, repr=False, default_factory=lambda: np.empty(0, dtype=np.int32))

    def __post_init__(self) -> None:
        require_count("max_match", self.max_match, at_least=1, at_most=1 << 16)
        require_count("max_tokens", self.max_tokens, at_least=1, at_most=MAX_TEXT_TOKENS)
        require_not_negative("factor", self.factor)
        require_number("offset", self.offset, low=-MAX_VALUE, high=MAX_VALUE)
        if not self.factor + self.offset >= 0:
            raise ValueError(f"offset must be >= -factor, got {self.offset!r}")
        require_share("min_probability", self.min_probability, above_zero=True)
        is_switch = self.across_groups is False or self.across_groups is True  # 1 equals True, and is no switch
        if not is_switch and self.across_groups not in ("both", "finished"):
            raise ValueError(f"across_groups must be true, false, both or finished, got {self.across_groups!r}")

    @property
    def feedback_k(self) -> int:
        return 0

    @property
    def has_probabilities(self) -> bool:
        return True

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all trees."""
        return len(self.forest)

    @property
    def size_bytes(self) -> int:
        """Memory of the trees, in bytes."""
        return self.forest.size_bytes

    def root_states(self, branches: Sequence[Branch]) -> _States:
        self._finish_absent(branches)
        self._evict_texts(branches)
        # All texts before any match: branches of one problem draft from each other's latest tokens.
        ends = [self._add_text(branch, branch.tokens) for branch in branches]
        rows, places, first = [], [], 0
        for branch, end in zip(branches, ends, strict=True):
            matches = [self._find_match(tree, end) for tree in self._matched_trees(branch)]
            match = max(matches, key=lambda one: one.score)  # of equals the request's, or the problem's own
            rows.append((first, len(match.places), match.budget, 1.0, match.length, match.score))
            places.append(match.places)
            first += len(match.places)
        self._places = np.concatenate([np.empty(0, dtype=np.int32), *places])
        return np.array(rows, dtype=_ROW)

    def draft_scores(self, state: _States) -> Floats:
        """Returns how many tokens the match of each context is expected to draft rightly: its score."""
        scores: Floats = state["score"].astype(np.float32)
        return scores

    def next_tokens(self, state: _States) -> NextTokens:
        """Returns log relative counts; their sum is below 1 where other tokens followed or a text ended."""
        ids = np.full((len(state), _WIDTH), -1, dtype=np.int64)
        ratios = np.zeros(ids.shape, dtype=np.float32)
        # Relative to the path: a child's own path must reach `min_probability`, not its step alone.
        likely = np.maximum(state["likely"], 1e-300)
        least = np.where(state["budget"] > 0, self.min_probability / likely, np.inf)
        rank_followers(self.forest.nodes, self._places, *_columns(state), least, ids, ratios)
        with np.errstate(divide="ignore"):  # the padding's log 0 is -inf, as `NextTokens` wants it
            logp_FK = np.log(ratios)
        return NextTokens(ids, logp_FK, np.searchsorted(_TRUST_EDGES, state["match"], side="right"))

    def advance(self, state: _States, tokens_F: Ints) -> _States:
        tokens = np.ascontiguousarray(tokens_F, dtype=np.int64)
        places, sizes, ratios = follow_tokens(self.forest.nodes, self._places, *_columns(state), tokens)
        below = state.copy()
        below["first"] = len(self._places) + np.cumsum(sizes) - sizes
        below["size"] = sizes
        below["budget"] -= 1
        below["likely"] *= ratios
        below["match"] += 1
        self._places = np.concatenate(
            [self._places, places]
        )  # the earlier ones stay: their contexts may be asked again
        return below

    def observe(self, feedback: Sequence[Feedback]) -> None:
        """Adds the accepted tokens: a branch that ends in this round has no later `root_states`. *Mutates*."""
        for outcome in feedback:
            # Without the token after them: `Feedback` has the drafted tokens only.
            accepted = [outcome.draft.tokens[node] for node in outcome.accepted_nodes]
            text = TokenView(outcome.branch.tokens, accepted)
            self._add_text(outcome.branch, text)

    def _written_trees(self, branch: Branch) -> list[Hashable]:
        """Returns the trees that the tokens of a running branch are added to, its own first."""
        if self.across_groups == "finished":
            return [branch.request_id]
        trees: list[Hashable] = [] if self.across_groups is True else [("problem", branch.group)]
        return [*trees, _ALL_TEXTS] if self.across_groups else trees

    def _matched_trees(self, branch: Branch) -> list[Hashable]:
        written = self._written_trees(branch)
        return [*written, _ALL_TEXTS] if self.across_groups == "finished" else written

    def _add_text(self, branch: Branch, tokens: Tokens | TokenView) -> int:
        """Adds a branch's text to its trees; returns its end in its own one. *Mutates*."""
        self._running[branch.request_id] = branch.group
        names = [TextName(tree, branch.request_id) for tree in self._written_trees(branch)]
        ends = [self.forest.add_text(name, branch.group, tokens) for name in names]
        return ends[0]

    def _find_match(self, tree: Hashable, end: int) -> SuffixMatch:
        return self.forest.find_match(
            tree, end, longest=self.max_match, factor=self.factor, offset=self.offset, least=self.min_probability
        )

    def _finish_absent(self, branches: Sequence[Branch]) -> None:
        """Takes requests that are not in this round as finished, and moves their texts to that tree. *Mutates*.

        One that was only preempted comes back, and its text goes on where it was.
        """
        running = {branch.request_id for branch in branches}
        for request_id in [request_id for request_id in self._running if request_id not in running]:
            group = self._running.pop(request_id)
            name = TextName(request_id, request_id)
            if name in self.forest.texts:
                self.forest.add_text(TextName(_ALL_TEXTS, request_id), group, self.forest.remove_text(name))

    def _evict_texts(self, branches: Sequence[Branch]) -> None:
        """Makes room for new tokens. *Mutates*."""
        # Texts of running branches stay, so the limit leaves space for as many new tokens: otherwise every round would
        # make room.
        num_trees = 1 if self.across_groups in (False, True) else 2
        limit = max(self.max_tokens, 2 * num_trees * sum(len(branch.tokens) for branch in branches))
        running = {branch.group for branch in branches}
        self.forest.make_room(limit, lambda text: text.group in running)


def _columns(state: _States) -> tuple[Ints, Ints]:
    return np.ascontiguousarray(state["first"]), np.ascontiguousarray(state["size"])
