"""Several scorers as one: the mean of their scores, with weights that are given or learned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, cast

from decoding.core import SamplingParams, Tokens, Usage
from decoding.validation import is_number, require_choice, shorten
from reason.config.compose import instantiate, load_option
from reason.config.errors import ConfigError
from reason.models.checkpoint import Checkpoint
from reason.models.tokenizer import PretrainedTokenizer
from reason.scorers.base import ComparingScorer, Scorer
from reason.scorers.ensemble_weights import EnsembleWeights, to_logits
from reason.scorers.judge_model import AskingScorer, JudgeModel
from search.strategies.tournament import SolutionReferee, TournamentRules
from search.strategy import ScoredPaths, StepScorer, StepScores
from search.tree import Step

if TYPE_CHECKING:
    from reason.engines.http.settings import ServerSettings

MEANS = ("logit", "probability")


class EnsembleScorer:
    """Scores a step by the weighted mean of what the members give it.

    A member that leaves a step or a path out is left out there: the weights of the others then count for it. A judge
    that only compares (judges=pairs) gives no scores and may be a member for select=tournament.

    members       options of conf/scorer, or mappings of settings with the option as `scorer`
    weights       of the members that give scores, in their order; None: equal
    weights_file  learned weights of logits, from `reason.scorers.ensemble_weights`; None: `weights`
    mean          `logit`: the mean of the logarithms of the odds; `probability`: of the scores

    Raises: ValueError naming the knob, or what a member raises, after its name.
    """

    def __init__(
        self,
        *,
        members: Sequence[str | Mapping[str, Any]],
        weights: Sequence[float] | None = None,
        weights_file: str | None = None,
        mean: str = "logit",
    ) -> None:
        require_choice("mean", mean, MEANS)
        if isinstance(members, str) or not isinstance(members, Sequence) or len(members) < 2:
            raise ValueError(f"members must be a list of two scorers or more, got {shorten(members)}")
        self.mean, self.weights_file = mean, weights_file
        self.names = [_name_member(member) for member in members]
        self.members: list[Scorer] = [_make_member(member) for member in members]
        self.scoring = [name for name, member in zip(self.names, self.members, strict=True) if member.gives_scores]
        judges = [member for member in self.members if isinstance(member, AskingScorer) and member.model is not None]
        if not self.scoring:
            raise ValueError(f"members must hold one that gives scores, got {shorten(self.names)}")
        if len(judges) > 1:
            raise ValueError("members must hold one judge at most, which may both score and compare")
        self.judge = judges[0] if judges else None
        if weights_file is not None and (weights is not None or mean != "logit"):
            raise ValueError("weights_file holds weights of logits: leave weights null and mean=logit")
        self.weights, self.bias = self._read_weights(weights)

    def _read_weights(self, weights: Sequence[float] | None) -> tuple[list[float], float]:
        count = len(self.scoring)
        if self.weights_file is not None:
            learned = EnsembleWeights.read(self.weights_file)
            if sorted(learned.weights) != sorted(self.scoring):
                raise ValueError(
                    f"weights_file={self.weights_file} is for the members {', '.join(sorted(learned.weights))}; "
                    f"these are {', '.join(sorted(self.scoring))}"
                )
            return [learned.weights[name] for name in self.scoring], learned.bias
        if weights is None:
            return [1 / count] * count, 0.0
        valid = isinstance(weights, Sequence) and all(is_number(weight, low=0) for weight in weights)
        if not valid or len(weights) != count or not any(weights):
            raise ValueError(f"weights must be {count} numbers >= 0, not all 0, got {shorten(weights)}")
        return [weight / math.fsum(weights) for weight in weights], 0.0

    @property
    def gives_scores(self) -> bool:
        """See `base.Scorer`."""
        return True

    @property
    def judges_solutions(self) -> bool:
        """See `base.Scorer`: learned weights make probabilities of scores that were none."""
        if self.weights_file is not None:
            return True
        return all(getattr(member, "judges_solutions", False) for member in self.members if member.gives_scores)

    @property
    def num_top(self) -> int:
        """See `base.Scorer`."""
        return max(member.num_top for member in self.members)

    @property
    def servers(self) -> ServerSettings | None:
        """See `base.Scorer`: those of the first member that has some."""
        return next((member.servers for member in self.members if member.servers is not None), None)

    @property
    def tournament(self) -> TournamentRules | None:
        """See `base.ComparingScorer`."""
        return self.judge.tournament if isinstance(self.judge, ComparingScorer) else None

    @property
    def model(self) -> str | None:
        """See `judge_model.AskingScorer`."""
        return None if self.judge is None else self.judge.model

    def find_sampling(self, *, gives_logprobs: bool) -> SamplingParams:
        """See `judge_model.AskingScorer`."""
        assert self.judge is not None, "it asks no model"
        return self.judge.find_sampling(gives_logprobs=gives_logprobs)

    def use_model(self, model: JudgeModel) -> None:
        """See `judge_model.AskingScorer`."""
        if self.judge is not None:
            self.judge.use_model(model)

    def validate(self) -> None:
        """See `base.Scorer`."""
        for name, member in zip(self.names, self.members, strict=True):
            with _NamedErrors(name):
                member.validate()

    def validate_writer(self, writer: Checkpoint) -> None:
        """See `base.Scorer`."""
        for name, member in zip(self.names, self.members, strict=True):
            with _NamedErrors(name):
                member.validate_writer(writer)

    def load(self, writer: PretrainedTokenizer | None = None) -> None:
        """See `base.Scorer`."""
        for name, member in zip(self.names, self.members, strict=True):
            with _NamedErrors(name):
                member.load(writer)

    def close(self) -> None:
        """See `base.Scorer`."""
        for member in self.members:
            member.close()

    def bind(self, question: str, prompt: Tokens) -> EnsemblePaths:
        """See `base.Scorer`."""
        members = [cast(StepScorer, member.bind(question, prompt)) for member in self.members if member.gives_scores]
        return EnsemblePaths(self, members)

    def bind_referee(self, question: str) -> SolutionReferee:
        """See `base.ComparingScorer`."""
        assert isinstance(self.judge, ComparingScorer), "it has no judge"
        return self.judge.bind_referee(question)

    def combine(self, scores: Sequence[float | None]) -> float | None:
        """Returns the score of a step from those of the members that give scores; None where none has one."""
        known = [(weight, score) for weight, score in zip(self.weights, scores, strict=True) if score is not None]
        share = math.fsum(weight for weight, _ in known)
        if share == 0:
            return None
        total = math.fsum(self.weights)
        if self.mean == "probability":
            return min(1.0, math.fsum(weight * score for weight, score in known) / share)
        logits = to_logits([score for _, score in known])
        mean = math.fsum(weight * float(logit) for (weight, _), logit in zip(known, logits, strict=True)) / share
        z = self.bias + total * mean
        return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))


@dataclass(frozen=True)
class EnsemblePaths:
    """A `StepScorer` of one problem."""

    ensemble: EnsembleScorer
    members: Sequence[StepScorer]

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        """See `search.strategy.StepScorer`. Raises: what a member raises, and ValueError where one breaks the rules."""
        scored = [await member.score(paths) for member in self.members]
        for name, one in zip(self.ensemble.scoring, scored, strict=True):
            lengths = [
                len(path) if scores is None else len(scores) for path, scores in zip(paths, one.scores, strict=True)
            ]
            if lengths != [len(path) for path in paths]:
                raise ValueError(f"scorer {name} returned scores of another length than the paths")
        combined = [self._combine_path([one.scores[i] for one in scored], len(path)) for i, path in enumerate(paths)]
        return ScoredPaths(combined, reduce(add, (one.usage for one in scored), Usage()))

    def _combine_path(self, scores: Sequence[StepScores | None], num_steps: int) -> StepScores | None:
        if all(one is None for one in scores):
            return None
        return [
            self.ensemble.combine([None if one is None else one[step] for one in scores]) for step in range(num_steps)
        ]


class _NamedErrors:
    """Puts the name of a member before a ValueError about it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError) and not isinstance(error, ConfigError):
            raise ValueError(f"members: {self._name}: {error}") from error


def _name_member(member: object) -> str:
    name = member.get("scorer") if isinstance(member, Mapping) else member
    if not isinstance(name, str):
        raise ValueError(
            f"members must be options of conf/scorer, or settings with scorer=OPTION, got {shorten(member)}"
        )
    return name


def _make_member(member: str | Mapping[str, Any]) -> Scorer:
    """Returns the scorer of an option, with other settings where they are given. Raises: ConfigError."""
    name = _name_member(member)
    if name == "ensemble":
        raise ValueError("members cannot hold an ensemble")
    changes = {key: value for key, value in member.items() if key != "scorer"} if isinstance(member, Mapping) else {}
    scorer: Scorer = instantiate(f"scorer.members.{name}", {**load_option("scorer", name), **changes})
    if getattr(scorer, "reads_gold", False):
        raise ValueError(f"members cannot hold {name}, which knows the gold answers")
    return scorer
