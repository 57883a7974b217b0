"""`early_exit.verifier`: what is refused, which model reads the thoughts, and what a solver makes of its verdicts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

import reason
from decoding.core import Generation, SamplingParams, Usage
from reason.config.compose import compose_settings, load_option
from reason.config.errors import ConfigError
from reason.problem import Problem
from reason.prompt import Prompt
from reason.scorers.judge import JudgeScorer
from reason.scorers.judge_model import JudgeModel
from reason.scorers.thought_verifier import YES_NO, ThoughtVerifier
from reason.settings.solve_spec import SolveSpec
from reason.settings.validate import validate_settings
from reason.thinking import ThinkingFormat
from search.early_exit.redundant import RedundantThought
from search.strategies.best_of_n import BestOfN
from tests.support.fakes import EngineWithoutModel
from tests.support.judging_server import JudgingServer
from tests.support.scripted_thinker import CLOSING, FORCED_END
from tests.support.toy_search import ROOT, ToyEngine, decode_bytes
from tests.support.toy_solver import BytePrompt, toy_solver

THINKING = "thinking@model.thinking=r1"
RULE = ["early_exit=redundant", "early_exit.at=turns"]
NO_SERVER = "http://127.0.0.1:9/v1"


def spec_of(*overrides: str, small_url: str | None = None) -> SolveSpec:
    """The spec of these settings; with `small_url` the small model is behind a server there."""
    config, choices = compose_settings(overrides)
    if small_url is not None:
        served = {"urls": [small_url], "model": "toy", "path": "bytes", "vocabulary": "same"}
        knobs = {key: value for key, value in load_option("engine", "openai").items() if key != "defaults"}
        config = config | {"small": knobs | served}
    return validate_settings(config, choices)


def test_probes_find_the_answers_unless_a_verifier_is_set() -> None:
    assert spec_of(THINKING, *RULE).verifier is None
    target = spec_of(THINKING, *RULE, "early_exit.verifier=target").verifier
    assert target is not None
    assert target.small is None


def test_verifier_on_a_server_need_not_continue_a_text() -> None:
    verifier = spec_of(
        THINKING, *RULE, "early_exit.verifier=small", "model.prompt.raw=null", small_url=NO_SERVER
    ).verifier
    assert verifier is not None
    assert verifier.small is not None
    assert not verifier.small.settings.continues_text


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [THINKING, *RULE, "early_exit.verifier=model"],
            "early_exit.verifier must be one of probe, target, small; got",
        ),
        (
            [THINKING, *RULE, "early_exit.verifier=target", "early_exit.at=every"],
            "early_exit.verifier=target reads the parts .* set early_exit.at=turns, got every",
        ),
        (
            [THINKING, *RULE, "early_exit.verifier=target", "early_exit.probe_tokens=1"],
            "early_exit.probe_tokens must be an int",
        ),
        ([THINKING, *RULE, "early_exit.templates.answer='is it?'"], "early_exit.templates.answer must hold {part}"),
        (
            [THINKING, *RULE, "early_exit.templates.same='{former} {latter} {solution}'"],
            "templates.same cannot hold {solution}",
        ),
        ([THINKING, *RULE, "early_exit.verifier=small", "small.path=no/such/folder"], "small.path"),
        (
            [
                THINKING,
                *RULE,
                "early_exit.verifier=small",
                "engine=openai",
                "engine.model=m",
                "search=self_consistency",
            ],
            "early_exit=redundant continues a thought, and this engine begins every answer anew",
        ),
        (
            [THINKING, *RULE, "early_exit.verifier=small", "router=random", "scorer=none", "search=self_consistency"],
            "early_exit=redundant asks one model for its answer, and router=random writes with two",
        ),
    ],
)
def test_wrong_setting_is_refused_by_name_before_a_model_loads(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of(*overrides)


def test_vocabulary_without_yes_and_no_is_refused_before_a_model_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_engine(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("reason.engines.spec.EngineSpec.open_engine", open_engine)
    monkeypatch.setattr("reason.prompt.Prompt.decode", lambda *_: "?")  # a vocabulary that knows no words
    with pytest.raises(ConfigError, match=r"early_exit.verifier: .*'yes'.* early_exit.verifier=small with small.path"):
        reason.load(THINKING, *RULE, "early_exit.verifier=target")


def test_missing_server_of_the_verifier_is_named() -> None:
    spec = spec_of(THINKING, *RULE, "early_exit.verifier=small", small_url=NO_SERVER)
    with pytest.raises(ConfigError, match=r"small\.urls"):
        spec.load_solver()


FORM = ThinkingFormat(
    opening="<think>", closing=CLOSING, forced_end=FORCED_END, answer_tokens=60, opened_by_prompt=False
)
PARTS = ["<think>It is 5. ", "Wait, so 7. ", "Wait, so 7 too. ", "Wait, again 7. ", "Wait, 7. "]


class ReadingEngine(EngineWithoutModel):
    """Answers a verifier's requests: every part has an answer, and two are the same if both say 7."""

    def __init__(self, reply: str = "") -> None:
        self.texts: list[str] = []
        self.limits: set[int] = set()
        self.reply, self.is_closed = reply, False

    async def generate(self, requests: Any) -> list[Generation]:
        return [self._answer_one(request) for request in requests]

    def close(self) -> None:
        self.is_closed = True

    def _answer_one(self, request: Any) -> Generation:
        text = bytes(request.prefix).decode()
        self.texts.append(text)
        self.limits.add(request.params.max_tokens)
        is_same = "come to an answer" in text or text.count("7") == 2
        tokens = tuple((self.reply or ("Yes." if is_same else "No, they differ.")).encode())
        usage = Usage(calls=1, tokens=len(tokens), forwards=2)
        # the judge was not sure of the word that it said, and it counts all the same
        return Generation(tokens=tokens, logprobs=(-1.0,) * len(tokens), finish="eos", usage=usage)


