"""A tree that is given: what a model writes and how it is scored follow from the path alone, whatever search asks.

So a search can be compared with a few lines that walk the same tree by the formulas of a paper.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from decoding.core import Generation, GenerationRequest, Usage
from search.strategy import ScoredPaths, SearchResult
from search.tree import Step
from tests.support.toy_search import EOS, ROOT, ToyEngine, decode_bytes

Place = tuple[int, ...]
"""Node of the tree: which child is taken at each step from the prompt."""

SCORES = (0.0, 0.25, 0.5, 0.5, 0.75, 1.0)  # many ties
BROKEN_SCORES = (*SCORES, None, None, -math.inf, math.nan)
"""With missing ones, and with those for which a search takes a path as not scored."""


@dataclass(frozen=True)
class GivenTree:
    """Places and what is there; `seed` numbers the tree, no path has more than `depth` steps."""

    seed: int
    depth: int = 4
    scores: Sequence[float | None] = SCORES

    def score(self, place: Place) -> float | None:
        """What the scorer says of the last step of a path."""
        return random.Random(f"score {self.seed} {place}").choice(self.scores)

    def path_score(self, place: Place, fold: str = "last") -> float | None:
        """The scores of a path as one; None where its last step has none, or where one of them is no number."""
        scores = [score for end in range(len(place)) if (score := self.score(place[: end + 1])) is not None]
        if self.score(place) is None or not all(map(math.isfinite, scores)):
            return None
        product = math.prod(scores)
        return {"last": scores[-1], "min": sorted(scores)[0], "prod": product, "mean": sum(scores) / len(scores)}[fold]

    def logprob(self, place: Place) -> float:
        """Log-probability of each token of the last step."""
        return -random.Random(f"logprob {self.seed} {place}").choice((0.25, 0.5, 2.0))

    def ends(self, place: Place) -> bool:
        """Whether a path is a solution."""
        if len(place) >= self.depth:
            return True
        return len(place) > 1 and random.Random(f"end {self.seed} {place}").random() < 0.25

    def write(self, place: Place) -> str:
        """Text of the last step; a path's solution is its first child."""
        return f"\\boxed{{{place[-1]}}}" if self.ends(place) else f"Step {place[-1]}.\n\n"


def read_place(text: str) -> Place:
    """The place of a path from its text."""
    steps = text.replace("\\boxed{", "Step ").replace("}", ".").split("Step ")[1:]
    return tuple(int(step.strip().rstrip(".")) for step in steps)


class GivenEngine(ToyEngine):
    """Writes one step at a time: the first request behind a path gets its first child, the next one its second.

    A request for a whole solution gets first children from there on.
    """

    def __init__(self, tree: GivenTree) -> None:
        super().__init__()
        self._tree = tree
        self._num_written: Counter[Place] = Counter()

    def continue_prefix(self, request: GenerationRequest) -> Generation:
        place = read_place(decode_bytes(request.prefix[len(ROOT) :]))
        tokens, logprobs, ends = list[int](), list[float](), False
        while not ends and not (tokens and request.params.stop):
            place, above = (*place, self._num_written[place]), place
            self._num_written[above] += 1
            ends = self._tree.ends(place)
            written = [*self._tree.write(place).encode("latin-1"), *([EOS] if ends else [])]
            tokens += written
            logprobs += [self._tree.logprob(place)] * len(written)
        return Generation(
            tokens=tuple(tokens),
            logprobs=tuple(logprobs),
            finish="eos" if ends else "stop",
            usage=Usage(calls=1, tokens=len(tokens), forwards=len(tokens)),
        )


@dataclass
class GivenScorer:
    """Scores every step of a path by its place."""

    tree: GivenTree

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        return ScoredPaths([self._score_path(path) for path in paths])

    def _score_path(self, path: Sequence[Step]) -> list[float | None]:
        place = read_place("".join(step.text.replace("\x00", "") for step in path))
        return [self.tree.score(place[: i + 1]) for i in range(len(place))]


def list_places(result: SearchResult) -> list[Place]:
    """The places of a search's tree, in the order in which they were written."""
    return [read_place(result.tree.path_text(node)) for node in range(len(result.tree))]
