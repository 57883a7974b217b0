"""Add a search by levels: continue the branches that score above the average.

python examples/add_a_strategy.py                                 from Python
reason solve --config-dir examples/settings 'plugins=[examples/add_a_strategy.py]' search=above_average
"""

from dataclasses import dataclass
from statistics import fmean

from reason import load
from reason.decoding.core import SamplingParams
from reason.decoding.validation import require_not_negative
from reason.search.allocation import allocate_to_best
from reason.search.level_search import Allocation, Frontier, LevelSearch


@dataclass(frozen=True, kw_only=True)
class AboveAverage(LevelSearch):
    """Prunes branches that score more than `slack` below the average of their level; divides the width evenly."""

    slack: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_not_negative("slack", self.slack)

    async def allocate_widths(self, frontier: Frontier, width: int) -> Allocation:
        threshold = fmean(frontier.scores) - self.slack
        num_kept = sum(score >= threshold for score in frontier.scores)
        return Allocation(allocate_to_best(frontier.scores, width, max(num_kept, 1)))


def main() -> None:
    with load("speculation=off") as solver:
        mine = solver.with_options(strategy=AboveAverage(n=4, sampling=SamplingParams(max_tokens=320)))
        solution = mine.solve("x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3.")
    print(solution.answer, solution.votes, f"{len(solution.tree)} steps, {solution.usage.tokens} tokens")


if __name__ == "__main__":
    main()