def thinker() -> ToyEngine:
    solution = "".join(PARTS) + f"{CLOSING} So \\boxed{{3}}."

    def write(seed: int, prefix: Any) -> str:
        text = decode_bytes(prefix[len(ROOT) :])
        if FORCED_END in text:
            return "\\boxed{7}."[len(text.partition(FORCED_END)[2]) :]
        return solution[len(text) :]

    return ToyEngine(write)


def solve(engine: ReadingEngine, **knobs: Any) -> Any:
    templates = load_option("early_exit", "redundant")["templates"]
    fields: dict[str, Any] = {"verifier": "small", "at": "turns", "every": 1, "templates": templates}
    model = JudgeModel(engine=engine, prompt=cast(Prompt, BytePrompt()))
    arguments: dict[str, Any] = {
        "engine": thinker(),
        "thinking": FORM,
        "strategy": BestOfN(n=2, sampling=SamplingParams(max_tokens=400)),
        "early_exit": RedundantThought(**(fields | knobs)),
        "verifier": ThoughtVerifier(model=model, is_small=knobs.get("verifier", "small") == "small"),
    }
    with toy_solver(**arguments) as solver:
        return solver.solve(Problem.from_question("toy?", prompt=ROOT))


def test_solver_ends_a_thought_where_the_verifier_finds_the_same_answer_again() -> None:
    engine = ReadingEngine()
    solution = solve(engine)
    assert (solution.answer, solution.thought) == ("7", "".join(PARTS[:3]).removeprefix("<think>") + "\nEnough.")
    assert all("toy?" in text and "<think>" not in text for text in engine.texts)
    assert engine.limits == {16}
    later = [text for text in engine.texts if "Wait, so 7 too." in text and "come to the same answer" in text]
    assert later
    assert all(text.index("Wait, so 7.") < text.index("Wait, so 7 too.") for text in later)


@pytest.mark.parametrize("verifier", ["small", "target"])
def test_tokens_of_a_small_model_are_counted_apart(verifier: str) -> None:
    engine = ReadingEngine()
    usage = solve(engine, verifier=verifier).usage
    written = 2 * (3 * len("Yes.") + len("No, they differ.") + len("Yes."))
    assert (usage.probes, usage.probe_tokens) == (2 * 3, written)
    assert usage.small_tokens == (written if verifier == "small" else 0)
    assert usage.small_forwards == (2 * len(engine.texts) if verifier == "small" else 0)
    assert engine.is_closed == (verifier == "small")  # that of the model that solves belongs to the solver


