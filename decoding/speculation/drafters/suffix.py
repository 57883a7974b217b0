"""SuffixDecoding (arXiv 2411.04975): drafts what followed the best match of the text's end in all texts of the problem.

One tree per problem stores its prompt and the outputs of all its branches, every token of the search tree once: a
forked branch continues a text that the tree already has. The match is selected as published: for each length, follow
the most frequent continuation while its probability is at least `min_probability`, for at most `factor` times the
length of the match plus `offset` tokens; the match with the largest sum of path probabilities is taken.

Another tree can store the texts of all problems, in place of the trees of problems or beside them. With both kinds the
match with the larger sum is taken, as the paper takes it between the tree of a request and the one of earlier outputs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from decoding.core import Tokens
from decoding.speculation.drafters.source import Ints, NextTokens
from decoding.speculation.drafters.suffix_tree import SuffixTree
from decoding.speculation.interfaces import Branch, Feedback
from decoding.token_view import TokenView
from decoding.validation import (
    MAX_VALUE,
    require_count,
    require_not_negative,
    require_number,
    require_share,
)

MAX_TEXT_TOKENS = 100_000_000  # about 40 GB
_WIDTH = 8
_MAX_ENDS = 4096  # requests per problem whose end in the tree is remembered; those of others are searched for
_TRUST_EDGES = np.array([2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 25, 33, 49, 65, 97])  # shortest match of levels 1, 2, ...

# One context: the branch's index in the round; its node, -1 for none; how many tokens deeper a draft may go; the
# probability of the path from the root to here; the number of matching tokens.
_States = npt.NDArray[Any]
_ROW = np.dtype([("branch", "i8"), ("node", "i8"), ("budget", "i8"), ("likely", "f8"), ("match", "i8")])


@dataclass
class _TextEnd:
    """The node of the tree at which a request's text ends, and the length of the text."""

    node: int
    length: int


@dataclass
class _ProblemTexts:
    """The tree of one problem and the ends of its latest texts."""

    tree: SuffixTree = field(default_factory=SuffixTree)
    ends: OrderedDict[int, _TextEnd] = field(default_factory=OrderedDict)

    def add_text(self, request_id: int, tokens: Tokens | TokenView) -> _TextEnd:
        """Adds the new tokens of a request's text; returns its end. *Mutates*."""
        end = self.ends.get(request_id)
        # A shorter text under the same id is another one: its longest known beginning is searched for.
        if end is None or end.length > len(tokens):
            end = self.ends[request_id] = _TextEnd(*self.tree.find_prefix(tokens))
            if len(self.ends) > _MAX_ENDS:
                self.ends.popitem(last=False)
        self.ends.move_to_end(request_id)  # the first in order is the least recently used
        for token in tokens[end.length :]:
            end.node = self.tree.append_token(end.node, token)
        end.length = len(tokens)
        return end


@dataclass(frozen=True)
class _SuffixMatch:
    """A suffix of the text that occurred before; drafts continue it. `budget` is the maximum depth of a draft."""

    node: int = -1
    length: int = 0
    budget: int = 0
    score: float = 0.0


