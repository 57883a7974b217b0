"""Gives the saved solutions of a run in place of new ones, so that they can be scored and graded again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from decoding.core import Generation, GenerationRequest, SamplingParams, Tokens, Usage
from decoding.stats import EngineStats
from reason.config.errors import ConfigError
from reason.engines.base import EngineSettings, EngineUse, SpeculationFactory
from reason.models.checkpoint import Checkpoint
from reason.models.tokenizer import PretrainedTokenizer
from search.tree import SearchTree

TREES = "trees"
"""Folder of the trees of a run."""


@dataclass(frozen=True, kw_only=True)
class RecordedSettings(EngineSettings):
    """Names the run whose solutions are given; `run` is its folder.

    Tokens and calls count as when they were written, forward passes do not.
    """

    run: str | None

    is_remote: ClassVar[bool] = True  # no hidden states, no speculation
    needs_checkpoint: ClassVar[bool] = False

    @property
    def continues_text(self) -> bool:
        """See `EngineSettings`."""
        return False

    @property
    def ends_thoughts(self) -> bool:
        """Whether thoughts end at their budget: they did when they were written."""
        return True

    def __post_init__(self) -> None:
        if self.run is not None and not isinstance(self.run, str):  # else `require_packages` asks for one
            raise ValueError(f"run must be the folder of a run, got {self.run!r}")

    def require_packages(self) -> None:
        """Raises ValueError where no run is named, or its folder has no trees."""
        if not self.run:
            raise ValueError(f"run must be the folder of a run, got {self.run!r}")
        self._list_trees()

    def adapt_to(self, use: EngineUse) -> Self:
        """See `EngineSettings`."""
        if use.continued_by is not None:
            raise ConfigError(
                f"{use.continued_by} continues earlier output, and {use.key}=recorded has whole solutions; choose "
                "search=best_of_n or search=self_consistency"
            )
        if getattr(use.scorer, "model", None) == "target":
            raise ConfigError(
                f"{use.key}=recorded writes nothing new, so it cannot judge; name a judge with scorer.model=small"
            )
        self._require_sampling(use.sampling)
        return super().adapt_to(use)

    def _require_sampling(self, sampling: SamplingParams | None) -> None:
        """Raises ConfigError where the solutions were drawn with other settings than those that would be recorded."""
        file = Path(self.run or "") / "run.json"
        if sampling is None or not file.is_file():
            return
        try:
            saved = json.loads(file.read_bytes())["config"]["search"]["sampling"]
        except (ValueError, KeyError, TypeError):  # of an earlier release, or no run of ours
            return
        if not isinstance(saved, dict):
            return
        for name in ("temperature", "top_p", "top_k", "min_p", "max_tokens"):
            if name in saved and saved[name] != getattr(sampling, name):
                raise ConfigError(
                    f"the solutions of engine.run={self.run} were drawn with search.sampling.{name}={saved[name]}; "
                    f"give that, not {getattr(sampling, name)}"
                )

    def open_engine(
        self, checkpoint: Checkpoint, *, tokenizer: PretrainedTokenizer, speculation: SpeculationFactory | None
    ) -> RecordedEngine:
        """Reads all trees. Raises: ValueError naming the file that holds none."""
        solutions: dict[Tokens, list[Generation]] = {}
        for source in self._list_trees():
            try:
                tree = SearchTree.from_dict(json.loads(source.read_bytes()))
                solutions.setdefault(tree.root, []).extend(_read_solutions(tree))
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                raise ValueError(f"run: {source} is no tree of a run ({type(error).__name__}: {error})") from error
        return RecordedEngine(f"engine.run={self.run}", solutions)

    def _list_trees(self) -> list[Path]:
        folder = Path(self.run or "") / TREES
        trees = sorted(folder.glob("*.json"))
        if not trees:
            raise ValueError(f"run must be the folder of a run, and {folder} holds no trees")
        return trees


class RecordedEngine:
    """Answers the k-th request for a prompt with the k-th solution that is saved for it."""

    def __init__(self, name: str, solutions: dict[Tokens, list[Generation]]) -> None:
        self._name = name
        self._solutions = solutions
        self._taken = dict.fromkeys(solutions, 0)
        self._stats = EngineStats()

    @property
    def stats(self) -> EngineStats:
        """See `Engine`."""
        return replace(self._stats)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """See `TokenGenerator`. Raises: ValueError for a prompt without so many solutions."""
        return [self._take(request) for request in requests]

    def _take(self, request: GenerationRequest) -> Generation:
        saved = self._solutions.get(request.prefix)
        if saved is None:
            raise ValueError(
                f"{self._name} has no solution of this question; give the task, model and prompt of that run"
            )
        if self._taken[request.prefix] == len(saved):
            raise ValueError(f"{self._name} has {len(saved)} solutions of this question; set a lower search.n")
        solution = saved[self._taken[request.prefix]]
        self._taken[request.prefix] += 1
        self._stats.tokens += len(solution.tokens)
        return replace(solution, usage=replace(solution.usage, prompt_tokens=len(request.prefix)))

    def close(self) -> None:
        """See `Engine`; nothing is held."""

    def assert_invariants(self) -> None:
        """See `Engine`."""


def _read_solutions(tree: SearchTree) -> Iterator[Generation]:
    """Yields the paths to the ended leaves of a tree, in the order in which they were sampled."""
    for leaf in tree.leaf_nodes():
        finish, steps = tree.nodes[leaf].finish, tree.path_steps(leaf)
        if finish is None or tree.find_context(leaf) is not None:
            continue  # cut by a budget, or behind a prompt that the search wrote itself
        tokens = tuple(token for step in steps for token in step.tokens)
        logprobs = tuple(logprob for step in steps for logprob in step.logprobs)
        is_measured = len(logprobs) == len(tokens)
        yield Generation(
            tokens=tokens,
            logprobs=logprobs if is_measured else (),
            finish=finish,
            usage=Usage(calls=1, tokens=len(tokens)),
        )