def test_verifier_that_answers_nonsense_never_ends_a_thought(caplog: pytest.LogCaptureFixture) -> None:
    solution = solve(ReadingEngine("Perhaps."), agree=1, give_up_tokens=1, changes=1)
    assert (solution.answer, solution.usage.probes) == ("3", 2 * 4)
    assert "which has no verdict (yes or no); such a part of a thought does not end it" in caplog.text


def test_part_that_does_not_fit_the_window_never_ends_a_thought() -> None:
    engine = ReadingEngine()
    model = JudgeModel(engine=engine, prompt=cast(Prompt, BytePrompt()), context_window=20)
    verdict = asyncio.run(model.ask_word("a long text", YES_NO, max_tokens=16))
    assert (verdict.is_yes, verdict.usage, engine.texts) == (None, Usage(), [])


def test_solver_without_its_verifier_is_refused() -> None:
    rule = RedundantThought(verifier="small", at="turns", templates={"answer": "{part}", "same": "{former}{latter}"})
    with pytest.raises(ValueError, match=r"early_exit has thoughts read by a model \(small\); give a verifier"):
        toy_solver(early_exit=rule, thinking=FORM)


PLACES = ["early_exit.markers=[Try,The]", "early_exit.every=2", "early_exit.longest_gap=null"]


def tiny_settings(writer: Path) -> list[str]:
    """A random model whose thoughts end at 200 tokens; by `PLACES` they turn at its phrases."""
    sampling = ["search=self_consistency", "search.n=16", "search.sampling.max_tokens=260", "scorer=none"]
    thinking = ["model.thinking.think_tokens=200", "model.thinking.answer_tokens=40"]
    return [f"model.path={writer}", THINKING, *sampling, *thinking]


def thoughts_of(*overrides: str, small_url: str | None = None) -> tuple[list[str], Usage]:
    with spec_of(*overrides, small_url=small_url).load_solver() as solver:
        result = solver.solve("why?").result
        solver.assert_invariants()
    return [result.tree.path_text(c.node).partition(CLOSING)[0] for c in result.candidates], result.usage


@pytest.mark.parametrize("model", ["target", "small"])
def test_local_model_reads_thoughts_and_leaves_them_as_they_are(tiny_writer: Path, model: str) -> None:
    settings = tiny_settings(tiny_writer)
    without, _ = thoughts_of(*settings)
    read, usage = thoughts_of(*settings, *RULE, *PLACES, f"early_exit.verifier={model}", f"small.path={tiny_writer}")
    assert read == without  # a random model says neither yes nor no
    assert usage.probes > 0
    assert (usage.small_tokens > 0) == (model == "small")


def test_model_behind_a_server_ends_local_thoughts(tiny_writer: Path) -> None:
    """The server says that a part has an answer if its last box has a 2; the first such part is enough here."""
    server = JudgingServer()
    try:
        settings = tiny_settings(tiny_writer)
        without, _ = thoughts_of(*settings)
        verifier = [*RULE, *PLACES, "early_exit.verifier=small", "early_exit.agree=1"]
        early, usage = thoughts_of(*settings, *verifier, small_url=server.url)
    finally:
        server.close()
    ended = [(thought, whole) for thought, whole in zip(early, without, strict=True) if thought != whole]
    assert ended
    for thought, whole in ended:
        text = max((thought[:end] for end in range(len(thought) + 1) if whole.startswith(thought[:end])), key=len)
        assert whole[len(text) :].lstrip().startswith(("Try", "The"))
        assert "boxed{2}" in text
    assert len(server.verdicts) == usage.probes > 0
    assert usage.probe_tokens == usage.small_tokens == 10 * len(server.verdicts)


def test_small_model_of_judge_and_verifier_is_loaded_once(tiny_writer: Path) -> None:
    settings = [*tiny_settings(tiny_writer), *RULE, "early_exit.verifier=small", f"small.path={tiny_writer}"]
    with reason.load(*settings, "scorer=judge", "scorer.model=small") as solver:
        assert isinstance(solver.scorer, JudgeScorer)
        assert solver.verifier is not None
        assert solver.verifier.model is solver.scorer.loaded_model
        assert solver.verifier.model.engine is not solver.engine
