"""State of one search that writes prompts of its own: solutions, notes about them, and prompts made from both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from decoding.core import SamplingParams, Tokens
from search.expand import Expander
from search.problem_text import ProblemText
from search.revision_search import RevisionSearch
from search.sample import build_result
from search.strategy import Candidate, Resources, SearchResult
from search.templates import fill_template
from search.tree import Context, Purpose, SearchTree

BROKEN = "\ufffd"
"""The text of a character whose bytes were cut."""


class RevisionState:
    """Tree of one search and the texts of its problem, for all strategies that write prompts of their own.

    A prompt that would fill more than half of the context window holds less of the texts that it shows.
    """

    def __init__(self, root: Tokens, resources: Resources, strategy: RevisionSearch) -> None:
        if resources.problem_text is None:
            raise ValueError(f"{type(strategy).__name__} writes prompts and was given no problem_text")
        self.strategy = strategy
        self.texts: ProblemText = resources.problem_text
        self.expander = Expander(root, resources)
        # what is no solution is not scored, and no answer is asked for in it
        self._plain = replace(resources, scorer=None, thought=None)

    @property
    def tree(self) -> SearchTree:
        """Tree of the search so far."""
        return self.expander.tree

    @property
    def resources(self) -> Resources:
        """What the search may use."""
        return self.expander.resources

    def fill(self, name: str, **values: str) -> str:
        """Returns a template of the strategy with these values, the question, and the text that ends a thought."""
        known = {"question": self.texts.question, "closing": self.texts.closing}
        return fill_template(self.strategy.templates[name], **known, **values)

    def ask(
        self, purpose: Purpose, build: Callable[[int], str], limit: int, sources: Sequence[int], num_parts: int = 1
    ) -> int:
        """Adds a context and returns its number.

        `build(limit)` returns its text, of which each of `num_parts` texts has at most `limit` tokens. The limit is
        lowered where the prompt does not fit. Notes are written without a thought. *Mutates* the tree.
        """
        render = self.texts.render_question if purpose == "solution" else self.texts.render_request
        begun = self.texts.encode(self.texts.skipped_thought) if purpose == "notes" else ()
        window = self.resources.context_window
        while True:
            text = build(limit)
            tokens = render(text) + begun
            excess = 0 if window is None else len(tokens) - window // 2
            if excess <= 0 or limit == 0:
                return self.expander.add_context(Context(tokens, text, purpose, tuple(sources)))
            limit = max(0, limit - max(1, excess // num_parts))

    def put_in(self, node: int, text: str) -> int:
        """Adds a context that puts a text in behind a path, and returns its number. *Mutates* the tree."""
        return self.expander.add_context(Context(self.texts.encode(text), text, "notes", (node,), after=node))

    async def write_solutions(self, prompts: Sequence[int], think_tokens: int | None, *, pauses: bool) -> list[int]:
        """Writes a solution behind each prompt; returns their last nodes, in order, without the empty ones' at the end
        of the budget.

        A thought of `think_tokens` is ended by force, as every thought at its budget; where it `pauses` it is left as
        it is (`is_paused`). So is a solution without a thought. *Mutates* the tree and the usage.
        """
        sampling, thought = self.strategy.sampling, self.resources.thought
        longest = sampling.max_tokens if thought is None else thought.remaining(0, sampling.max_tokens)
        if pauses and think_tokens is not None and think_tokens < longest:
            part = replace(sampling, max_tokens=think_tokens)
            leaves = await self._sample(prompts, part, pauses=True)
            return await self._finish_texts(leaves, sampling.max_tokens - think_tokens)
        if thought is not None and think_tokens is not None:
            thought = replace(thought, max_tokens=min(think_tokens, thought.max_tokens or think_tokens))
        limited = replace(self.resources, thought=thought)
        return await self._sample(prompts, sampling, resources=limited)

    def is_paused(self, node: int) -> bool:
        """Whether a solution was left open in its thought, or, if it has none, in its text."""
        return node >= 0 and self.tree.nodes[node].finish is None

    async def write_notes(self, prompts: Sequence[int], max_tokens: int) -> list[tuple[int, str]]:
        """Writes a text of at most so many tokens behind each prompt; returns their last nodes and texts, in order.

        The list is shorter than `prompts` if the budget ran out. *Mutates* the tree and the usage.
        """
        # A thought that could not be skipped needs its room.
        thinks = bool(self.texts.closing) and not self.texts.skipped_thought and not self.texts.begins_behind
        room = self.strategy.sampling.max_tokens if thinks else max_tokens
        part = replace(self.strategy.sampling, max_tokens=room)
        leaves = await self._sample(prompts, part, resources=self._plain)
        texts = [self.read_text(leaf) if thinks else self.tree.path_text(leaf).strip() for leaf in leaves]
        return [(leaf, self.shorten(text, max_tokens, keep="start")) for leaf, text in zip(leaves, texts, strict=True)]

    async def write_feedback(self, prompts: Sequence[int], max_tokens: int) -> list[tuple[int, str]]:
        """Writes a text behind each prompt, after a thought if the model thinks; otherwise as `write_notes`."""
        sampling, thought = self.strategy.sampling, self.resources.thought
        if not self.texts.closing or self.texts.begins_behind:
            sampling = replace(sampling, max_tokens=max_tokens)
        if thought is not None:
            end = self.texts.encode(f"\n{self.texts.closing}\n\n")
            room = max(thought.answer_tokens, max_tokens)
            thought = replace(thought, forced_end=end, answer_tokens=room, probes=None, waits=0)
        thinking = replace(self._plain, thought=thought)
        leaves = await self._sample(prompts, sampling, resources=thinking)
        return [(leaf, self.shorten(self.read_text(leaf), max_tokens, keep="start")) for leaf in leaves]

    def read_text(self, node: int) -> str:
        """Returns what a prompt shows of a solution: the text behind its thought, or the thought if there is none."""
        thought, text, is_finished = self.texts.split(self.tree.path_text(node))
        return (text.strip() if is_finished else "") or thought.strip()

    def read_answer(self, node: int) -> str | None:
        """Returns the answer of a solution."""
        return self.resources.extract_answer(self.tree.path_text(node))

    def shorten(self, text: str, limit: int, *, keep: Literal["start", "end"]) -> str:
        """Returns the start or the end of a text, of at most `limit` tokens."""
        tokens = self.texts.encode(text)
        if len(tokens) <= limit:
            return text
        for size in range(limit, 0, -1):
            part = self.resources.decode(tokens[:size] if keep == "start" else tokens[-size:]).strip(BROKEN)
            if len(self.texts.encode(part)) <= limit:  # a part may have more tokens alone than in its text
                return part
        return ""

    def build_result(self, nodes: Sequence[int]) -> SearchResult:
        """Builds the result of a vote among the solutions that end at these nodes."""
        score = self.strategy.agg_strategy
        candidates = [
            Candidate(node, self.read_answer(node), self.tree.path_score(node, score)) for node in nodes if node >= 0
        ]
        return build_result(self.expander, candidates, self.strategy.select, self.strategy.unscored)

    async def _sample(
        self,
        prompts: Sequence[int],
        sampling: SamplingParams,
        *,
        pauses: bool = False,
        resources: Resources | None = None,
    ) -> list[int]:
        """Continues nodes, if there are any, to the end; the arguments are those of `sample_continuations`."""
        if not prompts:
            return []
        return await self.expander.sample_continuations(
            prompts, sampling, one_step=False, pauses=pauses, resources=resources
        )

    async def _finish_texts(self, leaves: list[int], max_tokens: int) -> list[int]:
        """Goes on with the solutions that were left open behind their thought."""
        closing = self.texts.closing
        cut = [
            i
            for i, leaf in enumerate(leaves)
            if closing and self.is_paused(leaf) and closing in self.tree.path_text(leaf)
        ]
        part = replace(self.strategy.sampling, max_tokens=max_tokens)
        more = await self._sample([leaves[i] for i in cut], part)
        ends = dict(zip(cut, more, strict=False))
        return [ends.get(i, leaf) for i, leaf in enumerate(leaves)]
