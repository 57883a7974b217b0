"""Add a particle filter by levels: steps are resampled in proportion to the reward model's odds that they are right.

python examples/add_particles.py                                  from Python
reason solve --config-dir examples/settings 'plugins=[examples/add_particles.py]' search=particles

`search=particle_filter` is the whole method (arXiv 2502.01618), in which solutions that have ended are resampled too.
"""

import random
from dataclasses import dataclass

from reason import load
from reason.decoding.core import SamplingParams
from reason.decoding.validation import require_positive
from reason.search.level_search import Allocation, Frontier, LevelSearch
from reason.search.seeds import derive_seed
from reason.search.strategies.particle_rules import log_weights, normalise_weights, resample_systematically


@dataclass(frozen=True, kw_only=True)
class Particles(LevelSearch):
    """Draws the branches that go on, each as often as its odds say; all solutions vote alike.

    temperature  of the softmax over the logarithms of the odds; a high one draws all branches alike
    """

    temperature: float = 1.0
    select: str = "majority"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("temperature", self.temperature)

    async def allocate_widths(self, frontier: Frontier, width: int) -> Allocation:
        shares = normalise_weights(log_weights(frontier.scores, "odds"), self.temperature)
        # a seed of the problem and the level: the same run draws the same particles, whatever else is running
        seed = derive_seed(frontier.state.expander.resources.seed, "particles", len(frontier.state.expander.selections))
        return Allocation(resample_systematically(shares, width, random.Random(seed).random()))


def main() -> None:
    with load("speculation=off") as solver:
        mine = solver.with_options(strategy=Particles(n=8, sampling=SamplingParams(max_tokens=320)))
        solution = mine.solve("x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3.")
    print(solution.answer, solution.votes, f"{len(solution.tree)} steps, {solution.usage.tokens} tokens")


if __name__ == "__main__":
    main()