@dataclass(eq=False)
class SuffixDecoding:
    """Implements `DraftSource`.

    max_match        longest match, in tokens
    factor, offset   maximum depth of a draft: factor * length of the match + offset
    min_probability  minimum probability of a path
    across_groups    False: a tree for each problem; True: one for all problems; "both": both
    max_tokens       maximum tokens in all trees, about 0.4 KB each, and at least twice those of the running branches
                     in every tree; the one for all is begun anew first, then the least recently used problem is
                     evicted, a running one never
    """

    max_match: int = 64
    factor: float = 1.0
    offset: float = 0.0
    min_probability: float = 0.1
    across_groups: bool | Literal["both"] = False
    max_tokens: int = 1 << 17
    _problems: OrderedDict[str, _ProblemTexts] = field(init=False, repr=False, default_factory=OrderedDict)
    _all_texts: _ProblemTexts = field(init=False, repr=False, default_factory=_ProblemTexts)
    _round: list[SuffixTree] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        require_count("max_match", self.max_match, at_least=1)
        require_count("max_tokens", self.max_tokens, at_least=1, at_most=MAX_TEXT_TOKENS)
        require_not_negative("factor", self.factor)
        require_number("offset", self.offset, low=-MAX_VALUE, high=MAX_VALUE)
        if not self.factor + self.offset >= 0:
            raise ValueError(f"offset must be >= -factor, got {self.offset!r}")
        require_share("min_probability", self.min_probability, above_zero=True)
        if not any(self.across_groups is value for value in (False, True)) and self.across_groups != "both":
            raise ValueError(f"across_groups must be true, false or both, got {self.across_groups!r}")

    @property
    def feedback_k(self) -> int:
        return 0

    @property
    def has_probabilities(self) -> bool:
        return True

    @property
    def num_problems(self) -> int:
        """Number of problems with a tree."""
        return len(self._problems)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all trees."""
        return len(self._all_texts.tree) + sum(len(problem.tree) for problem in self._problems.values())

    def root_states(self, branches: Sequence[Branch]) -> _States:
        self._evict_texts(branches)
        # All texts before any match: branches of one problem draft from each other's latest tokens.
        ends = [self._add_text(branch, branch.tokens) for branch in branches]
        self._round = []
        rows = []
        for i, trees in enumerate(ends):
            matches = [(self._best_match(tree, end.node), tree) for tree, end in trees]
            match, tree = max(matches, key=lambda one: one[0].score)  # of equals the problem's own
            self._round.append(tree)
            rows.append((i, match.node, match.budget, 1.0, match.length))
        return np.array(rows, dtype=_ROW)

    def next_tokens(self, state: _States) -> NextTokens:
        """Returns log relative counts; their sum is below 1 where other tokens followed or a text ended."""
        ids: list[list[int]] = []
        ratios: list[list[float]] = []
        for i, node, budget, likely, _ in state.tolist():
            ranked = []
            if node >= 0 and budget > 0:
                # Relative to the path: a child's own path must reach `min_probability`, not its step alone.
                ranked = self._round[i].top_continuations(node, width=_WIDTH, least=self.min_probability / likely)
            empty = _WIDTH - len(ranked)
            ids.append([token for token, _ in ranked] + [-1] * empty)
            ratios.append([ratio for _, ratio in ranked] + [0.0] * empty)
        with np.errstate(divide="ignore"):  # the padding's log 0 is -inf, as `NextTokens` wants it
            logp_FK = np.log(np.array(ratios, dtype=np.float32).reshape(-1, _WIDTH))
        trust_F = np.searchsorted(_TRUST_EDGES, state["match"], side="right")
        return NextTokens(np.array(ids, dtype=np.int64).reshape(-1, _WIDTH), logp_FK, trust_F)

    def advance(self, state: _States, tokens_F: Ints) -> _States:
        rows = []
        for (i, node, budget, likely, match), token in zip(state.tolist(), tokens_F.tolist(), strict=True):
            tree = self._round[i]
            child = tree.child_nodes(node).get(token, -1) if node >= 0 else -1
            if child >= 0:
                likely *= tree.occurrence_count(child) / tree.continuation_count(node)
            rows.append((i, child, budget - 1, likely, match + 1))
        return np.array(rows, dtype=_ROW)

    def observe(self, feedback: Sequence[Feedback]) -> None:
        """Adds the accepted tokens: a branch that ends in this round has no later `root_states`. *Mutates*."""
        for outcome in feedback:
            # Without the token after them: `Feedback` has the drafted tokens only.
            accepted = [outcome.draft.tokens[node] for node in outcome.accepted_nodes]
            text = TokenView(outcome.branch.tokens, accepted)
            self._add_text(outcome.branch, text)

    def _add_text(self, branch: Branch, tokens: Tokens | TokenView) -> list[tuple[SuffixTree, _TextEnd]]:
        """Adds a branch's text to its trees; returns each with the end of the text in it, the problem's first."""
        stores = []
        if self.across_groups is not True:
            stores.append(self._problems.setdefault(branch.group, _ProblemTexts()))
            self._problems.move_to_end(branch.group)
        if self.across_groups:
            stores.append(self._all_texts)
        return [(store.tree, store.add_text(branch.request_id, tokens)) for store in stores]

    def _best_match(self, tree: SuffixTree, end: int) -> _SuffixMatch:
        best = _SuffixMatch()
        for node, length in tree.suffix_matches(end, self.max_match):
            budget = int(self.factor * length + self.offset + 1e-6)  # 0.29 * 100 must be 29, not 28
            if budget < 1 or budget <= best.score:  # a score is at most its budget, and shorter matches have less
                break
            score = tree.path_score(node, steps=budget, least=self.min_probability)
            if score > best.score:  # strict: of equals the longest match
                best = _SuffixMatch(node, length, budget, score)
        return best

    def _evict_texts(self, branches: Sequence[Branch]) -> None:
        """Begins the tree for all problems anew where there are too many tokens, then removes problems that do not run.

        The least recently used problem goes first. *Mutates*.
        """
        # Evicted texts of running branches are added again, so the limit leaves space for as many new tokens: otherwise
        # every round would evict and add them.
        num_trees = 2 if self.across_groups == "both" else 1
        limit = max(self.max_tokens, 2 * num_trees * sum(len(branch.tokens) for branch in branches))
        if self.num_tokens > limit:
            self._all_texts = _ProblemTexts()
        running = {branch.group for branch in branches}
        for key in [key for key in self._problems if key not in running]:
            if self.num_tokens <= limit:
                break
            del self._problems[key]
