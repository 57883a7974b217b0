"""Watches a thought while it is being written: probes it, lets it go on where it would end, and says when it is over.

Probes come before the thought goes on, not beside it: with both at once, the tokens that turn out to be needless, and
under a budget the tree, would depend on which of the two is faster.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from decoding.core import Generation, GenerationRequest, TokenGenerator, Usage
from search.generations import cut_at_stop, cut_generation, with_max_tokens
from search.probing import Prober
from search.steps import Decode
from search.thought import OpenThought, ThoughtHistory, put_in

_SHORT = 64
"""Tokens at the beginning of a solution in which it may turn out to have no thought."""


class ThoughtProgress:
    """The thought of one continuation, from where it begins until it is over.

    is_open      whether the thought goes on, as far as it is written
    history      its probes and waits, those of the path before included
    probe_usage  usage of the probes of this continuation
    num_lost     tokens generated and taken off, above those put in for them
    """

    def __init__(
        self, thought: OpenThought, request: GenerationRequest, engine: TokenGenerator, decode: Decode
    ) -> None:
        self._thought, self._request, self._decode = thought, request, decode
        probes = thought.budget.probes
        self._prober = None if probes is None else Prober(probes, engine, decode)
        self.is_open = True
        self.history: ThoughtHistory = thought.history
        self.probe_usage = Usage()
        self.num_lost = 0

    def must_end(self, written: Generation) -> bool:
        """Returns whether the thought is still open behind `written` and has to be ended there."""
        return self.is_open and (self._remaining(written) < 1 or self._has_enough())

    def put_in_end(self, written: Generation) -> Generation:
        """Returns `written` with the forced end behind it. *Mutates* the progress."""
        self.is_open = False
        return self._thought.budget.put_in_end(written)

    def limit_request(self, request: GenerationRequest, written: Generation) -> GenerationRequest:
        """Returns the request for what follows `written`, with `max_tokens` up to where the thought is looked at."""
        if not self.is_open:
            return request
        limit = min(request.params.max_tokens, self._remaining(written))
        probes, budget = self._thought.budget.probes, self._thought.budget
        if probes is not None:
            limit = min(limit, probes.rule.every - self._position(written) % probes.rule.every)
        limited = with_max_tokens(request, limit)
        if not self._may_wait:
            return limited
        return replace(limited, params=replace(limited.params, stop=(*limited.params.stop, budget.closing)))

    async def review(self, written: Generation, border: int) -> Generation:
        """Returns `written`, whose tokens behind `border` are new, as it goes on. *Mutates* the progress.

        A stop of the request that began before the border ends it. A closing tag may have been replaced. Where the next
        probe is due, it is sent, and awaited.
        """
        written = cut_at_stop(written, border, self._request.params.stop, self._decode)
        if not self.is_open:
            return written
        if self._is_closed(written, border):
            return self._put_in_wait(written) or self._leave_thought(written, border)
        if self._prober is not None and written.finish == "length" and self._remaining(written) > 0:
            await self._probe(self._prober, written)
        return written

    def _position(self, written: Generation) -> int:
        return self._thought.num_tokens + len(written.tokens)

    def _remaining(self, written: Generation) -> int:
        return self._thought.remaining - len(written.tokens)

    def _has_enough(self) -> bool:
        probes = self._thought.budget.probes
        return probes is not None and bool(self.history.probes) and probes.rule.decide(self.history.probes)

    @property
    def _may_wait(self) -> bool:
        return len(self.history.waits) < self._thought.budget.waits

    def _is_closed(self, written: Generation, border: int) -> bool:
        """Whether the thought ends in `written`; the whole text is read only where its new part has the tag."""
        thought, closing = self._thought, self._thought.budget.closing
        first = max(0, border - len(closing.encode()))
        before = "" if first else thought.path_text[-len(closing) :]
        is_settled = thought.num_tokens + border >= _SHORT
        if is_settled and closing not in before + self._decode(written.tokens[first:]):
            return False
        return not thought.budget.is_open(thought.path_text + self._decode(written.tokens))

    def _put_in_wait(self, written: Generation) -> Generation | None:
        """Returns `written` with the closing tag replaced; None where the thought may not go on."""
        budget, path_text = self._thought.budget, self._thought.path_text
        if not self._may_wait or written.finish == "deadline":
            return None
        length = (path_text + self._decode(written.tokens)).find(budget.closing) - len(path_text)
        counts = range(len(written.tokens) + 1)
        num_kept = bisect_right(counts, length, key=lambda count: len(self._decode(written.tokens[:count]))) - 1
        waited = put_in(cut_generation(written, max(0, num_kept)), budget.wait)
        if length < 0 or self._remaining(waited) < 1:  # no tag to take off, or one that is in the tree; or no budget
            return None
        waits = (*self.history.waits, self._thought.num_tokens + num_kept)
        self.history = ThoughtHistory(self.history.probes, waits)
        self.num_lost += max(0, len(written.tokens) - len(waited.tokens))
        return waited

    def _leave_thought(self, written: Generation, border: int) -> Generation:
        """Returns `written` as it goes on behind the thought. The engine may have stopped at the tag for us alone."""
        self.is_open = False
        params, text = self._request.params, self._decode(written.tokens[border:])
        is_own_stop = any(stop in text for stop in params.stop) or written.tokens[-1] in params.stop_token_ids
        if self._may_wait and written.finish == "stop" and not is_own_stop:
            return replace(written, finish="length")
        return written

    async def _probe(self, prober: Prober, written: Generation) -> None:
        """Probes the thought if a probe is due and affordable, and adds it to the history."""
        thought, probes = self._thought, self._thought.budget.probes
        position, past = self._position(written), self.history.probes
        last = past[-1].num_tokens if past else 0
        if probes is None or position % probes.rule.every or position <= last:
            return
        left = thought.probe_tokens - self.probe_usage.probe_tokens
        max_tokens = min(probes.rule.probe_tokens, thought.room - len(written.tokens) - len(probes.tokens))
        if max_tokens < 1 or left < probes.rule.probe_tokens:
            return
        request = replace(self._request, prefix=self._request.prefix + written.tokens)
        reply = await prober.send_probe(request, request.prefix[last - position :], position, max_tokens)
        self.history = ThoughtHistory((*past, reply.probe), self.history.waits)
        self.probe_usage += replace(reply.usage, seconds=0.0)
