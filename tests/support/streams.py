"""Random rounds for draft sources: branches that grow, end and fork, drafts walked from a source, random feedback."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decoding.core import SamplingParams, Tokens
from decoding.speculation.draft import Draft
from decoding.speculation.drafters.source import DraftSource, NextTokens
from decoding.speculation.interfaces import Branch, DraftPlan, Feedback

LIMIT = 400


@dataclass
class WalkLevel:
    """One level of a walk: for each row its state, next tokens, the index of its branch and its context."""

    state: Any
    next_tokens: NextTokens
    owners: list[int]
    contexts: list[Tokens]


@dataclass
class BranchStream:
    """Random branches, `live` while they run. Texts repeat parts of themselves and of each other."""

    seed: int
    vocabulary: int = 32
    branches: int = 6
    groups: int = 2
    rng: random.Random = field(init=False)
    live: dict[int, Branch] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self._started = 0
        prompts = [self._tokens(self.rng.randint(1, 40)) for _ in range(self.groups)]
        self._texts = {f"problem {i}": [prompt] for i, prompt in enumerate(prompts)}

    def _tokens(self, count: int) -> Tokens:
        return tuple(self.rng.randrange(self.vocabulary) for _ in range(count))

    def next_round(self) -> list[Branch]:
        """Returns the branches of the next round, some of them new, in random order."""
        for request_id in list(self.live):
            if self.rng.random() < 0.1 or self.live[request_id].remaining < 2:
                branch = self.live.pop(request_id)
                self._texts[branch.group].append(branch.tokens[:])
        while len(self.live) < self.branches:
            group = self.rng.choice(list(self._texts))
            tokens = self.rng.choice(self._texts[group][-8:])
            if self.rng.random() < 0.5:
                tokens = tokens[: self.rng.randint(1, len(tokens))]
            if len(tokens) > LIMIT // 2:
                tokens = self._texts[group][0]
            params = SamplingParams(max_tokens=LIMIT - len(tokens))
            branch = Branch(self._started, group, tokens, self._started, params, params.max_tokens)
            self.live[self._started] = branch
            self._started += 1
        order = list(self.live.values())
        self.rng.shuffle(order)
        return order

    def walk_source(
        self, source: DraftSource, branches: Sequence[Branch], levels: int = 3
    ) -> tuple[list[WalkLevel], list[Draft]]:
        """Walks a tree of the source's best candidates and some unknown to it; returns its levels and drafts."""
        state = source.root_states(branches)
        owners, contexts = list(range(len(branches))), [branch.tokens[:] for branch in branches]
        parents = [-1] * len(branches)
        nodes: list[tuple[list[int], list[int]]] = [([], []) for _ in branches]
        walk_levels: list[WalkLevel] = []
        for _ in range(levels):
            successors = source.next_tokens(state)
            walk_levels.append(WalkLevel(state, successors, owners, contexts))
            steps = []
            for row in range(len(owners)):
                chosen = [int(t) for t in successors.ids_FK[row, : self.rng.randint(0, 3)] if t >= 0]
                if self.rng.random() < 0.1:
                    chosen.append(self.rng.randrange(self.vocabulary))
                steps += [(row, token) for token in dict.fromkeys(chosen)]
            if not steps:
                break
            state = source.advance(state[np.array([row for row, _ in steps])], np.array([token for _, token in steps]))
            below = []
            for row, token in steps:
                tokens, above = nodes[owners[row]]
                tokens.append(token)
                above.append(parents[row])
                below.append(len(tokens) - 1)
            owners, contexts = [owners[row] for row, _ in steps], [(*contexts[row], token) for row, token in steps]
            parents = below
        return walk_levels, [Draft(tuple(tokens), tuple(above)) for tokens, above in nodes]

    def commit_random(self, source: DraftSource, branches: Sequence[Branch], drafts: Sequence[Draft]) -> list[Feedback]:
        """Commits a random path of each draft and one more token; returns random feedback."""
        feedback = []
        for branch, draft in zip(branches, drafts, strict=True):
            path = draft.path_to(self.rng.randrange(len(draft)) if len(draft) and self.rng.random() < 0.8 else -1)
            path = path[: branch.remaining - 1]
            top: tuple[Any, Any] = (None, None)
            if k := source.feedback_k:
                width = min(k, self.vocabulary)
                ids = [self.rng.sample(range(self.vocabulary), width) for _ in range(1 + len(draft))]
                top = np.array(ids), np.tile(-np.arange(1, width + 1, dtype=np.float32), (len(ids), 1))
            feedback.append(Feedback(branch, draft, path, *top))
            committed = (*(draft.tokens[node] for node in path), self._next_token(branch))
            params, left = branch.params, branch.remaining - len(committed)
            self.live[branch.request_id] = Branch(
                branch.request_id, branch.group, branch.tokens[:] + committed, branch.seed, params, left
            )
        return feedback

    def _next_token(self, branch: Branch) -> int:
        return self.rng.choice(branch.tokens[-8:]) if self.rng.random() < 0.6 else self._tokens(1)[0]

    def run_rounds(self, source: DraftSource, rounds: int) -> Iterator[tuple[list[Branch], list[WalkLevel]]]:
        """Yields rounds; the source observes the outcome of a round after it was yielded."""
        for _ in range(rounds):
            branches = self.next_round()
            walk_levels, drafts = self.walk_source(source, branches)
            yield branches, walk_levels
            source.observe(self.commit_random(source, branches, drafts))


@dataclass
class FutureDrafter:
    """Drafts each branch's known future among wrong siblings; `wrong` is the share of spine tokens that are left out.

    futures   prefix and generation by seed
    feedback  what the drafter has observed
    """

    futures: dict[int, tuple[int, ...]]
    wrong: float
    feedback_k: int = 0
    feedback: list[Feedback] = field(default_factory=list)
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def propose(self, branches: Sequence[Branch], plan: DraftPlan) -> list[Draft]:
        return [self._draft_tree(branch) for branch in branches]

    def _draft_tree(self, branch: Branch) -> Draft:
        future = self.futures[branch.seed][len(branch.tokens) :]
        tokens: list[int] = []
        parents: list[int] = []
        spine = -1
        for token in [*future, 3, 4][: self.rng.randint(0, 6)]:
            siblings = self.rng.sample([t for t in range(32) if t != token], 2)
            ordered = [*siblings[: self.rng.randint(0, 2)]]
            if self.rng.random() >= self.wrong:
                ordered.insert(self.rng.randint(0, len(ordered)), token)
            first = len(tokens)
            tokens += ordered
            parents += [spine] * len(ordered)
            if token not in ordered:
                break
            spine = first + ordered.index(token)
        return Draft(tuple(tokens), tuple(parents))

    def observe(self, feedback: Sequence[Feedback]) -> None:
        self.feedback += feedback
