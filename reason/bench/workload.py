"""What a speculation benchmark decodes: which problems, in which order, with which seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from decoding.core import GenerationRequest, SamplingParams, Tokens
from decoding.model.transformers_checkpoint import Device, DType, HFBackend
from reason.config.compose import make, member
from reason.models.checkpoint import eos_ids, find_model, load_tokenizer
from reason.prompt import Prompt
from reason.tasks.synthetic import Synthetic
from search.seeds import derive_seed

_TASK = "synthetic_aime"


@dataclass(frozen=True)
class Target:
    """The bundled writer, loaded once for all engines, and how it wants to be asked."""

    backend: HFBackend
    tokenizer: Any
    prompt: Prompt
    max_tokens: int
    ends: frozenset[int]

    @classmethod
    def load(cls, *, device: Device = "auto", dtype: DType = "auto") -> Target:
        settings = member("model", "bundled")
        source = find_model(settings["path"]).source
        tokenizer = load_tokenizer(source)
        return cls(
            HFBackend.load(source, device=device, dtype=dtype),
            tokenizer,
            Prompt(make("model.prompt", settings["prompt"]), tokenizer),
            settings["sampling"]["max_tokens"],
            eos_ids(source, tokenizer),
        )


@dataclass(frozen=True)
class Question:
    """A problem as the engine sees it; branches of one `id` learn together."""

    family: str
    id: str
    prompt: Tokens


@dataclass(frozen=True)
class Workload:
    """`trajectories` branches of each question, one question after the other.

    A branch's seed depends on the question and its own number alone, so every contender is asked for the same. `first`
    is the number of the first: other numbers, other branches.
    """

    questions: tuple[Question, ...]
    trajectories: int
    temperature: float
    max_tokens: int
    first: int = 0

    def requests(self) -> list[GenerationRequest]:
        params = SamplingParams(max_tokens=self.max_tokens, temperature=self.temperature)
        return [
            GenerationRequest(
                prefix=question.prompt, params=params, seed=derive_seed(question.id, number), group=question.id
            )
            for question in self.questions
            for number in range(self.first, self.first + self.trajectories)
        ]

    @property
    def families(self) -> list[str]:
        """The family of every request."""
        return [question.family for question in self.questions for _ in range(self.trajectories)]


def questions(prompt: Prompt, *, per_family: int, split: Literal["train", "heldout"]) -> tuple[Question, ...]:
    """As many of each family of the task, turn by turn, so that the first few are of different families."""
    task = member("task", _TASK)
    columns = [_of_family(prompt, family, per_family, split, task["difficulty"]) for family in task["families"]]
    return tuple(question for row in zip(*columns, strict=True) for question in row)


def _of_family(prompt: Prompt, family: str, size: int, split: Any, difficulty: Any) -> Sequence[Question]:
    task = Synthetic(name=family, families=[family], difficulty=difficulty, size=size, split=split)
    return [Question(family, problem.id, prompt.encode(problem.question)) for problem in task]
