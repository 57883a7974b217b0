"""Workloads of the speculation benchmarks: problems, their order, and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from decoding.core import GenerationRequest, SamplingParams, Tokens
from decoding.model.transformers_checkpoint import Device, DType, HFBackend
from reason.config.compose import Settings, compose_settings, instantiate, load_option
from reason.models.checkpoint import eos_ids, find_model, load_tokenizer
from reason.models.tokenizer import PretrainedTokenizer
from reason.prompt import Prompt
from reason.tasks.base import Task
from search.expand import derive_seed

TASKS = {"bundled": "synthetic_aime", "thinker": "puzzles"}
"""The bundled models that can be measured, and the problems of each; thoughts of the thinker are long texts."""


@dataclass(frozen=True)
class BundledTarget:
    """A bundled model, loaded once for all engines, with its tokenizer, its prompt format and the task it can do."""

    backend: HFBackend
    tokenizer: PretrainedTokenizer
    prompt: Prompt
    max_tokens: int
    eos_ids: frozenset[int]
    task: str

    @classmethod
    def load(cls, model: str = "bundled", *, device: Device = "auto", dtype: DType = "auto") -> BundledTarget:
        """Loads one of `TASKS`."""
        settings = compose_settings([f"model={model}"])[0]["model"]
        source = find_model(settings["path"]).source
        tokenizer = load_tokenizer(source)
        return cls(
            HFBackend.from_pretrained(source, device=device, dtype=dtype),
            tokenizer,
            Prompt(instantiate("model.prompt", settings["prompt"]), tokenizer),
            settings["sampling"]["max_tokens"],
            eos_ids(source, tokenizer),
            TASKS[model],
        )


@dataclass(frozen=True)
class WorkloadQuestion:
    """An encoded problem; branches with the same `id` share their draft tables."""

    family: str
    id: str
    prompt: Tokens


@dataclass(frozen=True)
class Workload:
    """`trajectories` branches of each question, one question after the other.

    The seed of a branch depends on the question and the number of the branch alone, so all setups decode the same
    requests. `first` is the number of the first branch of a question.
    """

    questions: tuple[WorkloadQuestion, ...]
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


def make_questions(
    prompt: Prompt, *, per_family: int, split: Literal["train", "heldout"], task: str = TASKS["bundled"]
) -> tuple[WorkloadQuestion, ...]:
    """Returns `per_family` questions of each family of a task; the families alternate."""
    settings = load_option("task", task)
    columns = [
        _encode_family(prompt, family, settings | {"size": per_family, "split": split})
        for family in settings["families"]
    ]
    return tuple(question for row in zip(*columns, strict=True) for question in row)


def _encode_family(prompt: Prompt, family: str, settings: Settings) -> Sequence[WorkloadQuestion]:
    problems: Task = instantiate("task", settings | {"name": family, "families": [family]})
    return [WorkloadQuestion(family, problem.id, prompt.encode(problem.question)) for problem in problems]
