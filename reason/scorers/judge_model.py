"""Asks a language model for a verdict of one word, and reads how probable it is."""

from __future__ import annotations

import logging
import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, runtime_checkable

from decoding.core import Engine, Generation, GenerationRequest, OversizedRequest, SamplingParams, Tokens, Usage
from decoding.validation import shorten
from reason.prompt import Prompt
from reason.thinking import SolutionReader, ThinkingFormat
from search.part_verifier import PartVerdict
from search.seeds import derive_seed

log = logging.getLogger(__name__)

_SAMPLES_WITHOUT_LOGPROBS = 8


class VerdictWords(NamedTuple):
    """The two words of which a verdict is one: for a solution, or for the first of two; and against it."""

    positive: str
    negative: str


@runtime_checkable
class AskingScorer(Protocol):
    """A scorer that asks a language model in words; `SolveSpec` gives it the model once that is loaded.

    model  `target`, the model that solves, or `small`, the one at the settings `small`; None where it asks none
    """

    @property
    def model(self) -> str | None: ...

    def find_sampling(self, *, gives_logprobs: bool) -> SamplingParams:
        """Returns the sampling parameters of its requests."""
        ...

    def use_model(self, model: JudgeModel) -> None:
        """Takes the model; called before the first problem. *Mutates* the scorer. Raises: ValueError."""
        ...


@dataclass(frozen=True, kw_only=True)
class Asking:
    """How a verdict is asked for.

    reasons      False: the verdict comes at once, and the first verdict word counts; True: the model may think and
                 argue, and the last one counts
    samples      verdicts per request, of which the mean counts; None: 1, or 8 from an engine without log-probabilities
    max_tokens   tokens of an answer
    temperature  of the answers; 0 with one sample
    """

    reasons: bool
    samples: int | None
    max_tokens: int
    temperature: float

    def count_samples(self, *, gives_logprobs: bool) -> int:
        """Returns the number of verdicts per request."""
        if self.samples is not None:
            return self.samples
        return 1 if gives_logprobs else _SAMPLES_WITHOUT_LOGPROBS

    def find_sampling(self, *, gives_logprobs: bool) -> SamplingParams:
        """Returns the sampling parameters of an answer: greedy with one sample."""
        num_samples = self.count_samples(gives_logprobs=gives_logprobs)
        return SamplingParams(temperature=self.temperature if num_samples > 1 else 0.0, max_tokens=self.max_tokens)


