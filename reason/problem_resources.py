"""Makes what a search gets for one problem's texts: their reader, the limits of a thought, prompts of its own."""

from __future__ import annotations

from collections.abc import Callable

from decoding.core import Tokens
from reason.problem import Problem
from reason.prompt import Prompt
from reason.scorers.thought_verifier import ThoughtVerifier
from reason.thinking import SolutionReader, ThinkingFormat
from search.probes import EarlyExit, ThoughtProbes
from search.problem_text import ProblemText
from search.thought import ThoughtBudget


def make_reader(prompt: Prompt, thinking: ThinkingFormat | None, root: Tokens) -> SolutionReader:
    """Returns the reader of solutions behind the prompt `root`, which may have opened a thought already."""
    if thinking is None:
        return SolutionReader()
    return SolutionReader(thinking, thinking.is_open_after(prompt.decode_last_turn(root)), prompt.decode)


def make_thought_budget(
    prompt: Prompt,
    problem: Problem,
    reader: SolutionReader,
    early_exit: EarlyExit | None,
    verifier: ThoughtVerifier | None,
    extract_answer: Callable[[str], str | None],
) -> ThoughtBudget | None:
    """Returns what ends the thoughts of a problem; None where only the model does."""
    thinking = reader.thinking
    if thinking is None or not (thinking.think_tokens or thinking.answer_tokens or thinking.waits or early_exit):
        return None
    probes = None
    if early_exit is not None:
        probes = ThoughtProbes(
            rule=early_exit,
            tokens=prompt.encode_continuation(early_exit.probe),
            read_answer=extract_answer,
            hint=prompt.encode_continuation(early_exit.hint) if early_exit.hint else (),
            verifier=None
            if verifier is None
            else early_exit.make_verifier(problem.question, verifier.bind(reader.remove_tags)),
        )
    return ThoughtBudget(
        is_open=reader.may_be_thinking,
        forced_end=prompt.encode_continuation(thinking.forced_end),
        max_tokens=thinking.think_tokens,
        answer_tokens=thinking.answer_tokens,
        closing=thinking.closing,
        probes=probes,
        waits=thinking.waits,
        wait=prompt.encode_continuation(thinking.wait_text),
    )


def make_problem_text(
    prompt: Prompt, problem: Problem, root: Tokens, reader: SolutionReader, *, ends_thoughts: bool
) -> ProblemText:
    """Returns the texts from which a search writes prompts of its own.

    `ends_thoughts` says that the engine can continue a text, and so behind an empty thought.
    """

    def render_question(question: str) -> Tokens:
        return prompt.encode_text(question) if is_plain_text() else prompt.encode(question)

    def render_request(request: str) -> Tokens:
        return prompt.encode_text(request) if is_plain_text() else prompt.encode_request(request)

    def is_plain_text() -> bool:  # a text to continue, which no prompt format renders
        return problem.prompt is not None and problem.prompt == prompt.encode_text(problem.question)

    closing = "" if reader.thinking is None else reader.thinking.closing
    begins_behind = bool(closing) and closing in prompt.decode_last_turn(root)  # by the template
    return ProblemText(
        question=problem.question,
        render_question=render_question,
        render_request=render_request,
        encode=prompt.encode_continuation,
        split=reader.split,
        closing=closing,
        skipped_thought=reader.skipped_thought if ends_thoughts and not begins_behind else "",
        begins_behind=begins_behind,
    )
