"""Add a vote that stops when it is sure: solutions are weighted by how sure the model was of their words.

python examples/stop_when_sure.py                                 from Python
reason solve --config-dir examples/settings 'plugins=[examples/stop_when_sure.py]' search=sure_vote scorer=none

All `n` solutions are requested at once, and counted as they come in. When one answer has enough of the weight, those
that are still being written are cancelled. `search=self_consistency search.stop_share=0.9` is the library's own.
"""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from statistics import fmean

from reason import load
from reason.decoding.core import SamplingParams, Tokens
from reason.decoding.validation import require_count, require_share
from reason.search.expand import Expander
from reason.search.sample import build_result, make_candidate
from reason.search.strategy import Candidate, Resources, SearchResult
from reason.search.tree import SearchTree


@dataclass(frozen=True, kw_only=True)
class SureVote:
    """Samples up to `n` solutions; ends when one answer has `enough` of the weight of `at_least` solutions or more."""

    n: int = 16
    at_least: int = 4
    enough: float = 0.9
    sampling: SamplingParams = field(default_factory=SamplingParams)

    select = "weighted"
    needs_scorer = needs_embedder = by_steps = False
    num_top = 1  # asks the engine for the entropy of every token

    def __post_init__(self) -> None:
        require_count("n", self.n, at_least=1)
        require_count("at_least", self.at_least, at_least=1)
        require_share("enough", self.enough, above_zero=True)

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        expander = Expander(root, replace(resources, num_top=max(resources.num_top, self.num_top)))
        votes: list[Candidate] = []

        def is_enough(leaf: int) -> bool:  # called for each solution, in the order of the requests
            if leaf != SearchTree.ROOT:  # no token was written
                votes.append(replace(make_candidate(expander, leaf, "last"), score=self.weigh(expander.tree, leaf)))
            weights = Counter[str]()
            for vote in votes:
                weights[vote.answer or ""] += vote.score or 0.0
            return len(votes) >= self.at_least and max(weights.values()) >= self.enough * weights.total()

        parents = [SearchTree.ROOT] * self.n
        await expander.sample_continuations(parents, self.sampling, one_step=False, is_enough=is_enough)
        return build_result(expander, votes, self.select, unscored="median")

    def weigh(self, tree: SearchTree, leaf: int) -> float:
        """Returns exp(-mean entropy) of the tokens: 1 where the model was sure of each; 1 where no engine says it."""
        measured = [step.entropies for step in tree.path_steps(leaf) if step.entropies is not None]
        return math.exp(-fmean(entropy for entropies in measured for entropy in entropies)) if measured else 1.0


def main() -> None:
    with load("speculation=off") as solver:
        mine = solver.with_options(strategy=SureVote(n=16, enough=0.6, sampling=SamplingParams(max_tokens=320)))
        solution = mine.solve("x0 = 2. Each next term is 3 times the one before plus 1, modulo 7. Find x2.")
    weights = {answer: round(weight, 2) for answer, weight in solution.votes.items()}
    print(solution.answer, weights, f"{solution.usage.cancelled} cancelled, {solution.usage.tokens} tokens")


if __name__ == "__main__":
    main()
