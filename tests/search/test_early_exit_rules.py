"""Rules that end a thought by its interim answers, and what a probe finds out."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import GenerationRequest, SamplingParams
from search.early_exit.certain import CertainAnswer
from search.early_exit.converged import ConvergedAnswers
from search.early_exit.redundant import RedundantThought
from search.probes import EarlyExit, Probe, ThoughtProbes
from search.probing import Prober
from search.thought import ThoughtHistory
from tests.support.toy_search import EOS, ROOT, ToyEngine, decode_bytes, extract_answer

NOT_A_TEXT: Any = 7


def decode_end(text: str) -> str:
    """A text without the end of the reply."""
    return text.rstrip(chr(EOS))


def probes_of(answers: str, *, stated: str = "", every: int = 100) -> list[Probe]:
    """Interim answers, one letter each ("-": none); a letter of `stated` is "y" where the thought wrote it."""
    return [
        Probe(num_tokens=every * i, answer=None if answer == "-" else answer, is_stated=stated[i - 1 : i] == "y")
        for i, answer in enumerate(answers, 1)
    ]


@pytest.mark.parametrize(
    ("answers", "ends"),
    [("", False), ("77", False), ("777", True), ("7787", False), ("87-77", False), ("---", False), ("8777", True)],
)
def test_converged_ends_where_the_last_answers_agree(answers: str, ends: bool) -> None:
    assert ConvergedAnswers(agree=3).decide(probes_of(answers)) is ends


@given(st.text("12-", max_size=12), st.integers(1, 4))
def test_converged_and_redundant_never_end_on_answers_that_differ(answers: str, agree: int) -> None:
    probes = probes_of(answers, stated="y" * 12)
    last = answers[-agree:]
    agrees = len(last) == agree and len(set(last)) == 1 and "-" not in last
    assert ConvergedAnswers(agree=agree).decide(probes) is agrees
    assert RedundantThought(agree=agree, give_up_tokens=None).decide(probes) is agrees


@pytest.mark.parametrize(
    ("confidence", "answer", "ends"), [(0.95, "7", True), (0.949, "7", False), (None, "7", False), (1.0, None, False)]
)
def test_certain_reads_the_last_answer_alone(confidence: float | None, answer: str | None, ends: bool) -> None:
    earlier = Probe(num_tokens=1, answer="7", confidence=0.99)
    last = Probe(num_tokens=2, answer=answer, confidence=confidence)
    assert CertainAnswer().decide([earlier, last]) is ends
    assert not CertainAnswer().decide([])


@pytest.mark.parametrize(
    ("remarks", "ends"),
    [
        (["", "", ""], True),
        (["Wait, no", "", ""], True),  # not among the last two
        (["", "} Wait, that", ""], False),
        (["", "", "}.\nHOLD ON, is it"], False),
        (["", "", "await holding onto no waiter"], True),  # words of their own alone
    ],
)
def test_answer_that_the_model_doubts_does_not_count(remarks: list[str], ends: bool) -> None:
    probes = [Probe(num_tokens=n, answer="7", remark=remark) for n, remark in enumerate(remarks)]
    rule = ConvergedAnswers(agree=2, doubts=["wait", "hold on"])
    assert rule.decide(probes) is ends
    assert ConvergedAnswers(agree=2).decide(probes)


def test_redundant_needs_answers_that_the_thought_wrote() -> None:
    rule = RedundantThought(agree=2, give_up_tokens=None)
    assert [rule.decide(probes_of("77", stated=stated)) for stated in ("yy", "yn", "ny", "nn")] == [True] + [False] * 3


@pytest.mark.parametrize(
    ("answers", "ends"),
    [
        ("12345", True),
        ("1234", False),  # too few changes
        ("112345", True),
        ("12334", False),  # two agree
        ("-----", True),  # it comes to no answer at all
    ],
)
def test_redundant_gives_up_a_thought_whose_answers_keep_changing(answers: str, ends: bool) -> None:
    rule = RedundantThought(give_up_tokens=400, changes=4)
    assert rule.decide(probes_of(answers)) is ends
    assert not rule.decide(probes_of(answers, every=10))  # too early
    assert not RedundantThought(give_up_tokens=None, changes=4).decide(probes_of(answers))


@given(st.integers(1, 10**6), st.integers(1, 999), st.integers(1, 99))
def test_limit_with_probes_is_the_inverse_of_the_limit_without(tokens: int, every: int, probe_tokens: int) -> None:
    rule = ConvergedAnswers(every=every, probe_tokens=probe_tokens)
    assert rule.without_probes(rule.add_probes(tokens)) == tokens
    left = rule.without_probes(tokens)
    assert left == 1 or rule.add_probes(left) <= tokens < rule.add_probes(left + 1)


def test_history_of_the_first_tokens() -> None:
    history = ThoughtHistory(tuple(probes_of("777")), (50, 200))
    assert history.until(200) == ThoughtHistory(tuple(probes_of("77")), (50,))


def ask(
    reply: str,
    thought: str = "",
    *,
    probe: str = "\n\nThe answer is \\boxed{",
    logprobs: tuple[float, ...] = (),
    doubts: tuple[str, ...] = (),
) -> Probe:
    class Replier(ToyEngine):
        def continue_prefix(self, request: GenerationRequest) -> Any:
            generation = super().continue_prefix(request)
            start = len(request.prefix) - len(ROOT) - len(thought) - len(probe)
            chosen = logprobs[start : start + len(generation.tokens)] or generation.logprobs
            return type(generation)(tokens=generation.tokens, logprobs=chosen, finish=generation.finish)

    engine = Replier(lambda _, prefix: reply[len(prefix) - len(ROOT) - len(thought) - len(probe) :])
    rule = ConvergedAnswers(probe=probe, doubts=doubts)
    probes = ThoughtProbes(rule=rule, tokens=tuple(probe.encode()), read_answer=extract_answer)
    prober = Prober(probes, engine, decode_bytes)
    request = GenerationRequest(prefix=ROOT + tuple(thought.encode()), params=SamplingParams(), seed=0)
    return asyncio.run(prober.send_probe(request, tuple(thought.encode()), len(thought), 32)).probe


@pytest.mark.parametrize(
    ("probe", "reply", "answer"),
    [
        ("The answer is \\boxed{", "7}.", "7"),
        ("The answer is ", "\\boxed{7}. But", "7"),
        ("The answer is \\boxed{", "7 and so on and so forth and so on and so forth", None),
        ("The answer is \\boxed{", "\\{7", None),
        ("The answer is ", "unknown", None),
    ],
)
def test_answer_is_what_stands_in_a_closed_box(probe: str, reply: str, answer: str | None) -> None:
    assert ask(reply, probe=probe).answer == answer


def test_confidence_is_of_the_tokens_in_the_box() -> None:
    assert ask("77}", logprobs=(-0.1, -0.2, -0.3)).confidence == round(math.exp(-0.2), 4)
    boxed = ask("\\boxed{7}", probe="So ", logprobs=(-9.0,) * 7 + (-0.1, -0.3))
    assert boxed.confidence == round(math.exp(-0.2), 4)


@pytest.mark.parametrize(
    ("probe", "reply", "answer", "remark"),
    [
        ("So \\boxed{", "7}. Hold on", "7", ". Hold on"),
        ("So \\boxed{", "\\frac{1}{2}}? \\boxed{3}", None, "? \\boxed{3}"),
        ("So ", "hmm, \\boxed{7}!", "7", "hmm, !"),
        ("So \\frac{1}{1} or \\boxed{", "7} or 8", "7", " or 8"),
        ("So \\boxed{", "7 and so on and so forth and so on and so forth", None, ""),
    ],
)
def test_remark_is_what_a_probe_says_around_its_answer(probe: str, reply: str, answer: str | None, remark: str) -> None:
    probe_of = ask(reply, probe=probe, logprobs=(-0.1,) * 32, doubts=("wait",))
    assert (probe_of.answer, decode_end(probe_of.remark)) == (answer, remark)


def test_words_behind_the_answer_change_neither_it_nor_its_confidence() -> None:
    logprobs = (-0.1, -0.2, -0.3, *(-5.0,) * 20)
    short, long = (ask("77} or wait", "77", logprobs=logprobs, doubts=doubts) for doubts in ((), ("wait",)))
    assert (short.answer, short.confidence, short.is_stated) == (long.answer, long.confidence, long.is_stated)
    assert (short.remark, decode_end(long.remark)) == ("", " or wait")


@pytest.mark.parametrize(
    ("thought", "is_stated"),
    [("so x = 7.", True), ("it is 7", True), ("17 or 7.5 or x7", False), ("", False), ("\\boxed{7} maybe", True)],
)
def test_answer_is_stated_as_a_number_of_its_own(thought: str, is_stated: bool) -> None:
    assert ask("7}", thought).is_stated is is_stated


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConvergedAnswers(every=0), "early_exit.every must be an int >= 1, got 0"),
        (lambda: ConvergedAnswers(probe=""), "early_exit.probe must be a text that asks for the answer, got ''"),
        (lambda: ConvergedAnswers(probe=NOT_A_TEXT), "early_exit.probe must be a text that asks for the answer, got 7"),
        (lambda: ConvergedAnswers(probe_tokens=0), "early_exit.probe_tokens must be an int >= 1, got 0"),
        (lambda: ConvergedAnswers(temperature=-1), "early_exit.temperature must be 0 or in"),
        (lambda: ConvergedAnswers(agree=0), "early_exit.agree must be an int >= 1, got 0"),
        (lambda: CertainAnswer(threshold=0), r"early_exit.threshold must be in \(0, 1\], got 0"),
        (lambda: ConvergedAnswers(doubts="wait"), "early_exit.doubts must be a list of words, got 'wait'"),
        (lambda: ConvergedAnswers(doubts=["wait", " "]), "early_exit.doubts must be a list of words"),
        (lambda: ConvergedAnswers(at="turn"), "early_exit.at must be one of every, turns; got 'turn'"),
        (lambda: ConvergedAnswers(markers=[]), r"early_exit.markers must be a list of words, got \[\]"),
        (
            lambda: ConvergedAnswers(at="turns", every=50, longest_gap=49),
            "early_exit.longest_gap must be an int >= 50 or null, got 49",
        ),
        (lambda: ConvergedAnswers(hint=" "), "early_exit.hint must be a text that asks the model to end, or null"),
        (lambda: ConvergedAnswers(hint=NOT_A_TEXT), "early_exit.hint must be a text that asks the model to end"),
        (lambda: ConvergedAnswers(hint_tokens=0), "early_exit.hint_tokens must be an int >= 1, got 0"),
        (lambda: RedundantThought(loop_tokens=2), "early_exit.loop_tokens must be an int >= 3 or null, got 2"),
        (lambda: RedundantThought(loop_repeats=1), "early_exit.loop_repeats must be an int >= 2, got 1"),
        (lambda: RedundantThought(agree=0), "early_exit.agree must be an int >= 1, got 0"),
        (lambda: RedundantThought(give_up_tokens=0), "early_exit.give_up_tokens must be an int >= 1 or null, got 0"),
        (lambda: RedundantThought(changes=0), "early_exit.changes must be an int >= 1, got 0"),
    ],
)
def test_wrong_knob_is_refused_by_name(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_every_rule_has_the_knobs_of_probes() -> None:
    for rule in (ConvergedAnswers, CertainAnswer, RedundantThought):
        assert issubclass(rule, EarlyExit)
        assert rule(every=7, probe="So {", probe_tokens=3, temperature=0.5).every == 7
