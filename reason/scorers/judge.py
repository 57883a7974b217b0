"""A language model as a judge: it is asked whether a solution is right, or which of two is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from decoding.core import SamplingParams, Tokens, Usage
from decoding.validation import require_choice, require_count, require_not_negative, require_switch, shorten
from reason.models.checkpoint import Checkpoint
from reason.models.tokenizer import PretrainedTokenizer
from reason.scorers.judge_model import Asking, JudgeModel, VerdictWords
from search.strategies.tournament import PairVerdict, TournamentRules
from search.strategy import ScoredPaths, StepScores
from search.templates import Places, fill_template, validate_templates
from search.tree import Step

JUDGED = ("solutions", "steps", "pairs")
MODELS = ("target", "small")
TEMPLATES = {
    "solution": Places(("question", "solution")),
    "step": Places(("question", "solution")),
    "pair": Places(("question", "first", "second")),
}


class JudgeScorer:
    """Scores by the probability that a language model finds a solution right (generative verifiers, arXiv 2408.15240).

    judges       `solutions`: the last step of a path has the score of all of it; `steps`: each step has that of the
                 path up to it, one call for each new step; `pairs`: nothing is scored, it only compares
    model        `target`: the model that solves judges itself; `small`: the model at `small.path` on `small`
    templates    texts of the requests: `solution`, `step` and `pair`
    verdicts     the words for "right" and "wrong" that the templates ask for
    preferences  the words for the first and the second of a pair
    schedule, max_comparisons, both_orders  see `search.strategies.tournament.TournamentRules`

    The other knobs are those of `Asking`. Raises: ValueError naming the knob.
    """

    servers = None
    num_top = 0

    def __init__(
        self,
        *,
        templates: Mapping[str, str],
        judges: str = "solutions",
        model: str = "target",
        verdicts: Sequence[str] = ("yes", "no"),
        preferences: Sequence[str] = ("former", "latter"),
        reasons: bool = False,
        samples: int | None = None,
        max_tokens: int = 16,
        temperature: float = 0.7,
        schedule: str = "knockout",
        max_comparisons: int = 16,
        both_orders: bool = True,
    ) -> None:
        require_choice("judges", judges, JUDGED)
        require_choice("model", model, MODELS)
        validate_templates(templates, TEMPLATES)
        require_switch("reasons", reasons)
        require_count("samples", samples, at_least=1, or_null=True)
        require_count("max_tokens", max_tokens, at_least=1)
        require_not_negative("temperature", temperature)
        if temperature == 0 and samples is not None and samples > 1:
            raise ValueError(f"samples must be 1 with temperature=0, where all samples are equal; got {samples}")
        self.judges, self.model, self.templates = judges, model, templates
        self.verdicts, self.preferences = _to_words("verdicts", verdicts), _to_words("preferences", preferences)
        self.asking = Asking(reasons=reasons, samples=samples, max_tokens=max_tokens, temperature=temperature)
        self.tournament = TournamentRules(schedule=schedule, max_comparisons=max_comparisons, both_orders=both_orders)
        self._model: JudgeModel | None = None

    @property
    def gives_scores(self) -> bool:
        """See `base.Scorer`."""
        return self.judges != "pairs"

    @property
    def judges_solutions(self) -> bool:
        """See `base.Scorer`."""
        return self.judges == "solutions"

    @property
    def loaded_model(self) -> JudgeModel:
        """The model that is asked. Raises: RuntimeError before `use_model`."""
        if self._model is None:
            raise RuntimeError("scorer=judge was given no model; `reason.load` gives it one")
        return self._model

    def validate(self) -> None:
        """Checks nothing more: the constructor has checked the knobs."""

    def validate_writer(self, writer: Checkpoint) -> None:
        """Accepts every model: it reads text."""

    def load(self, writer: PretrainedTokenizer | None = None) -> None:
        """Loads nothing; see `use_model`."""

    def find_sampling(self, *, gives_logprobs: bool) -> SamplingParams:
        """See `AskingScorer`."""
        return self.asking.find_sampling(gives_logprobs=gives_logprobs)

    def use_model(self, model: JudgeModel) -> None:
        """See `AskingScorer`."""
        for words in (self.verdicts, self.preferences):
            model.require_words(words)
        self._model = model

    def close(self) -> None:
        """Closes the engine of a model of its own; that of the model that solves is closed with the solver."""
        if self._model is not None and self.model == "small":
            self._model.engine.close()
        self._model = None

    def bind(self, question: str, prompt: Tokens) -> JudgedPaths | None:
        """See `base.Scorer`."""
        del prompt
        return JudgedPaths(self, question) if self.gives_scores else None

    def bind_referee(self, question: str) -> JudgedPairs:
        """Returns the referee of one problem's tournament."""
        return JudgedPairs(self, question)


def _to_words(name: str, words: object) -> VerdictWords:
    """Returns two different words. Raises: ValueError."""
    texts = list(words) if isinstance(words, list | tuple) else []
    if len(texts) != 2 or not all(isinstance(t, str) and t.isalnum() for t in texts):
        raise ValueError(f"{name} must be two words, such as [yes, no] in quotes, got {shorten(words)}")
    if texts[0].casefold() == texts[1].casefold():
        raise ValueError(f"{name} must be two different words, got {shorten(words)}")
    return VerdictWords(*texts)


@dataclass
class JudgedPaths:
    """A `StepScorer` of one problem. A text is judged once."""

    scorer: JudgeScorer
    question: str
    known: dict[tuple[str, str], float | None] = field(default_factory=dict)

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        """See `search.strategy.StepScorer`. A path for which the judge has no verdict is not scored."""
        keys_of = [self._list_texts(path) for path in paths]
        new = list(dict.fromkeys(key for keys in keys_of for key in keys if key not in self.known))
        usage = Usage()
        if new:
            scorer = self.scorer
            requests = [
                fill_template(scorer.templates[name], question=self.question, solution=text) for name, text in new
            ]
            values, usage = await scorer.loaded_model.ask_verdicts(requests, scorer.verdicts, scorer.asking)
            self.known.update(zip(new, values, strict=True))
        return ScoredPaths(
            [self._read_scores(keys, len(path)) for keys, path in zip(keys_of, paths, strict=True)], usage
        )

    def _list_texts(self, path: Sequence[Step]) -> list[tuple[str, str]]:
        """Returns the template and the text of each verdict that the path needs, of its last steps."""
        texts = [step.text for step in path]
        if self.scorer.judges == "steps":
            return [("step", "".join(texts[:end])) for end in range(1, len(path) + 1)]
        return [("solution", "".join(texts))] if path else []

    def _read_scores(self, keys: Sequence[tuple[str, str]], num_steps: int) -> StepScores | None:
        scores = [self.known[key] for key in keys]
        if not scores or scores[-1] is None:
            return None
        return [*[None] * (num_steps - len(scores)), *scores]


@dataclass(frozen=True)
class JudgedPairs:
    """A `SolutionReferee` of one problem."""

    scorer: JudgeScorer
    question: str

    async def compare_solutions(self, first: str, second: str) -> PairVerdict:
        """See `search.strategies.tournament.SolutionReferee`."""
        scorer = self.scorer
        text = fill_template(scorer.templates["pair"], question=self.question, first=first, second=second)
        (share,), usage = await scorer.loaded_model.ask_verdicts([text], scorer.preferences, scorer.asking)
        return PairVerdict(share, usage)
