"""Asks a running thought for its answer: a short generation behind the thought so far, which leaves no trace in it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from decoding.core import GenerationRequest, SamplingParams, TokenGenerator, Tokens, Usage
from search.generations import continue_after, empty_generation, join_generations
from search.probes import Probe, ThoughtProbes
from search.steps import Decode

_ESCAPED_BRACE = re.compile(r"\\[{}]")
_BOX = re.compile(r"\\boxed\s*\{")


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
            params=SamplingParams(max_tokens=max_tokens, temperature=rule.temperature, stop=("}",)),
            hidden=False,
            num_top=0,
        )
        reply, text, usage = empty_generation(), rule.probe, Usage()
        while True:
            (more,) = await self._engine.generate([continue_after(request, reply)])
            usage += replace(more.usage, calls=max(1, more.usage.calls), tokens=more.usage.tokens or len(more.tokens))
            reply = join_generations(reply, more)
            text = rule.probe + self._decode(reply.tokens)
            # the engine stops at every brace; a fraction in the box has some of its own
            goes_on = more.finish == "stop" and more.tokens and _has_open_brace(text)
            if not goes_on or len(reply.tokens) >= max_tokens:
                break
        is_finished = not _has_open_brace(text) and reply.finish != "deadline"
        answer = self._probes.read_answer(text) if is_finished else None
        start = self._find_answer_start(text, reply.tokens)
        probe = Probe(
            num_tokens=num_tokens,
            answer=answer,
            confidence=_mean_probability(reply.logprobs[start:]),
            is_stated=answer is not None and _states_answer(self._decode(new_tokens), {answer, _read_box(text)}),
        )
        return ProbeReply(probe, replace(usage, probes=1, probe_tokens=usage.tokens))

    def _find_answer_start(self, text: str, reply: Tokens) -> int:
        """The number of tokens of a reply before the content of its box; 0 where the probe's own text opens it."""
        boxes = list(_BOX.finditer(text))
        length = boxes[-1].end() - len(self._probes.rule.probe) if boxes else 0
        return next((k for k in range(len(reply)) if len(self._decode(reply[:k])) >= length), 0)


def _has_open_brace(text: str) -> bool:
    braces = _ESCAPED_BRACE.sub("", text)
    return braces.count("{") > braces.count("}")


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
