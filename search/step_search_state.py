"""One search over steps under way: it grows branches, keeps apart what has ended, and merges what says the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from decoding.core import Tokens
from search.clustering import same_meaning
from search.expand import Expander, Growth
from search.sample import conclude
from search.selection import selection
from search.step_search import TreeSearch
from search.strategy import Candidate, Embedder, Resources, SearchResult
from search.tree import SearchTree
from search.voting import tally


class Walk:
    """The tree of one search, and what every strategy does with what comes back.

    ended    nodes that go no further, in the order they ended: finished, too deep, or out of tokens
    closed   continuations that came back with nothing to continue
    """

    def __init__(self, root: Tokens, resources: Resources, knobs: TreeSearch) -> None:
        embedder = resources.embedder if knobs.needs_embedder else None
        self.knobs = knobs
        self.run = Expander(root, resources, embed=embedder is not None and embedder.wants_hidden)
        self.ended: list[int] = []
        self.closed = 0
        self._decided = False
        self._answers: dict[int, str | None] = {}
        self._turns: dict[int, list[int]] = {}  # of a merged branch, by its representative
        self._merged: dict[int, int] = {}  # member -> representative
        step_tokens = min(knobs.step_tokens, knobs.sampling.max_tokens)
        self._one_step = replace(knobs.sampling, max_tokens=step_tokens)

    @property
    def tree(self) -> SearchTree:
        """What has been grown so far."""
        return self.run.tree

    @property
    def embedder(self) -> Embedder:
        """Who compares steps. Raises: ValueError if nobody was given."""
        if self.run.resources.embedder is None:
            raise ValueError(f"{type(self.knobs).__name__} compares steps and was given no embedder")
        return self.run.resources.embedder

    async def grow(self, parents: Sequence[int]) -> list[int]:
        """One more step of each parent; the open branches that came of it, in order. *Mutates* the walk."""
        members = [self._next_member(parent) for parent in parents]
        leaves = await self.run.steps(members, self._one_step)
        return await self._merge(self._sorted(leaves, members))

    def launch(self, parents: Sequence[int]) -> Growth:
        """As `grow`, without waiting; to be handed to `collect`. Fewer or none where the budget affords no more now;
        the rest of them is not asked for again."""
        growth = self.run.launch([self._next_member(parent) for parent in parents], self._one_step, one_step=True)
        if 0 < len(growth) < len(parents):
            self.run.fell_short()
        return growth

    def launch_solution(self, parent: int) -> Growth:
        """A continuation to the end of the solution."""
        room = self.knobs.sampling.max_tokens - self.tree.nodes[parent].written
        left = replace(self.knobs.sampling, max_tokens=max(1, room))
        return self.run.launch([parent], left, one_step=False)

    async def collect(self, growth: Growth) -> list[int]:
        """The open branches that came of a growth, in order. *Mutates* the walk."""
        leaves = await self.run.collect(growth)
        return await self._merge(self._sorted(leaves, [asked.parent for asked in growth.asked]))

    def is_open(self, node: int) -> bool:
        """Whether a branch can be continued."""
        it = self.tree.nodes[node]
        return it.finish is None and it.depth < self.knobs.depth and it.written < self.knobs.sampling.max_tokens

    def scores(self, nodes: Sequence[int]) -> list[float]:
        """The folded score of every path; of one that is not scored, the lowest there is, so that it goes on only
        where there is nothing better."""
        scores = [self.tree.score(node, self.knobs.agg_strategy) for node in nodes]
        lowest = min((score for score in scores if score is not None), default=0.0)
        return [lowest if score is None else score for score in scores]

    def note(
        self,
        nodes: Sequence[int],
        widths: Sequence[int],
        *,
        reasons: dict[int, str] | None = None,
        still_open: Iterable[int] = (),
        **more: Any,
    ) -> None:
        """Keeps a decision for whoever wants to see it. *Mutates* the run's list."""
        self.run.selections.append(
            selection(self.tree, nodes, widths, reasons=reasons, still_open=still_open, note=more)
        )

    def decided(self, could_add: float) -> bool:
        """Whether `could_add` more solutions are not worth waiting for. *Mutates*: remembers that it was so."""
        share = self.knobs.early_stop
        if share is None:
            return False
        answers = [self._answer(node) for node in self.ended]
        scores = [self.tree.score(node, self.knobs.agg_strategy) for node in self.ended]
        votes = sorted(tally(answers, scores, self.knobs.select).values(), reverse=True)
        first, second = [*votes, 0.0, 0.0][:2]
        self._decided = first > 0 and first - second >= share * could_add
        return self._decided

    def conclude(self, still_open: Sequence[int] = ()) -> SearchResult:
        """The result, chosen among what has ended and what is still open, unless it was decided without them."""
        why = "decided" if self._decided else self.run.stopped
        if why != "done" and (left := self._left_open()):
            self.note(left, [0] * len(left), reasons=dict.fromkeys(left, why))
        nodes = self.ended if self._decided else [*self.ended, *still_open]
        candidates = [
            Candidate(node, self._answer(node), self.tree.score(node, self.knobs.agg_strategy)) for node in nodes
        ]
        result = conclude(self.run, candidates, self.knobs.select)
        return replace(result, stopped="decided") if self._decided else result

    def _left_open(self) -> list[int]:
        """Leaves that might have gone on and that no decision was against."""
        pruned = {node for decision in self.run.selections for node in decision.reasons}
        return [leaf for leaf in self.tree.leaves() if self.is_open(leaf) and leaf not in pruned]

    def _answer(self, node: int) -> str | None:
        if node not in self._answers:
            self._answers[node] = self.run.resources.answer_of(self.tree.text(node))
        return self._answers[node]

    def _sorted(self, leaves: Sequence[int], parents: Sequence[int]) -> list[int]:
        """The open ones of what came of these parents, as far as they were asked for; the others have ended."""
        found = []
        for leaf, parent in zip(leaves, parents, strict=False):
            # a step of no tokens is no node: the branch ends with what it had
            if leaf != parent and self.is_open(leaf):
                found.append(leaf)
                continue
            self.closed += 1
            if leaf != SearchTree.ROOT and leaf not in self.ended:
                self.ended.append(leaf)
        return found

    def _next_member(self, parent: int) -> int:
        """Whose turn it is among the branches merged with this one."""
        turns = self._turns.get(parent)
        if turns is None:
            return parent
        turns.append(turns.pop(0))
        return turns[-1]

    async def _merge(self, leaves: list[int]) -> list[int]:
        """One leaf, the best, for siblings that say the same; siblings are children of one branch, merged or not."""
        if not self.knobs.merge or len(leaves) < 2:
            return leaves
        kept = []
        for _, family in groupby(sorted(leaves, key=self._family), key=self._family):
            siblings = list(family)
            labels = await same_meaning(self.run, siblings, self.embedder)
            for label in dict.fromkeys(labels):
                members = [leaf for leaf, its in zip(siblings, labels, strict=True) if its == label]
                kept.append(self._represent(members))
        return sorted(kept)

    def _family(self, leaf: int) -> int:
        parent = self.tree.nodes[leaf].parent
        return self._merged.get(parent, parent)

    def _represent(self, members: list[int]) -> int:
        scores = self.scores(members)
        best = members[scores.index(max(scores))]
        if len(members) > 1:
            self._turns[best] = [best, *(member for member in members if member != best)]
            self._merged |= dict.fromkeys(members, best)
        return best
