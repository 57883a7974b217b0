"""Workloads of the speculation benchmarks: problems, their order, and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from decoding.core import GenerationRequest, SamplingParams, Tokens
from decoding.model.backend import Backend
from decoding.model.device_choice import Device, DType
from decoding.model.transformers_checkpoint import HFBackend
from decoding.round import Speculation
from reason.bench.puppet import BodyShape, Puppet, make_puppet
from reason.models.checkpoint import eos_ids, find_model, load_tokenizer
from reason.models.tokenizer import PretrainedTokenizer
from reason.prompt import Prompt
from reason.tasks.base import Task
from search.seeds import derive_seed

if TYPE_CHECKING:
    from reason.config.compose import Settings

TASKS = {"bundled": "synthetic_aime", "thinker": "puzzles"}
"""The bundled models that can be measured, and the problems of each; thoughts of the thinker are long texts."""


class SpeculationTarget(Protocol):
    """What the speculation benchmark decodes with, and the questions that it decodes."""

    @property
    def backend(self) -> Backend: ...
    @property
    def tokenizer(self) -> PretrainedTokenizer: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def eos_ids(self) -> frozenset[int]: ...
    @property
    def task(self) -> str: ...

    def make_questions(self, *, per_family: int, split: Literal["train", "heldout"]) -> tuple[WorkloadQuestion, ...]:
        """Returns `per_family` questions of each family; the families alternate."""
        ...

    def adapt_speculation(self, speculation: Speculation, workload: Workload) -> Speculation:
        """Returns the parts with which an engine decodes the workload on this target."""
        ...


@dataclass(frozen=True)
class BundledTarget:
    """A bundled model, loaded once for all engines, with its tokenizer, its prompt format and the task it can do.

    Implements `SpeculationTarget`. `backend` is the model itself, or a puppet with it as its brain.
    """

    backend: HFBackend | Puppet
    tokenizer: PretrainedTokenizer
    prompt: Prompt
    max_tokens: int
    eos_ids: frozenset[int]
    task: str

    @classmethod
    def load(cls, model: str = "bundled", *, device: Device = "auto", dtype: DType = "auto") -> BundledTarget:
        """Loads one of `TASKS`."""
        # here: a target that is made from parts needs no hydra, which a lent machine does not have
        from reason.config.compose import compose_settings, instantiate

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

    def make_questions(self, *, per_family: int, split: Literal["train", "heldout"]) -> tuple[WorkloadQuestion, ...]:
        """See `SpeculationTarget`."""
        return make_questions(self.prompt, per_family=per_family, split=split, task=self.task)

    def attach_body(self, shape: BodyShape, *, dtype: DType = "auto") -> Puppet:
        """Returns a puppet whose brain is this model. Raises: ValueError where it does not fit."""
        assert isinstance(self.backend, HFBackend), "a puppet has a body already"
        return make_puppet(shape, self.backend, dtype=dtype)

    def adapt_speculation(self, speculation: Speculation, workload: Workload) -> Speculation:
        """See `SpeculationTarget`; nothing needs to change."""
        return speculation


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
    from reason.config.compose import load_option  # here: see `BundledTarget.load`

    settings = load_option("task", task)
    columns = [
        _encode_family(prompt, family, settings | {"size": per_family, "split": split})
        for family in settings["families"]
    ]
    return tuple(question for row in zip(*columns, strict=True) for question in row)


def _encode_family(prompt: Prompt, family: str, settings: Settings) -> Sequence[WorkloadQuestion]:
    from reason.config.compose import instantiate  # here: see `BundledTarget.load`

    problems: Task = instantiate("task", settings | {"name": family, "families": [family]})
    return [WorkloadQuestion(family, problem.id, prompt.encode(problem.question)) for problem in problems]
