"""Watches a thought while it is being written: probes it, lets it go on where it would end, and says when it is over.

Probes come before the thought goes on, not beside it: with both at once, the tokens that turn out to be needless, and
under a budget the tree, would depend on which of the two is faster.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from decoding.core import Generation, GenerationRequest, TokenGenerator, Tokens, Usage
from search.generations import add_stops, cut_at_stop, cut_generation, with_max_tokens
from search.probes import Probe, ThoughtProbes
from search.probing import ProbePlaces, Prober, read_part
from search.steps import Decode
from search.thought import OpenThought, ThoughtHistory, put_in

_SHORT = 64
"""Tokens at the beginning of a solution in which it may turn out to have no thought."""


class ThoughtProgress:
    """The thought of one continuation, from where it begins until it is over.

    is_open      whether the thought goes on, as far as it is written
    history      its probes, waits and hint, those of the path before included
    probe_usage  usage of the probes of this continuation
    num_lost     tokens generated and taken off, above those put in for them
    is_late      whether it was ended, or not begun, because the time limit of the search is near
    """

    def __init__(
        self, thought: OpenThought, request: GenerationRequest, engine: TokenGenerator, decode: Decode
    ) -> None:
        self._thought, self._request, self._decode = thought, request, decode
        self._probes: ThoughtProbes | None = thought.budget.probes
        if self._probes is not None:
            self._prober = Prober(self._probes, engine, decode)
            self._places = ProbePlaces(self._probes.rule, decode)
        self._part_stops: tuple[str, ...] | None = None  # of the last request, where it got more of them here
        self.is_open = True
        self.history: ThoughtHistory = thought.history
        self.probe_usage = Usage()
        self.num_lost = 0
        self.is_late = False
        self._lost_text = False  # whether the engine gave nothing of a part that ended at its deadline

    def must_interrupt(self, written: Generation) -> bool:
        """Returns whether the thought is still open behind `written`, and a text has to be put in there."""
        return self.is_open and (self._remaining(written) < 1 or self._has_enough(written))

    def interrupt(self, written: Generation) -> Generation:
        """Returns `written` with the hint to end behind it, or with the forced end. *Mutates* the progress."""
        hint = self._hint
        if hint and self._has_enough(written) and self._remaining(written) > len(hint):
            self.history = replace(self.history, hint=self._position(written))
            return put_in(written, hint)
        self.is_open = False
        self.is_late |= self._is_out_of_time(written)
        return self._thought.budget.put_in_end(written)

    def limit_request(self, request: GenerationRequest, written: Generation) -> GenerationRequest:
        """Returns the request for what follows `written`, with `max_tokens` up to where the thought is looked at."""
        if not self.is_open:
            return request
        limit = min(request.params.max_tokens, self._remaining_tokens(written))
        if self._thought.time is not None:
            limit = min(limit, self._thought.time.count_affordable(self._answer_tokens))
            request = replace(request, deadline=self._thought.time.find_deadline(self._answer_tokens))
        stops: tuple[str, ...] = ()
        if self._probes is not None and self.history.hint is None:
            limit = min(limit, self._places.count_free(self._position(written), self._last_probe))
            stops = self._places.find_stops(self._read_thought(written), self._last_probe)
            stops = tuple(stop for stop in stops if stop not in request.params.stop)
        elif self.history.hint is not None:
            limit = min(limit, self._hint_end - self._position(written))
        if self._may_wait:
            stops += (self._thought.budget.closing,)
        limited = with_max_tokens(request, limit)
        self._part_stops = request.params.stop if stops else None
        return limited.with_params(add_stops(limited.params, stops)) if stops else limited

    async def review(self, written: Generation, border: int) -> Generation:
        """Returns `written`, whose tokens behind `border` are new, as it goes on. *Mutates* the progress.

        A stop of the request that began before the border ends it. A closing tag may have been replaced. Where probes
        are due, they are sent, and awaited; the text behind the one that ends the thought is taken off.
        """
        written = self._review_deadline(written, border)
        whole = cut_at_stop(written, border, self._request.params.stop, self._decode)
        if not self.is_open:
            return whole
        if self._is_closed(whole, border):
            waited = self._put_in_wait(whole)
            if waited is not None:
                return waited
            self.is_open = False
        if whole is not written:  # a stop of the request's own
            return whole
        if written.finish == "stop" and self._part_stops is not None:  # perhaps at a text of ours alone
            is_ours = not self._has_stop(written, border, self._part_stops)
            written = replace(written, finish="length") if is_ours else written
        if not self.is_open or self.history.hint is not None or self._remaining(written) < 1:
            return written
        stops = self._request.params.stop
        if written.finish == "length" or (written.finish == "stop" and not self._has_stop(written, border, stops)):
            return await self._send_probes(written, border)
        return written

    def _position(self, written: Generation) -> int:
        return self._thought.num_tokens + len(written.tokens)

    def _remaining(self, written: Generation) -> int:
        return 0 if self._is_out_of_time(written) else self._remaining_tokens(written)

    def _remaining_tokens(self, written: Generation) -> int:
        left = self._thought.remaining - len(written.tokens)
        # above its room only where it pauses, and the budget does not end it
        if not self.num_lost or self._thought.remaining > self._thought.room:
            return left
        room = self._thought.room - len(written.tokens) - self.num_lost  # what was taken off is not the answer's
        return min(left, self._thought.budget.remaining(self._position(written), room))

    @property
    def _answer_tokens(self) -> int:
        return self._thought.budget.answer_tokens

    def _is_out_of_time(self, written: Generation) -> bool:
        """Whether the thought is ended now, so that there is time left for the answer."""
        time = self._thought.time
        if time is None or self._is_unbegun(written):
            return False
        return self._lost_text or time.is_over(self._answer_tokens)

    def _is_unbegun(self, written: Generation) -> bool:
        """Whether nothing of the solution is written, and others are there: its answer would be one without a thought,
        and would take the time of theirs."""
        return self._thought.is_spare and not written.tokens

    def _review_deadline(self, written: Generation, border: int) -> Generation:
        """Returns `written` as one that goes on, where it ended at the deadline of its thought. *Mutates*."""
        time = self._thought.time
        if not self.is_open or time is None or written.finish != "deadline" or time.has_expired:
            return written
        if self._is_unbegun(written):
            self.is_late = True
            return written
        self._lost_text |= len(written.tokens) == border
        return replace(written, finish="length")

    def _read_thought(self, written: Generation) -> Tokens:
        """All tokens of the thought, those of the path before included."""
        prefix = self._request.prefix
        return prefix[len(prefix) - self._thought.num_tokens :] + written.tokens

    def _has_enough(self, written: Generation) -> bool:
        if self._probes is None or not self.history.probes:
            return False
        if self.history.hint is not None:
            return self._position(written) >= self._hint_end
        return self._probes.rule.decide(self.history.probes)

    @property
    def _last_probe(self) -> int:
        return self.history.probes[-1].num_tokens if self.history.probes else 0

    @property
    def _hint(self) -> Tokens:
        """The hint that may be put in now; a loop would go on behind it."""
        past = self.history
        if self._probes is None or past.hint is not None or not past.probes or past.probes[-1].is_loop:
            return ()
        return self._probes.hint

    @property
    def _hint_end(self) -> int:
        """Tokens of the thought at which it is ended by force, because it did not take the hint."""
        assert self._probes is not None
        assert self.history.hint is not None
        return self.history.hint + len(self._probes.hint) + self._probes.rule.hint_tokens

    @property
    def _may_wait(self) -> bool:
        return len(self.history.waits) < self._thought.budget.waits and self.history.hint is None

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
        self.history = replace(self.history, waits=waits)
        self.num_lost += max(0, len(written.tokens) - len(waited.tokens))
        return waited

    def _has_stop(self, written: Generation, border: int, stops: Sequence[str]) -> bool:
        """Whether one of these texts, or of the request's ids, ended what is new."""
        text = self._decode(written.tokens[border:])
        return any(stop in text for stop in stops) or written.tokens[-1] in self._request.params.stop_token_ids

    async def _send_probes(self, written: Generation, border: int) -> Generation:
        """Returns `written` up to the probe that ends the thought; all of it where none does."""
        if self._probes is None:
            return written
        thought, first = self._read_thought(written), self._thought.num_tokens + border
        while (place := self._places.find_next(thought, self._last_probe, first)) is not None:
            probe = await self._probe(self._probes, written, thought[:place])
            if probe is None:
                break
            self.history = replace(self.history, probes=(*self.history.probes, probe))
            if self._has_enough(written):
                return self._cut(written, place - self._thought.num_tokens)
        return written

    async def _probe(self, probes: ThoughtProbes, written: Generation, thought: Tokens) -> Probe | None:
        """Asks for the answer behind the thought, or has it read; None where no probe is affordable."""
        if probes.rule.is_loop(thought):
            return Probe(num_tokens=len(thought), answer=None, is_loop=True)
        if self._thought.probe_tokens - self.probe_usage.probe_tokens < probes.rule.probe_tokens:
            return None
        if probes.verifier is not None:
            deadline = self._request.deadline
            reply = await read_part(probes.verifier, thought, self.history.probes, self._decode, deadline)
            self.probe_usage += replace(reply.usage, seconds=0.0)
            return reply.probe
        room = self._thought.room - len(written.tokens) - len(probes.tokens)
        max_tokens = min(probes.rule.probe_tokens, room)
        if max_tokens < 1:
            return None
        prompt = self._request.prefix[: len(self._request.prefix) - self._thought.num_tokens]
        request = replace(self._request, prefix=prompt + thought)
        reply = await self._prober.send_probe(request, thought[self._last_probe :], len(thought), max_tokens)
        self.probe_usage += replace(reply.usage, seconds=0.0)
        return reply.probe

    def _cut(self, written: Generation, length: int) -> Generation:
        """Returns the first `length` tokens, as far as they are in `written`; the engine wrote the others in vain."""
        written, length = replace(written, finish="length"), max(0, length)  # the forced end or a hint follows
        num_cut = len(written.tokens) - length
        is_all = not length and num_cut >= self._request.params.max_tokens - self.num_lost
        if not num_cut or is_all:  # with nothing left, the forced end would have no room for an answer
            return written
        self.num_lost += num_cut
        cut = cut_generation(written, length)
        return replace(cut, usage=cut.usage + Usage(unused_tokens=num_cut))
