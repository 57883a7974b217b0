"""InftyThink (arXiv 2503.06692): thinks in iterations, each from a summary of those before it, in a bounded context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from decoding.core import Tokens
from decoding.validation import require_choice, require_count
from search.revision_search import RevisionSearch
from search.revision_state import RevisionState
from search.strategy import Resources, SearchResult
from search.templates import Places
from search.tree import SearchTree

WAYS_TO_ASK = ("prompt", "put_in")

TEMPLATES = {
    "nothing": "Nothing was found out yet.",
    "summary": (
        "{question}\n\nWhat was known before:\n{summary}\n\nUnfinished thoughts on this problem:\n{thought}\n\n"
        "Summarise both for going on from here: results that can be relied on, ways that lead nowhere, "
        "and what is to be done next. Do not solve the problem."
    ),
    "put_in": "\n\nBefore I go on, I write down what I know so far.\n{closing}\n\nWhat I know so far: ",
    "go_on": "{question}\n\nWhat is known so far:\n{summary}\n\nGo on from here.",
}


@dataclass
class Chain:
    """Iterations of one solution.

    prompt    the prompt or context of the next iteration
    summary   what is known from the iterations before it; "" before the first one
    solution  last node of the latest iteration; None before it
    """

    prompt: int = SearchTree.ROOT
    summary: str = ""
    solution: int | None = None
    is_open: bool = True


@dataclass(frozen=True, kw_only=True)
class InftyThink(RevisionSearch):
    """InftyThink: `n` chains of iterations, each of which goes on from a summary until the model gives its answer.

    The context of an iteration is bounded, whatever the length of the whole thought. `RevisionSearch` describes the
    other knobs.

    iterations      maximum number of iterations; the thought of the last one is ended by force
    think_tokens    tokens of a thought, after which it is summarised (of a solution, for a model without thoughts)
    summary_tokens  maximum tokens of a summary
    ask             how the summary is asked for: `prompt`, in a conversation of its own that shows the thought, or
                    `put_in`, by a text behind the unfinished thought, whose KV is kept
    """

    places: ClassVar[Mapping[str, Places]] = {
        "nothing": Places(),
        "summary": Places(("thought",), ("question", "summary")),
        "put_in": Places((), ("closing",)),
        "go_on": Places(("question", "summary")),
    }

    n: int = 16
    iterations: int = 8
    think_tokens: int = 4096
    summary_tokens: int = 1024
    ask: str = "prompt"
    templates: Mapping[str, str] = field(default_factory=TEMPLATES.copy)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("iterations", "think_tokens", "summary_tokens"):
            require_count(name, getattr(self, name), at_least=1)
        require_choice("ask", self.ask, WAYS_TO_ASK)

    @property
    def continues_text(self) -> bool:
        """Whether requests continue earlier output: a text that `think_tokens` cut is continued."""
        return True

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        state, chains = RevisionState(root, resources, self), [Chain() for _ in range(self.n)]
        for number in range(self.iterations):
            is_last = number == self.iterations - 1
            prompts = [chain.prompt for chain in chains if chain.is_open]
            leaves = await state.write_solutions(prompts, self.think_tokens, pauses=not is_last)
            for chain in chains:
                if chain.is_open:
                    chain.is_open = bool(leaves) and self._add_iteration(state, chain, leaves.pop(0))
            paused = [chain for chain in chains if chain.is_open]
            if not paused or is_last:
                break
            await self._summarise(state, paused)
        return state.build_result([chain.solution for chain in chains if chain.solution is not None])

    def _add_iteration(self, state: RevisionState, chain: Chain, leaf: int) -> bool:
        """Adds an iteration that ends at this node; returns whether the chain goes on. *Mutates* the chain."""
        if leaf >= 0:  # an empty one adds no node
            chain.solution = leaf
        return state.is_paused(leaf)

    async def _summarise(self, state: RevisionState, chains: Sequence[Chain]) -> None:
        """Asks for the summaries of unfinished chains and begins their next contexts; without budget they end."""
        requests = [self._ask_for_summary(state, chain) for chain in chains]
        written = await state.write_notes(requests, self.summary_tokens)
        for chain, (leaf, summary) in zip(chains, written, strict=False):
            chain.summary = summary or chain.summary  # an empty one tells nothing
            chain.prompt = self._go_on(state, chain, leaf if leaf >= 0 else _solution_of(chain))
        for chain in chains[len(written) :]:
            chain.is_open = False

    def _go_on(self, state: RevisionState, chain: Chain, source: int) -> int:
        def build(limit: int) -> str:
            return state.fill("go_on", summary=self._show_summary(state, chain, limit))

        return state.ask("solution", build, self.summary_tokens, [source])

    def _ask_for_summary(self, state: RevisionState, chain: Chain) -> int:
        node = _solution_of(chain)
        if self.ask == "put_in":
            return state.put_in(node, state.fill("put_in"))
        thought = state.read_text(node)
        summary = self._show_summary(state, chain, self.summary_tokens)

        def build(limit: int) -> str:
            return state.fill("summary", summary=summary, thought=state.shorten(thought, limit, keep="end"))

        return state.ask("notes", build, self.think_tokens, [node])

    def _show_summary(self, state: RevisionState, chain: Chain, limit: int) -> str:
        return state.shorten(chain.summary, limit, keep="start") or state.fill("nothing")


def _solution_of(chain: Chain) -> int:
    assert chain.solution is not None, "a chain is summarised after an iteration"
    return chain.solution
