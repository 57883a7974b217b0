"""State of one search over steps: expands branches, separates ended from open ones, and merges equal siblings."""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from decoding.core import Tokens
from search.allocation import normalise_among
from search.clustering import cluster_steps, count_extra
from search.expand import Expander
from search.expansion_batch import ExpansionBatch
from search.open_paths import OpenPaths
from search.sample import build_result
from search.selection import record_selection
from search.step_search import StepSearch
from search.strategy import Candidate, Resources, SearchResult, StepEmbedder
from search.tree import SearchTree
from search.voting import tally_votes


class StepSearchState:
    """Tree of one search and the state of its branches, for all strategies over steps.

    tree         tree of the search so far
    ended_nodes  nodes that cannot be continued, in the order in which they ended: finished, too deep, or out of tokens
    given_up     open nodes of hopeless branches, which are not continued (`give_up`)
    num_closed   number of continuations that left no open branch
    is_decided   whether the vote is decided, so that open branches do not matter
    """

    def __init__(self, root: Tokens, resources: Resources, strategy: StepSearch) -> None:
        embedder = resources.embedder if strategy.needs_embedder else None
        self.strategy = strategy
        self.expander = Expander(root, resources, embed=embedder is not None and embedder.needs_hidden_states)
        self.tree = self.expander.tree
        self.ended_nodes: list[int] = []
        self._ended: set[int] = set()
        self.num_closed = 0
        self.is_decided = False
        self._answers: dict[int, str | None] = {}
        self._scores_at: dict[int, list[float]] = {}  # depth -> path scores of the nodes there, sorted
        self._compared: set[int] = set()  # nodes that are in it
        self._num_seen = 0  # nodes of the tree that had a chance to be in it
        self.given_up: list[int] = []
        self._refused: list[int] = []  # open branches that the budget did not continue, of the last expansion
        self._turns: dict[int, list[int]] = {}  # representative of a merged branch -> its members, the next one first
        self._representatives: dict[int, int] = {}  # member of a merged branch -> its representative
        step_tokens = resources.step_rule.max_tokens or strategy.step_tokens
        self._step_sampling = replace(strategy.sampling, max_tokens=step_tokens)

    @property
    def is_out_of_budget(self) -> bool:
        """Whether the budget ended the search before its vote was decided."""
        return self.expander.stop_reason == "budget" and not self.is_decided

    @property
    def embedder(self) -> StepEmbedder:
        """Embedder that compares steps. Raises: ValueError if the search was given none."""
        if self.expander.resources.embedder is None:
            raise ValueError(f"{type(self.strategy).__name__} compares steps and was given no embedder")
        return self.expander.resources.embedder

    async def expand_nodes(
        self, parents: Sequence[int], count_remaining: Callable[[int], float] | None = None
    ) -> list[int]:
        """Continues each parent by one step; returns the open branches among the results, in order. *Mutates*.

        With `count_remaining` the rest is cancelled once the results so far, in the order of the parents, decide the
        vote (`update_decided`); it returns the solutions still to come while so many results are.
        """
        members = [self._next_member(parent) for parent in self._add_extra(parents)]
        open_leaves: list[int] = []
        waiting = list(reversed(members))

        def is_enough(leaf: int) -> bool:
            open_leaves.extend(self._take_open([leaf], [waiting.pop()]))
            return count_remaining is not None and self.update_decided(count_remaining(len(waiting)))

        may_decide = self.strategy.early_stop is not None and count_remaining is not None
        leaves = await self.expander.sample_continuations(
            members,
            self._step_sampling,
            one_step=True,
            path_tokens=self.strategy.sampling.max_tokens,
            is_enough=is_enough if may_decide else None,
        )
        if not may_decide:
            open_leaves = self._take_open(leaves, members)
        self._note_refused(members[: len(leaves)], members[len(leaves) :])
        return open_leaves if self.is_decided else await self._merge_siblings(self._drop_hopeless(open_leaves))

    async def look_ahead(self, nodes: Sequence[int], num_steps: int) -> list[int]:
        """Continues each node by up to `num_steps` greedy steps; returns the node to which each leads.

        These steps are in the tree, but no branches of the search: they neither vote nor are continued later. They end
        early where the budget does. *Mutates*.
        """
        leaves = list(nodes)
        greedy = replace(self._step_sampling, temperature=0.0)
        for _ in range(num_steps):
            waiting = [i for i, leaf in enumerate(leaves) if self.is_open(leaf)]
            if not waiting or self.expander.stop_reason == "budget":
                break
            parents, path_tokens = [leaves[i] for i in waiting], self.strategy.sampling.max_tokens
            steps = await self.expander.sample_continuations(parents, greedy, one_step=True, path_tokens=path_tokens)
            for i, step in zip(waiting, steps, strict=False):
                leaves[i] = step
        return leaves

    def start_batch(self, parents: Sequence[int]) -> ExpansionBatch:
        """Starts one step of each parent without waiting; pass the batch to `collect_batch`.

        Empty where the budget may afford all of them once others are collected. Where none is running and it affords
        only some now, `collect_batch` requests the others.
        """
        return self._start_steps([self._next_member(parent) for parent in self._add_extra(parents)])

    def _start_steps(self, members: Sequence[int]) -> ExpansionBatch:
        path_tokens = self.strategy.sampling.max_tokens
        return self.expander.start_batch(
            members, self._step_sampling, one_step=True, path_tokens=path_tokens, whole=True
        )

    def start_solution(self, parent: int) -> ExpansionBatch:
        """Starts a continuation of one node to the end of its solution, without waiting."""
        written = 0 if parent == SearchTree.ROOT else self.tree.nodes[parent].num_path_tokens
        room = self.strategy.sampling.max_tokens - written
        remaining = replace(self.strategy.sampling, max_tokens=max(1, room))
        return self.expander.start_batch([parent], remaining, one_step=False)

    async def finish_solutions(self, nodes: Iterable[int]) -> list[int]:
        """Continues nodes to the ends of their solutions, all at once as far as the budget allows; returns the nodes
        for which it had nothing left. *Mutates*."""
        waiting, running = deque(nodes), deque[ExpansionBatch]()
        while waiting or running:
            if waiting and (batch := self.start_solution(waiting[0])):
                running.append(batch)
                waiting.popleft()
            elif running:  # what it leaves over may be enough for the next one
                await self.collect_batch(running.popleft())
            else:
                break
        return list(waiting)

    async def collect_batch(self, batch: ExpansionBatch) -> list[int]:
        """Waits for a batch; returns the open branches among its results, in order. *Mutates*."""
        leaves: list[int] = []
        parents: list[int] = []
        refused = batch.refused
        while batch:
            leaves += await self.expander.collect_batch(batch)
            parents += [expansion.parent for expansion in batch.pending]
            refused = batch.refused
            if not refused or not batch.plan.whole:
                break
            batch = self._start_steps(refused)  # with what these have left of the budget
        self._note_refused(parents, refused)
        return await self._merge_siblings(self._drop_hopeless(self._take_open(leaves, parents)))

    def is_open(self, node: int) -> bool:
        """Whether a node can be continued."""
        it = self.tree.nodes[node]
        max_tokens = self.strategy.sampling.max_tokens
        is_deep = self.strategy.depth is not None and it.depth >= self.strategy.depth
        return it.finish is None and not is_deep and it.num_path_tokens < max_tokens

    def has_ended(self, node: int) -> bool:
        """Whether a node is one of `ended_nodes`."""
        return node in self._ended

    def find_answer(self, node: int) -> str | None:
        """Returns the answer in the text of a path, in a comparable form, or None."""
        if node not in self._answers:
            self._answers[node] = self.expander.resources.extract_answer(self.tree.path_text(node))
        return self._answers[node]

    def end_branches(self, nodes: Iterable[int]) -> None:
        """Makes open branches candidates as they are. *Mutates*."""
        for node in nodes:
            self.num_closed += 1
            self._end_branch(node)

    def scores_of_nodes(self, nodes: Sequence[int]) -> list[float]:
        """Path score of each node. A path that is not scored gets the lowest score of the others (0 if there is none),
        so that it is continued only where there is nothing better."""
        scores = [self.tree.path_score(node, self.strategy.agg_strategy) for node in nodes]
        lowest = min((score for score in scores if score is not None), default=0.0)
        return [lowest if score is None else score for score in scores]

    def find_value(self, node: int) -> float | None:
        """Returns the path score of a node on the scale of `normalise`, among all nodes of its depth so far; None if
        it is not scored."""
        score = self.tree.path_score(node, self.strategy.agg_strategy)
        if score is None or self.strategy.normalise == "none":
            return score
        num_nodes = len(self.tree)
        for other in range(self._num_seen, num_nodes):
            self._compare_score(other)
        self._num_seen = num_nodes
        if node not in self._compared:  # one that the scorer left out gets a score with its first continuation
            self._compare_score(node)
        return normalise_among(score, self.strategy.normalise, self._scores_at[self.tree.nodes[node].depth])

    def _compare_score(self, node: int) -> None:
        """Adds the path score of a node, if it has one, to those of its depth, among which it is not yet."""
        score = self.tree.path_score(node, self.strategy.agg_strategy)
        if score is not None:
            self._compared.add(node)
            insort(self._scores_at.setdefault(self.tree.nodes[node].depth, []), score)

    def record_decision(
        self,
        nodes: Sequence[int],
        widths: Sequence[int],
        *,
        reasons: Mapping[int, str] | None = None,
        still_open: OpenPaths | None = None,
        note: Mapping[str, float | str] | None = None,
    ) -> None:
        """Appends a decision to the records of the search; arguments as in `record_selection`. *Mutates*."""
        decision = record_selection(self.tree, nodes, widths, reasons=reasons, still_open=still_open, note=note)
        self.expander.selections.append(decision)
        if self.expander.resources.on_selection is not None:
            self.expander.resources.on_selection(decision)

    def update_decided(self, num_remaining: float) -> bool:
        """Whether the vote is decided (`early_stop`) with `num_remaining` solutions still to come. *Mutates*: a search
        that is decided ignores its open branches."""
        share = self.strategy.early_stop
        if share is None:
            return False
        answers = [self.find_answer(node) for node in self.ended_nodes]
        scores = [self.tree.path_score(node, self.strategy.agg_strategy) for node in self.ended_nodes]
        is_unscored = any(s is None and a is not None for a, s in zip(answers, scores, strict=True))
        if is_unscored and self.strategy.select != "majority":
            return False  # the next score moves the median, and with it the votes of all solutions without a score
        votes = tally_votes(answers, scores, self.strategy.select)
        # Each remaining solution adds a vote of at most 1 to another answer: scores are in [0, 1].
        first, margin = max(votes.values(), default=0.0), share * num_remaining
        self.is_decided = first > 0 and first >= margin
        is_before = True  # the answers before the leader would win a tie
        for vote in votes.values():
            if is_before and vote == first:
                is_before = False
            elif first - vote < margin or (is_before and first - vote == margin):
                self.is_decided = False
        return self.is_decided

    def build_result(self, still_open: Sequence[int] = ()) -> SearchResult:
        """Builds the result from the ended nodes and those still open; without the latter if the vote was decided."""
        reason = "decided" if self.is_decided else self.expander.stop_reason
        if reason == "budget":
            still_open = [*still_open, *(node for node in self._refused if node not in still_open)]
        if reason != "done" and (pruned := self._undecided_leaves()):
            self.record_decision(pruned, [0] * len(pruned), reasons=dict.fromkeys(pruned, reason))
        nodes = self.ended_nodes if self.is_decided else [*self.ended_nodes, *still_open]
        nodes = nodes or self.given_up  # better than no answer at all
        agg_strategy = self.strategy.agg_strategy
        candidates = [
            Candidate(node, self.find_answer(node), self.tree.path_score(node, agg_strategy)) for node in nodes
        ]
        result = build_result(self.expander, candidates, self.strategy.select, self.strategy.unscored)
        return replace(result, stop_reason="decided") if self.is_decided else result

    def keep_answered(self, nodes: Iterable[int]) -> list[int]:
        """Returns the open nodes with an answer; where nothing has an answer, the one with the best score."""
        nodes = list(nodes)
        answered = [node for node in nodes if self.find_answer(node) is not None]
        if answered or not nodes or any(self.find_answer(node) is not None for node in self.ended_nodes):
            return answered
        scores = self.scores_of_nodes(nodes)
        return [nodes[scores.index(max(scores))]]

    def _note_refused(self, continued: Sequence[int], refused: Sequence[int]) -> None:
        """Remembers branches that end here because the budget did not continue them. *Mutates*."""
        branches = {self._representatives.get(node, node) for node in continued} | {SearchTree.ROOT}
        left = {node for node in refused if self._representatives.get(node, node) not in branches}
        self._refused = [] if self.is_decided else sorted(left)

    def _undecided_leaves(self) -> list[int]:
        """Open leaves that no decision has pruned and that are no candidates."""
        decided = {node for decision in self.expander.selections for node in decision.reasons} | set(self.ended_nodes)
        return [leaf for leaf in self.tree.leaf_nodes() if self.is_open(leaf) and leaf not in decided]

    def _take_open(self, leaves: Sequence[int], parents: Sequence[int]) -> list[int]:
        """Returns the open leaves and records the others as ended; `leaves` may be shorter than `parents`."""
        open_leaves = []
        for leaf, parent in zip(leaves, parents, strict=False):
            # An empty generation adds no node: its leaf is the parent, and the branch ends there.
            if leaf != parent and self.is_open(leaf):
                open_leaves.append(leaf)
                continue
            self.num_closed += 1
            if leaf != SearchTree.ROOT and not self.has_ended(leaf):
                self._end_branch(leaf)
        return open_leaves

    def _drop_hopeless(self, leaves: list[int]) -> list[int]:
        """Gives up the hopeless ones among open branches (`give_up`); returns the others. *Mutates*.

        Where all are hopeless and nothing has ended yet, the best of them goes on, so that there is an answer.
        """
        limit = self._find_give_up_limit()
        if limit is None or not leaves:
            return leaves
        hopeless = {leaf for leaf in leaves if self._count_low_steps(leaf, limit) >= self.strategy.give_up_after}
        if len(hopeless) == len(set(leaves)) and not self.ended_nodes:
            scores = self.scores_of_nodes(leaves)
            hopeless.discard(leaves[scores.index(max(scores))])
        if hopeless:
            self.record_decision(leaves, [int(leaf not in hopeless) for leaf in leaves], note={"give_up": limit})
            self.num_closed += sum(leaf in hopeless for leaf in leaves)
            self.given_up += sorted(hopeless)
        return [leaf for leaf in leaves if leaf not in hopeless]

    def _find_give_up_limit(self) -> float | None:
        """Returns the path score below which a branch is hopeless; None where none is."""
        strategy = self.strategy
        limits: list[float] = []
        if strategy.give_up is not None:
            limits.append(strategy.give_up)
        if strategy.give_up_share is not None:
            answered = [node for node in self.ended_nodes if self.find_answer(node) is not None]
            scores = [self.tree.path_score(node, strategy.agg_strategy) for node in answered]
            if known := [score for score in scores if score is not None]:
                limits.append(strategy.give_up_share * max(known))
        return max(limits, default=None)

    def _count_low_steps(self, leaf: int, limit: float) -> int:
        """Counts the last successive steps at which the score of the path so far is below `limit`."""
        count = 0
        for node in reversed(self.tree.path_nodes(leaf)):
            score = self.tree.path_score(node, self.strategy.agg_strategy)
            if score is None or score >= limit:
                break
            count += 1
        return count

    def _end_branch(self, node: int) -> None:
        self.ended_nodes.append(node)
        self._ended.add(node)

    def _add_extra(self, parents: Sequence[int]) -> list[int]:
        """Returns the parents, and behind them those of merged branches again, for `merge_extra`."""
        if not self._turns:  # nothing is merged
            return list(parents)
        counts = Counter(parent for parent in parents if parent in self._turns)
        extra = self.strategy.merge_extra
        return [
            *parents,
            *(node for node, width in counts.items() for _ in range(count_extra(width, len(self._turns[node]), extra))),
        ]

    def _next_member(self, parent: int) -> int:
        """The member of a merged branch that is continued next, in turn; `parent` itself if it is not merged."""
        turns = self._turns.get(parent)
        if turns is None:
            return parent
        turns.append(turns.pop(0))
        return turns[-1]

    async def _merge_siblings(self, leaves: list[int]) -> list[int]:
        """Reduces siblings with the same meaning to the best of them; children of merged branches are siblings too."""
        if not self.strategy.merge or len(leaves) < 2:
            return leaves
        kept_nodes = []
        parts = dict(zip(leaves, self.strategy.find_parts(self.tree, leaves), strict=True))

        def find_siblings(leaf: int) -> tuple[int, int]:
            return self._merged_parent(leaf), parts[leaf]

        for _, group in groupby(sorted(leaves, key=find_siblings), key=find_siblings):
            siblings = list(group)
            labels = await cluster_steps(self.expander, siblings, self.embedder)
            for cluster in dict.fromkeys(labels):
                members = [leaf for leaf, label in zip(siblings, labels, strict=True) if label == cluster]
                kept_nodes.append(self._merge_members(members))
        return sorted(kept_nodes)

    def _merged_parent(self, leaf: int) -> int:
        parent = self.tree.nodes[leaf].parent
        return self._representatives.get(parent, parent)

    def _merge_members(self, members: list[int]) -> int:
        """Merges branches into one, represented by the first of those with the highest score."""
        scores = self.scores_of_nodes(members)
        best = members[scores.index(max(scores))]
        if len(members) > 1:
            self._turns[best] = [best, *(member for member in members if member != best)]
            self._representatives |= dict.fromkeys(members, best)
        return best
