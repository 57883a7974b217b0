"""A search of your own: who goes on after every step, and how often. Here, all that score above the average.

python examples/add_a_strategy.py                                 from Python
python scripts/solve.py --config-dir examples/settings 'plugins=[examples/add_a_strategy.py]' search=above_average
"""

from dataclasses import dataclass
from statistics import fmean

from decoding.core import SamplingParams
from decoding.validation import require_not_negative
from reason import load
from search.allocation import best_widths
from search.level_search import Allocation, Frontier, LevelSearch


@dataclass(frozen=True, kw_only=True)
class AboveAverage(LevelSearch):
    """Every level, the branches that score more than `slack` below the average are left; the width is dealt evenly."""

    slack: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_not_negative("slack", self.slack)

    async def allocate(self, frontier: Frontier, width: int) -> Allocation:
        bar = fmean(frontier.scores) - self.slack
        good = sum(score >= bar for score in frontier.scores)
        return Allocation(best_widths(frontier.scores, width, keep=max(good, 1)))


def main() -> None:
    with load("speculation=off") as solver:
        mine = solver.but(strategy=AboveAverage(n=4, sampling=SamplingParams(max_tokens=320)))
        solution = mine.solve("x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3.")
    print(solution.answer, solution.votes, f"{len(solution.tree)} steps, {solution.spent.tokens} tokens")


if __name__ == "__main__":
    main()
