"""Particle Gibbs: repeated particle filters, each conditional on paths of the one before (arXiv 2502.01618)."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass

from decoding.core import Tokens
from decoding.validation import require_count
from search.seeds import derive_seed
from search.step_search_state import StepSearchState
from search.strategies.particle_filter import ParticleFilter
from search.strategies.particle_rules import resample_systematically
from search.strategy import Resources, SearchResult


@dataclass(frozen=True, kw_only=True)
class ParticleGibbs(ParticleFilter):
    """Runs `num_iterations` particle filters of `n` particles, of which `num_references` are paths of the one before.

    References are drawn in proportion to their weights at their ends. They cost no tokens, are never dropped, and
    others copy their first steps and go on differently: so a later filter looks again where an earlier one gave up.
    All iterations vote; a path that stays a reference votes in each.

    n               particles of one iteration, references included
    num_iterations  particle filters one after the other; 1 is the particle filter
    num_references  paths that the next iteration keeps; fewer than n
    """

    num_iterations: int = 2
    num_references: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("num_iterations", self.num_iterations, at_least=1)
        require_count("num_references", self.num_references, at_least=0)
        if self.num_iterations > 1 and self.num_references >= self.n:
            raise ValueError(f"num_references must be below n={self.n}, got {self.num_references}")

    @property
    def num_votes(self) -> int:
        return self.n * self.num_iterations

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        state = StepSearchState(root, resources, self)
        references = list[int]()
        for number in range(self.num_iterations):
            num_before = len(state.ended_nodes)
            leaves = await self.run_filter(state, references, number)
            ended = state.ended_nodes[num_before:]
            if not ended or state.is_decided or state.expander.stop_reason == "budget":
                break
            shares = self.find_shares(state, ended, [sys.maxsize])
            offset = random.Random(derive_seed(resources.seed, "references", number)).random()
            copies = resample_systematically(shares, self.num_references, offset)
            references = [node for node, count in zip(ended, copies, strict=True) for _ in range(count)]
        return state.build_result(still_open=leaves)
