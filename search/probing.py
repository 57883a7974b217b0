"""Asks a running thought for its answer: a short generation behind the thought so far, which leaves no trace in it."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from decoding.core import NO_USAGE, GenerationRequest, SamplingParams, TokenGenerator, Tokens, Usage
from search.generations import NO_GENERATION, continue_after, join_generations
from search.part_verifier import PartVerifier
from search.probes import EarlyExit, Probe, ThoughtProbes
from search.step_rules.markers import MarkerSteps
from search.steps import Decode

_BRACE = re.compile(r"\\[{}]|[{}]")
_BOX = re.compile(r"\\boxed\s*\{")


class ProbePlaces:
    """Where a thought is probed, in tokens from its beginning: every so many tokens, or where it turns.

    A turn is found in the text, behind the generation that wrote it. So the places do not depend on how a thought is
    cut into steps and requests.
    """

    def __init__(self, rule: EarlyExit, decode: Decode) -> None:
        self._rule, self._decode = rule, decode
        self._width = max(len(marker.encode()) for marker in rule.markers) + 1  # a token has at least one byte

    def count_free(self, position: int, last: int) -> int:
        """Returns for how many tokens a thought is written on before it may be probed, or must be looked at.

        position  its tokens so far
        last      tokens before its last probe; 0 without one
        """
        rule, since = self._rule, position - last
        if rule.at == "every":
            return rule.every - position % rule.every
        if since < rule.every:
            return rule.every - since
        return sys.maxsize if rule.longest_gap is None else rule.longest_gap - since % rule.longest_gap

    def find_stops(self, thought: Tokens, last: int) -> tuple[str, ...]:
        """Returns the texts at which the engine stops behind this thought, because it may turn there."""
        if self._rule.at == "every" or len(thought) - last < self._rule.every:
            return ()
        # the engine does not see the white space that an earlier request wrote
        is_behind_space = self._decode(thought[-self._width :])[-1:].isspace()
        return tuple(self._rule.markers) if is_behind_space else MarkerSteps(markers=self._rule.markers).stop_strings

    def find_next(self, thought: Tokens, last: int, border: int) -> int | None:
        """Returns the first place behind the probe at `last` at which the thought is to be probed; None: none yet.

        border  tokens of the thought that were there when it was last looked at
        """
        rule, position = self._rule, len(thought)
        if position <= last:
            return None
        if rule.at == "every":
            return None if position % rule.every else position
        first = last + rule.every
        start = max(0, min(first, border) - self._width)
        turns = MarkerSteps(markers=rule.markers, min_tokens=max(1, first - start))
        end = turns.find_end(thought[start:], 0, self._decode)
        if end is not None:
            return start + end
        is_late = rule.longest_gap is not None and (position - last) % rule.longest_gap == 0
        return position if is_late else None


@dataclass(frozen=True)
class ProbeReply:
    """What a probe said, and what it cost."""

    probe: Probe
    usage: Usage


class Prober:
    """Sends the probes of one problem to the engine that writes its thoughts."""

    def __init__(self, probes: ThoughtProbes, engine: TokenGenerator, decode: Decode) -> None:
        self._probes, self._engine, self._decode = probes, engine, decode

    async def send_probe(
        self, thought: GenerationRequest, new_tokens: Tokens, num_tokens: int, max_tokens: int
    ) -> ProbeReply:
        """Asks for the answer behind `thought.prefix`.

        new_tokens  the thought since the probe before
        num_tokens  all tokens of the thought
        max_tokens  of the reply
        """
        rule = self._probes.rule
        request = replace(
            thought,
            prefix=thought.prefix + self._probes.tokens,
            params=SamplingParams(
                max_tokens=max_tokens, temperature=rule.temperature, stop=() if rule.reads_remarks else ("}",)
            ),
            hidden=False,
            num_top=0,
        )
        reply, text, usage = NO_GENERATION, rule.probe, NO_USAGE
        while True:
            (more,) = await self._engine.generate([continue_after(request, reply)])
            usage += replace(more.usage, calls=max(1, more.usage.calls), tokens=more.usage.tokens or len(more.tokens))
            reply = join_generations(reply, more)
            text = rule.probe + self._decode(reply.tokens)
            # the engine stops at every brace; a fraction in the box has some of its own
            goes_on = more.finish == "stop" and more.tokens and _has_open_brace(text)
            if not goes_on or len(reply.tokens) >= max_tokens:
                break
        length = len(rule.probe)
        boxed = text[: _find_answer_end(text, length)]
        is_finished = not _has_open_brace(boxed) and reply.finish != "deadline"
        answer = self._probes.read_answer(boxed) if is_finished else None
        box = next(reversed(list(_BOX.finditer(boxed))), None)
        start = 0 if box is None else self._count_tokens(reply.tokens, box.end() - length)
        end = self._count_tokens(reply.tokens, len(boxed) - length)
        probe = Probe(
            num_tokens=num_tokens,
            answer=answer,
            confidence=_mean_probability(reply.logprobs[start:end]),
            is_stated=answer is not None and _states_answer(self._decode(new_tokens), {answer, _read_box(boxed)}),
            remark=text[length : None if box is None else max(length, box.start())] + text[len(boxed) :],
        )
        return ProbeReply(probe, replace(usage, probes=1, probe_tokens=usage.tokens))

    def _count_tokens(self, reply: Tokens, length: int) -> int:
        """The smallest number of tokens of a reply whose text has so many characters."""
        return next((k for k in range(len(reply)) if len(self._decode(reply[:k])) >= length), len(reply))


async def read_part(
    verifier: PartVerifier, thought: Tokens, probes: Sequence[Probe], decode: Decode, deadline: float | None
) -> ProbeReply:
    """Has the verifier read the thought behind its last probe, as a probe at its end.

    Only the answers of two parts that follow each other are compared.
    """
    starts = [0, 0, *(probe.num_tokens for probe in probes)][-2:]
    last = probes[-1].answer if probes else None
    before = None if last is None else decode(thought[starts[0] : starts[1]])
    has_answer, is_same, usage = await verifier.read_part(decode(thought[starts[1] :]), before, deadline)
    answer = (last if is_same else str(len(probes) + 1)) if has_answer else None
    probe = Probe(
        num_tokens=len(thought),
        answer=answer,
        is_stated=answer is not None,
        is_read=has_answer is not None and (not has_answer or before is None or is_same is not None),
    )
    return ProbeReply(probe, replace(usage, probes=min(1, usage.calls), probe_tokens=usage.tokens))


def _has_open_brace(text: str) -> bool:
    braces = _BRACE.findall(text)
    return braces.count("{") > braces.count("}")


def _find_answer_end(text: str, length: int) -> int | None:
    """The end of the first brace behind `length` characters that leaves none open; None without one."""
    num_open = 0
    for brace in _BRACE.finditer(text):
        num_open += {"{": 1, "}": -1}.get(brace.group(), 0)
        if brace.group() == "}" and num_open <= 0 and brace.end() > length:
            return brace.end()
    return None


def _read_box(text: str) -> str:
    """The content of the last box as it is written; "" without one."""
    _, box, content = text.rpartition("\\boxed{")
    return content[: content.rfind("}")].strip() if box and "}" in content else ""


def _mean_probability(logprobs: tuple[float, ...]) -> float | None:
    """The geometric mean of the tokens' probabilities, rounded: the last digits depend on the batch."""
    return round(math.exp(math.fsum(logprobs) / len(logprobs)), 4) if logprobs else None


def _states_answer(thought: str, spellings: set[str]) -> bool:
    """Whether a text has the answer in one of these spellings, as a number or word of its own."""
    shapes = "|".join(re.escape(spelling) for spelling in spellings if spelling)
    return bool(shapes) and re.search(rf"(?<![\w.])(?:{shapes})(?!\w|\.\d)", thought) is not None
