"""SuffixDecoding (arXiv 2411.04975): what followed the longest useful match in the problem's texts may add_text now.

One tree per problem holds its prompt and the outputs of all its branches, every token of the search tree once (a
forked branch starts with what is there already). Which match to continue is the published choice: for each length,
add_text the most frequent continuation while it is at least `min_probability` likely, for at most `factor` times the
length of the match plus `offset` tokens; the match with the largest sum of path probabilities wins.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from decoding.core import Tokens
from decoding.speculation.drafters.source import Ints, NextTokens
from decoding.speculation.drafters.suffix_tree import SuffixTree
from decoding.speculation.interfaces import Branch, Feedback
from decoding.validation import is_count

_WIDTH = 8
_ENDS = 4096  # requests of a problem whose end in the tree is remembered; the others are looked up
_TRUST_EDGES = np.array([2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 25, 33, 49, 65, 97])  # shortest match of levels 1, 2, ...

# One context: the branch's place in the round; its node, -1 for nowhere; how many tokens deeper a draft may go; how
# likely the path here is, from the root; how many tokens agree.
_States = npt.NDArray[Any]
_ROW = np.dtype([("branch", "i8"), ("node", "i8"), ("budget", "i8"), ("likely", "f8"), ("match", "i8")])


@dataclass
class _TextEnd:
    """Where a request's text ends in its problem's tree, and how long it is."""

    node: int
    length: int


@dataclass
class _ProblemTexts:
    tree: SuffixTree = field(default_factory=SuffixTree)
    ends: OrderedDict[int, _TextEnd] = field(default_factory=OrderedDict)

    def add_text(self, request_id: int, tokens: Tokens) -> _TextEnd:
        """Enters what is new of a request's text; where it ends. *Mutates*."""
        end = self.ends.get(request_id)
        if end is None or end.length > len(tokens):
            end = self.ends[request_id] = _TextEnd(*self.tree.find_prefix(tokens))
            if len(self.ends) > _ENDS:
                self.ends.popitem(last=False)
        self.ends.move_to_end(request_id)
        for token in tokens[end.length :]:
            end.node = self.tree.append_token(end.node, token)
        end.length = len(tokens)
        return end


@dataclass(frozen=True)
class _SuffixMatch:
    """A run of tokens at the text's end to draft from."""

    node: int = -1
    length: int = 0
    budget: int = 0
    score: float = 0.0


@dataclass(eq=False)
class SuffixDecoding:
    """Implements `DraftSource`.

    max_match        longest match looked for, in tokens
    factor, offset   how deep a draft may go: factor * length of the match + offset
    min_probability  a path less likely than this is not followed
    across_groups    one tree for all problems instead of one each
    max_tokens       in all trees together, about 0.4 KB each; the problem longest unseen is forgotten first. Never
                     less than twice what is running
    """

    max_match: int = 64
    factor: float = 1.0
    offset: float = 0.0
    min_probability: float = 0.1
    across_groups: bool = False
    max_tokens: int = 1 << 17
    _problems: OrderedDict[str, _ProblemTexts] = field(init=False, repr=False, default_factory=OrderedDict)
    _round: list[SuffixTree] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        for name in ("max_match", "max_tokens"):
            if not is_count(getattr(self, name), at_least=1):
                raise ValueError(f"{name} must be an int >= 1, got {getattr(self, name)!r}")
        if not self.factor >= 0:
            raise ValueError(f"factor must be >= 0, got {self.factor!r}")
        if not self.factor + self.offset >= 0:
            raise ValueError(f"offset must be >= -factor, got {self.offset!r}")
        if not 0 < self.min_probability <= 1:
            raise ValueError(f"min_probability must be in (0, 1], got {self.min_probability!r}")

    @property
    def feedback_k(self) -> int:
        return 0

    @property
    def has_probabilities(self) -> bool:
        return True

    @property
    def num_problems(self) -> int:
        """Problems with a tree."""
        return len(self._problems)

    @property
    def num_tokens(self) -> int:
        """Tokens in all trees together."""
        return sum(len(problem.tree) for problem in self._problems.values())

    def root_states(self, branches: Sequence[Branch]) -> _States:
        self._make_room(sum(len(branch.tokens) for branch in branches))
        problems = [self._problem_of(branch) for branch in branches]
        ends = [p.add_text(branch.request_id, branch.tokens) for p, branch in zip(problems, branches, strict=True)]
        self._round = [problem.tree for problem in problems]
        rows = []
        for i, (tree, end) in enumerate(zip(self._round, ends, strict=True)):
            match = self._best_match(tree, end.node)
            rows.append((i, match.node, match.budget, 1.0, match.length))
        return np.array(rows, dtype=_ROW)

    def next_tokens(self, state: _States) -> NextTokens:
        """Log relative counts. What is missing from one is other tokens, and places where a text ended."""
        ids: list[list[int]] = []
        ratios: list[list[float]] = []
        for i, node, budget, likely, _ in state.tolist():
            ranked = []
            if node >= 0 and budget > 0:
                ranked = self._round[i].top_continuations(node, width=_WIDTH, least=self.min_probability / likely)
            empty = _WIDTH - len(ranked)
            ids.append([token for token, _ in ranked] + [-1] * empty)
            ratios.append([ratio for _, ratio in ranked] + [0.0] * empty)
        with np.errstate(divide="ignore"):
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
        """Takes in what was accepted, so that the end of a branch that ends here is not lost."""
        for outcome in feedback:
            accepted = tuple(outcome.draft.tokens[node] for node in outcome.accepted_nodes)
            self._problem_of(outcome.branch).add_text(outcome.branch.request_id, outcome.branch.tokens + accepted)

    def _problem_of(self, branch: Branch) -> _ProblemTexts:
        key = "" if self.across_groups else branch.group
        if key not in self._problems:
            self._problems[key] = _ProblemTexts()
        self._problems.move_to_end(key)
        return self._problems[key]

    def _best_match(self, tree: SuffixTree, end: int) -> _SuffixMatch:
        best = _SuffixMatch()
        for node, length in tree.suffix_matches(end, self.max_match):
            budget = int(self.factor * length + self.offset + 1e-6)
            if budget < 1 or budget <= best.score:  # a score is at most its budget, and shorter matches have less
                break
            score = tree.path_score(node, steps=budget, least=self.min_probability)
            if score > best.score:
                best = _SuffixMatch(node, length, budget, score)
        return best

    def _make_room(self, running: int) -> None:
        """Forgets problems, the one longest unseen first, while there are too many tokens."""
        # What is running is entered again. Room for as much anew, or that would happen every round.
        limit = max(self.max_tokens, 2 * running)
        while self._problems and self.num_tokens > limit:
            self._problems.popitem(last=False)