@dataclass(frozen=True, kw_only=True)
class JudgeModel:
    """A model that can be asked.

    gives_logprobs  whether its generations have log-probabilities
    can_continue    whether it continues a text: then a thought is skipped where no reasons are asked for
    context_window  limit of request and answer in tokens; None if unknown
    """

    engine: Engine
    prompt: Prompt
    thinking: ThinkingFormat | None = None
    gives_logprobs: bool = True
    can_continue: bool = True
    context_window: int | None = None
    _warnings: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def require_words(self, words: VerdictWords) -> None:
        """Raises ValueError where the model's vocabulary cannot write the verdicts."""
        require_words(self.prompt, words, "model", "scorer.model")

    async def ask_verdicts(
        self, texts: Sequence[str], words: VerdictWords, asking: Asking
    ) -> tuple[list[float | None], Usage]:
        """Returns how probable the positive verdict is for each request, and what they cost.

        The mean over samples (generative verifiers, arXiv 2408.15240): of the probability of the verdict word, or of 1
        and 0 where there are no log-probabilities. None where no sample has a verdict, or the request is too long. The
        same text has the same verdict, whichever problems run beside it.
        """
        num_samples = asking.count_samples(gives_logprobs=self.gives_logprobs)
        params = asking.find_sampling(gives_logprobs=self.gives_logprobs)
        requests, numbers = list[GenerationRequest](), list[int]()
        for number, text in enumerate(texts):
            prefix = self._encode(text, asking)
            if not self._has_room(prefix, asking.max_tokens):
                continue
            for sample in range(num_samples):
                seed = derive_seed("judge", text, sample)
                requests.append(GenerationRequest(prefix=prefix, params=params, seed=seed, group="judge"))
                numbers.append(number)
        generations = await self._generate(requests)
        usage, verdicts = Usage(), dict[int, list[float]]()
        for number, request, generation in zip(numbers, requests, generations, strict=True):
            if generation is None:
                continue
            usage += _count_as_scoring(generation, len(request.prefix))
            verdict = self.read_verdict(request.prefix, generation, words, last=asking.reasons)
            if verdict is not None:
                verdicts.setdefault(number, []).append(verdict)
            else:
                self._warn_once(generation, words, "such a solution is not scored")
        means = {number: math.fsum(values) / len(values) for number, values in verdicts.items()}
        return [means.get(number) for number in range(len(texts))], usage

    async def ask_word(
        self, text: str, words: VerdictWords, *, max_tokens: int, deadline: float | None = None
    ) -> PartVerdict:
        """Returns whether a greedy answer says the positive word, and not the negative one; the first of them counts.

        The usage is that of the engine. None where it says neither, or the request is too long.
        """
        asking = Asking(reasons=False, samples=1, max_tokens=max_tokens, temperature=0.0)
        prefix = self._encode(text, asking)
        if not self._has_room(prefix, max_tokens):
            return PartVerdict(None, Usage())
        params, seed = asking.find_sampling(gives_logprobs=True), derive_seed("judge", text, 0)
        (generation,) = await self._generate(
            [GenerationRequest(prefix=prefix, params=params, seed=seed, group="judge", deadline=deadline)]
        )
        if generation is None:
            return PartVerdict(None, Usage())
        verdict = self.read_verdict(prefix, replace(generation, logprobs=()), words, last=False)
        if verdict is None:
            self._warn_once(generation, words, "such a part of a thought does not end it")
        usage = generation.usage
        counted = replace(usage, calls=max(1, usage.calls), tokens=usage.tokens or len(generation.tokens))
        return PartVerdict(None if verdict is None else verdict == 1, counted)

    def read_verdict(self, prefix: Tokens, generation: Generation, words: VerdictWords, *, last: bool) -> float | None:
        """Returns the probability of the positive verdict in an answer; None where it has none."""
        decode, tokens = self.prompt.decode, generation.tokens
        whole = decode(tokens)
        starts_inside = self.thinking is not None and self._starts_inside(self.thinking, prefix)
        text = SolutionReader(self.thinking, starts_inside).split(whole).text
        pattern = rf"(?<!\w)({re.escape(words.positive)}|{re.escape(words.negative)})(?!\w)"
        words_in_text = list(re.finditer(pattern, text, re.IGNORECASE))
        if not words_in_text:
            return None
        match = words_in_text[-1 if last else 0]
        is_positive = match[1].casefold() == words.positive.casefold()
        if not generation.logprobs:
            return float(is_positive)
        begin = len(whole) - len(text) + match.start()
        ends = range(1, len(tokens) + 1)
        first = bisect_left(ends, begin + 1, key=lambda end: len(decode(tokens[:end])))
        behind = bisect_left(ends, begin + len(match[1]), key=lambda end: len(decode(tokens[:end])))
        probability = min(1.0, math.exp(math.fsum(generation.logprobs[first : behind + 1])))
        return probability if is_positive else 1 - probability

    def _has_room(self, prefix: Tokens, max_tokens: int) -> bool:
        """Whether request and answer fit the window; warns where they do not."""
        if self.context_window is None or len(prefix) + max_tokens <= self.context_window:
            return True
        log.warning(
            "a text is not judged: the request has %d tokens, and with max_tokens=%d it does not fit the judge's "
            "window of %d", len(prefix), max_tokens, self.context_window,
        )  # fmt: skip
        return False

    def _warn_once(self, generation: Generation, words: VerdictWords, consequence: str) -> None:
        if not self._warnings:
            answer = shorten(self.prompt.decode(generation.tokens))
            self._warnings.append(f"the judge answered {answer}, which has no verdict ({' or '.join(words)})")
            log.warning("%s; %s", self._warnings[0], consequence)

    def _starts_inside(self, thinking: ThinkingFormat, prefix: Tokens) -> bool:
        """Whether an answer behind this request begins inside a thought: not where that was skipped."""
        last_turn = self.prompt.decode_last_turn(prefix)
        is_closed = last_turn.rfind(thinking.closing) > last_turn.rfind(thinking.opening)
        return not is_closed and thinking.is_open_after(last_turn)

    async def _generate(self, requests: list[GenerationRequest]) -> list[Generation | None]:
        """Returns a generation per request; None for one that the engine finds too long."""
        try:
            return list(await self.engine.generate(requests))
        except OversizedRequest:
            if len(requests) > 1:
                return [(await self._generate([request]))[0] for request in requests]
            log.warning("a text is not judged: the request does not fit the judge's window")
            return [None]

    def _encode(self, text: str, asking: Asking) -> Tokens:
        prefix = self.prompt.encode_request(text)
        if asking.reasons or self.thinking is None or not self.can_continue:
            return prefix
        last_turn = self.prompt.decode_last_turn(prefix)
        if self.thinking.closing in last_turn:  # the template has skipped the thought
            return prefix
        skipped = SolutionReader(self.thinking, self.thinking.is_open_after(last_turn)).skipped_thought
        return prefix + self.prompt.encode_continuation(skipped)


def require_words(prompt: Prompt, words: VerdictWords, knob: str, setting: str) -> None:
    """Raises ValueError, which begins with `knob`, where the vocabulary of a prompt's model cannot write the words.

    setting  the full name of the setting that chooses the model
    """
    for word in words:
        if prompt.decode(prompt.encode_continuation(word)).strip() != word:
            raise ValueError(
                f"{knob}: the judge's vocabulary cannot write {word!r}, so it cannot be asked in words; choose a "
                f"language model with model.path, or {setting}=small with small.path"
            )


def _count_as_scoring(generation: Generation, num_prefix: int) -> Usage:
    """Returns the usage of one verdict as that of a scorer: the search did not write its tokens."""
    usage = generation.usage
    read = (usage.prompt_tokens or num_prefix) - usage.cached_tokens
    return Usage(scorer_calls=1, scored_tokens=read + (usage.tokens or len(generation.tokens)))
