"""Particle filtering: paths are samples, resampled after every step by the reward model's odds (arXiv 2502.01618)."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from decoding.core import Tokens
from decoding.validation import require_choice, require_positive, require_share
from search.allocation import normalise_scores
from search.seeds import derive_seed
from search.step_search import StepSearch
from search.step_search_state import StepSearchState
from search.strategies.particle_rules import (
    WEIGHTS,
    effective_sample_size,
    log_weights,
    normalise_weights,
    resample_systematically,
)
from search.strategy import Resources, SearchResult
from search.tree import SearchTree


@dataclass(frozen=True, kw_only=True)
class ParticleFilter(StepSearch):
    """Writes one step of each of `n` particles at a time, and resamples them in proportion to their weights.

    A particle that has ended stays among the others, with its last score: it is copied, at no cost, or dropped. Those
    that are left when all have ended vote, a copy as much as its original; dropped ones do not. So `early_stop=1` is no
    proof here: what it counts on may still be dropped.

    n              number of particles
    weights        `odds`, score / (1 - score), as published, or `likelihood`, the score; of paths without a score the
                   median of the others
    temperature    of the softmax over the logarithms of the weights, or over their ranks; 1 as published
    ess_threshold  share of `n` below which the effective sample size must be for resampling; until then weights are
                   multiplied. 1 is after every step, as published; 0 never
    """

    weights: str = "odds"
    temperature: float = 1.0
    ess_threshold: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("weights", self.weights, WEIGHTS)
        if self.normalise == "logit":
            raise ValueError("normalise must be none, rank or zscore in particle methods: weights=odds is the logit")
        require_positive("temperature", self.temperature)
        require_share("ess_threshold", self.ess_threshold)

    @property
    def num_votes(self) -> int:
        """Particles that vote at the end."""
        return self.n

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        state = StepSearchState(root, resources, self)
        return state.build_result(still_open=await self.run_filter(state))

    async def run_filter(self, state: StepSearchState, references: Sequence[int] = (), number: int = 0) -> list[int]:
        """Runs filter `number` of a search; returns the particles that a limit left open.

        Each of the `references`, nodes where earlier paths ended, is a particle that is never dropped, and whose first
        steps others copy (conditional filter). *Mutates* the tree and the ended nodes, to which references are added.
        """
        state.ended_nodes += references
        num_before, level, first_level = len(state.ended_nodes), 0, 1
        leaves, parents = list[int](), [SearchTree.ROOT] * (self.n - len(references))
        while parents:
            level += 1
            leaves = await state.expand_nodes(parents, lambda _: self.num_votes - len(state.ended_nodes))
            if not leaves or state.expander.stop_reason == "budget":
                break
            if state.update_decided(self.num_votes - len(state.ended_nodes)):
                break
            free = [*state.ended_nodes[num_before:], *leaves]
            prefixes = [state.tree.path_nodes(node)[:level][-1] for node in references]
            particles, copies = [*free, *prefixes], [1] * len(free) + [0] * len(references)
            shares = self.find_shares(state, particles, range(first_level, level + 1))
            ess = effective_sample_size(shares)
            if self.ess_threshold == 1 or ess < self.ess_threshold * self.n:
                offset = random.Random(derive_seed(state.expander.resources.seed, "resample", number, level)).random()
                copies = resample_systematically(shares, self.n - len(references), offset)
                first_level = level + 1
            chosen = [node for node, num_copies in zip(particles, copies, strict=True) for _ in range(num_copies)]
            can_go_on = {*leaves, *set(prefixes).difference(references)}
            parents = [node for node in chosen if node in can_go_on]
            state.ended_nodes[num_before:] = [node for node in chosen if node not in can_go_on]
            widths = dict.fromkeys(leaves, 0) | Counter(parents)
            state.record_decision([*widths], [*widths.values()], note={"effective_particles": round(ess, 3)})
        return leaves if parents else []

    def find_shares(self, state: StepSearchState, particles: Sequence[int], levels: Sequence[int]) -> list[float]:
        """Returns the share of each particle: the product of its weights at these levels, from 1.

        At levels below its end, a particle has the weight that it had there.
        """
        # of one level only the ends are read
        paths = [state.tree.path_nodes(node) if len(levels) > 1 else [node] for node in particles]
        logs = []
        for level in levels:
            nodes = [path[min(level, len(path)) - 1] for path in paths]
            scores = [state.tree.path_score(node, self.agg_strategy) for node in nodes]
            logs.append(log_weights(scores, self.weights))
        totals = [math.fsum(of_one) for of_one in zip(*logs, strict=True)]
        return normalise_weights(normalise_scores(totals, self.normalise), self.temperature)
