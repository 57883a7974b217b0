"""A small model with a vocabulary of its own, spoken to in the large one's: the two meet at text, where steps end.

What was written goes over step by step, so the ids of a step do not depend on what follows it, and what the small model
has in its prefix cache stays a prefix. What it wrote itself it gets back in its own ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from decoding.core import Engine, Generation, GenerationRequest, Tokens
from reason.prompt import Prompt
from search.steps import split_steps

_HALF = "\ufffd"  # what the bytes of an unfinished character decode to


@dataclass(frozen=True)
class Translation:
    """What the two vocabularies need to meet. `bind` gives the small model's engine of one problem.

    theirs, ours   how the small and the large model are asked, and the text of their ids
    end            the large model's id that ends a text; None if it has none
    """

    theirs: Prompt
    ours: Prompt
    end: int | None

    def bind(self, engine: Engine, question: str, root: Tokens) -> BoundTranslated:
        """The engine for the problem that the large model is asked with `root`. The small one is asked the question in
        its own way; a prompt that is more than the question (a conversation) it is given as text."""
        if root == self.ours.encode(question):
            return BoundTranslated(self, engine, root, self.theirs.encode(question))
        return BoundTranslated(self, engine, root, self.theirs.encode_text(self.ours.decode(root)))


class BoundTranslated:
    """Implements `core.Engine` for one problem, in the large model's ids.

    Of a generation, `tokens` are what the large model's tokenizer makes of the text, and each log-probability is the
    mean: that of the whole is the small model's. `spent` counts the small model's own tokens, and `max_tokens` holds
    for either model's.
    """

    def __init__(self, between: Translation, engine: Engine, root: Tokens, their_root: Tokens) -> None:
        self._between, self._engine, self._root, self._their_root = between, engine, root, their_root
        self._ids: dict[str, Tokens] = {}  # the small model's, of a step's text

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """See `core.Engine`. The small model ends by its own ids: `stop_token_ids` are the large one's."""
        asked = [
            replace(request, prefix=self._prefix(request.prefix), params=replace(request.params, stop_token_ids=()))
            for request in requests
        ]
        found = await self._engine.generate(asked)
        return [self._told(generation, request) for generation, request in zip(found, requests, strict=True)]

    def _prefix(self, ours: Tokens) -> Tokens:
        prompt = self._between.ours
        steps = split_steps(ours[len(self._root) :], (), prompt.decode, prompt.form.delimiter)
        return tuple(chain(self._their_root, *(self._theirs(step.text) for step in steps)))

    def _theirs(self, text: str) -> Tokens:
        if text not in self._ids:
            self._ids[text] = self._between.theirs.encode_more(text)
        return self._ids[text]

    def _told(self, generation: Generation, request: GenerationRequest) -> Generation:
        theirs, ours = self._between.theirs, self._between.ours
        ended = generation.finish == "eos"
        said = generation.tokens[:-1] if ended else generation.tokens
        whole = theirs.decode(said)
        text = _until(whole.rstrip(_HALF), request.params.stop)
        if text == whole:
            self._ids[text] = said
        tokens = ours.encode_more(text)
        if ended and self._between.end is not None:
            tokens = (*tokens, self._between.end)
        kept = tokens[: request.params.max_tokens]
        mean = sum(generation.logprobs) / max(1, len(tokens))
        return replace(
            generation,
            tokens=kept,
            logprobs=(mean,) * len(kept) if generation.logprobs else (),
            finish=generation.finish if kept == tokens else "length",
        )


def _until(text: str, stops: Sequence[str]) -> str:
    """The text up to the end of the stop string that is complete first; a token may say more than that.

    >>> _until("so 3.\\n\\nThen", ("\\n\\n",))
    'so 3.\\n\\n'
    """
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    return text[: min(ends)] if ends else text
