"""Thinking models without weights: their settings as a run composes them, and an engine that writes a scripted thought.

The thought has more paragraphs than a search without a limit of its own should mind, and some are longer than a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decoding.core import FinishReason, Generation, GenerationRequest, Tokens, Usage
from reason.config.compose import compose_settings, instantiate, list_options
from reason.models.byte_tokenizer import ByteTokenizer
from reason.prompt import Prompt
from reason.scorers.none import NoScorer
from reason.solver import Solver
from reason.thinking import ThinkingFormat
from search.strategy import ScoredPaths
from search.tree import Step
from tests.support.scripted_thinker import write_thought
from tests.support.toy_search import ToyEmbedder, ToyEngine, ToyScorer, measure_as_sure

END, MARK = ByteTokenizer.eos_token_id, b"\x1e"
MODEL_PATH = "model.path=OWNER/NAME"
"""For yamls that leave the path to the user."""
NUM_PARAGRAPHS = 45
THOUGHT = write_thought(NUM_PARAGRAPHS)
READABLE = 1536
"""Tokens of a path that the reward model reads: the window of most is shorter than a thought."""
ANSWER = "The answer is \\boxed{7}."
REMARK = "Nothing is wrong with it."
"""What the model writes where it is asked for something else than a solution."""


def thinking_models() -> list[str]:
    """The options of `conf/model/` that say how the model marks its thought."""
    settings = {name: compose_settings([f"model={name}", MODEL_PATH])[0] for name in list_options("model")}
    return [name for name, composed in settings.items() if composed["model"]["thinking"]]


class ThinkingEngine(ToyEngine):
    """Writes the same thought and answer behind every prompt, whatever the seed, with the tags of `thinking`.

    A thought that was ended by force is answered; a prompt with a skipped thought gets a remark. Only what a request
    may have is written, so that a step costs the same at any place of the thought.
    """

    def __init__(self, thinking: ThinkingFormat, answer_start: str) -> None:
        super().__init__()
        opening = "" if thinking.opened_by_prompt else f"{thinking.opening}\n"
        self._answer_start = answer_start.encode()
        self._solution = f"{opening}{THOUGHT}{thinking.closing}\n\n{ANSWER}".encode()
        self._forced_end = thinking.forced_end.encode()
        self._forced_answer = b"7}." if thinking.forced_end.endswith("{") else b"\\boxed{7}."

    def continue_prefix(self, request: GenerationRequest) -> Generation:
        """See `ToyEngine`."""
        text, max_tokens = self._read_solution(request.prefix), request.params.max_tokens
        if self._solution.startswith(text):
            rest = self._solution[len(text) : len(text) + max_tokens + 1]
        else:
            _, forced_end, behind = text.partition(self._forced_end)
            rest = self._forced_answer[len(behind) :] if forced_end else REMARK.encode()
        finish: FinishReason = "eos"
        if (length := _find_stop(rest, request.params.stop)) is not None and length <= max_tokens:
            tokens, finish = tuple(rest[:length]), "stop"
        elif len(rest) >= max_tokens:
            tokens, finish = tuple(rest[:max_tokens]), "length"
        else:
            tokens = (*rest, END)
        usage = Usage(calls=1, tokens=len(tokens), prompt_tokens=len(request.prefix), forwards=len(tokens))
        generation = Generation(tokens=tokens, logprobs=(-0.5,) * len(tokens), finish=finish, usage=usage)
        return measure_as_sure(generation, request.num_top) if request.num_top else generation

    def _read_solution(self, prefix: Tokens) -> bytes:
        """What stands behind the prompt, which ends with the mark of `ByteTokenizer` and what begins the answer."""
        text = bytes(token for token in prefix if token < END)
        return text[text.rindex(MARK) + 1 :].removeprefix(self._answer_start)


def _find_stop(text: bytes, stops: Sequence[str]) -> int | None:
    """The end of the stop string that is complete first."""
    places = [(text.find(stop.encode()), len(stop.encode())) for stop in stops]
    return min((place + length for place, length in places if place >= 0), default=None)


class NearSightedScorer(ToyScorer):
    """Scores a step by its text, and no path of more than `READABLE` tokens."""

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        """See `search.strategy.StepScorer`."""
        readable = [path for path in paths if sum(len(step.tokens) for step in path) <= READABLE]
        scored = await super().score(readable)
        scores = iter(scored.scores)
        return ScoredPaths([next(scores) if path in readable else None for path in paths], scored.usage)


class NearSightedModel(NoScorer):
    """Binds every question to a `NearSightedScorer`."""

    def bind(self, question: str, prompt: Tokens) -> Any:
        return NearSightedScorer()


def compose_solver(*overrides: str) -> Solver:
    """Returns the solver of a thinking model's settings: strategy, step rule, prompt and thinking are those of a run.

    In the place of engine, reward model and embedder, which need weights, are a `ThinkingEngine`, a scorer that reads a
    part of the thought, and a toy embedder.
    """
    settings, _ = compose_settings([*overrides, MODEL_PATH])
    thinking = instantiate("model.thinking", settings["model"]["thinking"])
    prompt_format = instantiate("model.prompt", settings["model"]["prompt"])
    return Solver(
        strategy=instantiate("search", settings["search"]),
        step_rule=instantiate("step", settings["step"]),
        thinking=thinking,
        prompt=Prompt(prompt_format, ByteTokenizer(), (thinking.opening, thinking.closing)),
        engine=ThinkingEngine(thinking, prompt_format.answer_start),
        scorer=NearSightedModel(),
        scorer_reads=settings["scorer_reads"],
        scorer_window=settings["scorer_window"],
        embedder=ToyEmbedder(),
        seed=settings["seed"],
    )
