"""A language model as a judge of solutions, steps and pairs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from decoding.core import Generation, GenerationRequest, OversizedRequest, Usage
from reason import ConfigError
from reason.config.compose import compose_settings, instantiate, load_option
from reason.prompt import Prompt
from reason.scorers.judge import JudgeScorer
from reason.scorers.judge_model import Asking, JudgeModel, VerdictWords
from reason.settings.validate import validate_settings
from reason.thinking import ThinkingFormat
from search.tree import Step
from tests.support.fakes import EngineWithoutModel
from tests.support.toy_solver import BytePrompt

WORDS = VerdictWords("yes", "no")
ASKING = Asking(reasons=False, samples=None, max_tokens=64, temperature=0.7)
THINKING = ThinkingFormat(opening="<think>", closing="</think>", forced_end="</think>")


class AnsweringEngine(EngineWithoutModel):
    """Answers a request by its text, one byte a token; each token has log-probability -0.1 * its place."""

    def __init__(self, answer: Callable[[str, int], str], logprobs: bool = True, window: int | None = None) -> None:
        self.answer, self.logprobs, self.window = answer, logprobs, window
        self.texts: list[str] = []
        self.is_closed = False

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        if self.window is not None and any(len(request.prefix) > self.window for request in requests):
            raise OversizedRequest("too long")
        return [self._answer_one(request) for request in requests]

    def close(self) -> None:
        self.is_closed = True

    def _answer_one(self, request: GenerationRequest) -> Generation:
        self.texts.append(bytes(request.prefix).decode())
        tokens = tuple(self.answer(self.texts[-1], request.seed).encode())[: request.params.max_tokens]
        logprobs = tuple(-0.1 * (i + 1) for i in range(len(tokens))) if self.logprobs else ()
        return Generation(
            tokens=tokens,
            logprobs=logprobs,
            finish="eos",
            usage=Usage(calls=1, tokens=len(tokens), prompt_tokens=len(request.prefix), cached_tokens=3),
        )


def model(engine: AnsweringEngine, **changes: Any) -> JudgeModel:
    return JudgeModel(engine=engine, prompt=cast(Prompt, BytePrompt()), gives_logprobs=engine.logprobs, **changes)


def ask(engine: AnsweringEngine, *texts: str, asking: Asking = ASKING, **changes: Any) -> list[float | None]:
    return asyncio.run(model(engine, **changes).ask_verdicts(texts, WORDS, asking))[0]


def judge(engine: AnsweringEngine, **knobs: Any) -> JudgeScorer:
    scorer: JudgeScorer = instantiate("scorer", load_option("scorer", "judge") | knobs)
    scorer.use_model(model(engine))
    return scorer


def step(text: str) -> Step:
    return Step(tuple(text.encode()), text)


PATHS = [[step("a"), step("b")], [step("a")]]


def test_score_is_the_probability_of_the_tokens_of_the_verdict() -> None:
    # "yes" are tokens 2 to 4 of " (yes)": the others do not count
    share = math.exp(-0.3 - 0.4 - 0.5)
    assert ask(AnsweringEngine(lambda *_: " (yes)"), "?") == [pytest.approx(share)]
    assert ask(AnsweringEngine(lambda *_: "- No."), "?") == [pytest.approx(1 - math.exp(-0.3 - 0.4))]


def test_word_inside_another_is_no_verdict() -> None:
    assert ask(AnsweringEngine(lambda *_: "know nothing, yesterday"), "?") == [None]


def test_reasons_make_the_last_verdict_count_and_else_the_first() -> None:
    engine = AnsweringEngine(lambda *_: "no, wait: yes", logprobs=False)
    reasoning = Asking(reasons=True, samples=1, max_tokens=64, temperature=0)
    assert ask(engine, "?") == [0.0]
    assert ask(engine, "?", asking=reasoning) == [1.0]


def test_thought_is_skipped_or_not_read() -> None:
    engine = AnsweringEngine(lambda text, _: "yes" if "</think>" in text else "<think>no</think>yes", logprobs=False)
    assert ask(engine, "?", thinking=THINKING) == [1.0]
    assert engine.texts[0].endswith("</think>\n\n")
    assert ask(engine, "?", thinking=THINKING, can_continue=False) == [1.0]
    assert ask(AnsweringEngine(lambda *_: "<think>no", logprobs=False), "?", thinking=THINKING) == [None]


def test_verdict_behind_a_skipped_thought_is_read_where_the_prompt_always_opens_one() -> None:
    opened = replace(THINKING, opened_by_prompt=True)
    engine = AnsweringEngine(lambda text, _: "yes" if "</think>" in text else "no</think>yes", logprobs=False)
    assert ask(engine, "?", thinking=opened) == [1.0]
    assert ask(engine, "?", thinking=opened, can_continue=False) == [1.0]
    assert ask(AnsweringEngine(lambda *_: "yes", logprobs=False), "?", thinking=opened, can_continue=False) == [None]


def test_without_logprobs_the_share_of_several_samples_counts() -> None:
    seeds = set[int]()

    def answer(_: str, seed: int) -> str:
        seeds.add(seed)
        return ["yes", "no", "no", "?"][len(seeds) % 4]

    assert ask(AnsweringEngine(answer, logprobs=False), "?") == [pytest.approx(2 / 6)]  # two have no verdict
    assert len(seeds) == 8


def test_request_that_is_too_long_is_not_judged_and_the_others_are() -> None:
    for engine, window in (
        (AnsweringEngine(lambda *_: "yes"), 100),
        (AnsweringEngine(lambda *_: "yes", window=30), None),
    ):
        scores = ask(engine, "short", "long" * 20, context_window=window)
        assert scores[0] is not None
        assert scores[1] is None


@pytest.mark.parametrize(("judges", "num_calls"), [("solutions", 2), ("steps", 2)])
def test_path_and_step_are_judged_once_and_counted_as_scoring(judges: str, num_calls: int) -> None:
    engine = AnsweringEngine(lambda text, _: "yes" if "\nab\n" in text else "no", logprobs=False)
    bound = judge(engine, judges=judges, samples=1).bind("why?", ())
    assert bound is not None
    scored = asyncio.run(bound.score(PATHS))
    assert scored.scores == ([[None, 1.0], [0.0]] if judges == "solutions" else [[0.0, 1.0], [0.0]])
    answers = len("yes") + len("no")
    read = sum(len(text) - 3 for text in engine.texts)
    assert scored.usage == Usage(scorer_calls=num_calls, scored_tokens=read + answers)
    again = asyncio.run(bound.score(PATHS))
    assert (again.scores, again.usage, len(engine.texts)) == (scored.scores, Usage(), num_calls)


def test_path_without_a_verdict_is_not_scored() -> None:
    bound = judge(AnsweringEngine(lambda *_: "perhaps")).bind("why?", ())
    assert bound is not None
    assert asyncio.run(bound.score([*PATHS, []])).scores == [None, None, None]


def test_pair_is_compared_in_the_given_order() -> None:
    engine = AnsweringEngine(lambda text, _: "Former" if text.index("good") < text.index("bad") else "latter", False)
    scorer = judge(engine, judges="pairs")
    referee = scorer.bind_referee("why?")
    assert scorer.bind("why?", ()) is None
    assert asyncio.run(referee.compare_solutions("good", "bad")).share == 1
    compared = asyncio.run(referee.compare_solutions("bad", "good"))
    assert (compared.share, compared.usage.scorer_calls) == (0, 8)


def test_text_of_a_solution_is_not_read_for_places() -> None:
    engine = AnsweringEngine(lambda *_: "yes")
    bound = judge(engine).bind("{solution}?", ())
    assert bound is not None
    asyncio.run(bound.score([[step("{question}")]]))
    assert "{solution}?" in engine.texts[0]
    assert "\n{question}\n" in engine.texts[0]


def test_engine_of_its_own_is_closed_with_the_scorer_and_the_solving_one_is_not() -> None:
    for name in ("target", "small"):
        engine = AnsweringEngine(lambda *_: "yes")
        judge(engine, model=name).close()
        assert engine.is_closed == (name == "small")


def test_error_of_the_engine_is_raised() -> None:
    def answer(text: str, seed: int) -> str:
        raise ConnectionError("gone")

    bound = judge(AnsweringEngine(answer)).bind("why?", ())
    assert bound is not None
    with pytest.raises(ConnectionError, match="gone"):
        asyncio.run(bound.score(PATHS))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"judges": "all"}, "judges must be one of solutions, steps, pairs"),
        ({"model": "large"}, "model must be one of target, small"),
        ({"verdicts": [True, False]}, "verdicts must be two words"),
        ({"verdicts": ["yes", "Yes"]}, "verdicts must be two different words"),
        ({"preferences": ["former"]}, "preferences must be two words"),
        ({"samples": 0}, "samples must be"),
        ({"samples": 2, "temperature": 0}, "samples must be 1 with temperature=0"),
        ({"max_tokens": 0}, "max_tokens must be"),
        ({"schedule": "league"}, "schedule must be one of knockout, round_robin"),
        ({"max_comparisons": 1}, "max_comparisons must be"),
        ({"templates": {"solution": "?"}}, "templates"),
    ],
)
def test_wrong_knob_is_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        instantiate("scorer", load_option("scorer", "judge") | knobs)


def validate(*overrides: str) -> None:
    validate_settings(*compose_settings(overrides))


def test_settings_that_cannot_work_are_refused_before_anything_loads() -> None:
    with pytest.raises(ConfigError, match=r"search.select=tournament has a judge compare .* scorer=prm is none"):
        validate("search=self_consistency", "search.select=tournament", "scorer=prm")
    with pytest.raises(ConfigError, match=r"search=beam_search chooses by score and scorer=judge with judges=pairs"):
        validate("search=beam_search", "scorer=judge", "scorer.judges=pairs")
    with pytest.raises(ConfigError, match=r"scorer.model=small and a router"):
        validate("scorer=judge", "scorer.model=small", "router=entropy")
    with pytest.raises(ConfigError, match=r"early_stop needs .* a judge may choose any answer"):
        validate("search=beam_search", "scorer=judge", "search.select=tournament", "search.early_stop=1")
    validate("search=self_consistency", "search.select=tournament", "scorer=judge", "scorer.judges=pairs")


def test_vocabulary_that_cannot_write_the_verdicts_is_refused() -> None:
    class NumberPrompt(BytePrompt):
        def encode_continuation(self, text: str) -> tuple[int, ...]:
            return ()

    with pytest.raises(ValueError, match="the judge's vocabulary cannot write 'yes'"):
        JudgeModel(engine=AnsweringEngine(lambda *_: ""), prompt=cast(Prompt, NumberPrompt())).require_words(WORDS)
