"""Self-Refine (arXiv 2303.17651): the model comments on its own solution and revises it, until it finds no fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from decoding.core import Tokens
from decoding.validation import require_count, require_text, shorten
from search.revision_search import RevisionSearch
from search.revision_state import RevisionState
from search.strategy import Resources, SearchResult
from search.templates import Places
from search.tree import SearchTree

STOP_TEXT = "NO FAULTS FOUND"

TEMPLATES = {
    "feedback": (
        "{question}\n\nA solution:\n{solution}\n\nCheck this solution line by line. Name every fault, and say how to "
        f"mend it. If there is none, write only: {STOP_TEXT}"
    ),
    "refine": (
        "{question}\n\nAn earlier solution:\n{solution}\n\nWhat a reader says about it:\n{feedback}\n\n"
        "Write a better solution of the problem, from its beginning to its answer."
    ),
}


@dataclass
class Revision:
    """The latest solution of one chain, its last node, and the latest one that gives an answer."""

    solution: int
    answered: int | None = None


@dataclass(frozen=True, kw_only=True)
class SelfRefine(RevisionSearch):
    """Self-Refine: `n` solutions, each revised `rounds` times after feedback by the same model.

    `RevisionSearch` describes the other knobs.

    rounds           maximum number of revisions
    stop_text        feedback with this text ends the revisions, in any case of letters; None: it never does
    solution_tokens  tokens of a solution that are shown, the last ones
    feedback_tokens  tokens of the feedback that are shown, the first ones
    """

    places: ClassVar[Mapping[str, Places]] = {
        "feedback": Places(("question", "solution")),
        "refine": Places(("question", "solution", "feedback")),
    }

    n: int = 4
    rounds: int = 2
    stop_text: str | None = STOP_TEXT
    solution_tokens: int = 2048
    feedback_tokens: int = 1024
    templates: Mapping[str, str] = field(default_factory=TEMPLATES.copy)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rounds", "solution_tokens", "feedback_tokens"):
            require_count(name, getattr(self, name), at_least=1)
        if self.stop_text is not None and (not isinstance(self.stop_text, str) or not self.stop_text.strip()):
            raise ValueError(f"stop_text must be a text or null, got {shorten(self.stop_text)}")
        require_text("stop_text", self.stop_text)

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        state = RevisionState(root, resources, self)
        leaves = await state.write_solutions([SearchTree.ROOT] * self.n, None, pauses=False)
        revisions = [Revision(leaf) for leaf in leaves if leaf >= 0]  # an empty solution adds no node
        self._note_answers(state, revisions)
        waiting = revisions
        for _ in range(self.rounds):
            waiting = await self._revise(state, waiting)
            if not waiting:
                break
            self._note_answers(state, waiting)
        return state.build_result([r.solution if r.answered is None else r.answered for r in revisions])

    async def _revise(self, state: RevisionState, revisions: Sequence[Revision]) -> list[Revision]:
        """Revises solutions once; returns those that were revised. *Mutates* them."""
        requests = [self._ask_for_feedback(state, revision) for revision in revisions]
        feedbacks = await state.write_feedback(requests, self.feedback_tokens)
        faulty = [
            (revision, leaf, text)
            for revision, (leaf, text) in zip(revisions, feedbacks, strict=False)
            if text and not self._ends_revision(text)
        ]
        prompts = [self._ask_for_revision(state, *one) for one in faulty]
        leaves = await state.write_solutions(prompts, None, pauses=False)
        revised = []
        for (revision, _, _), leaf in zip(faulty, leaves, strict=False):
            if leaf >= 0:
                revision.solution = leaf
                revised.append(revision)
        return revised

    def _ends_revision(self, feedback: str) -> bool:
        return self.stop_text is not None and self.stop_text.casefold() in feedback.casefold()

    def _ask_for_feedback(self, state: RevisionState, revision: Revision) -> int:
        def build(limit: int) -> str:
            return state.fill("feedback", solution=self._show_solution(state, revision, limit))

        return state.ask("feedback", build, self.solution_tokens, [revision.solution])

    def _ask_for_revision(self, state: RevisionState, revision: Revision, leaf: int, feedback: str) -> int:
        def build(limit: int) -> str:
            shown = state.shorten(feedback, min(limit, self.feedback_tokens), keep="start")
            return state.fill("refine", solution=self._show_solution(state, revision, limit), feedback=shown)

        longest = max(self.solution_tokens, self.feedback_tokens)
        return state.ask("solution", build, longest, [leaf, revision.solution], num_parts=2)

    def _show_solution(self, state: RevisionState, revision: Revision, limit: int) -> str:
        return state.shorten(state.read_text(revision.solution), min(limit, self.solution_tokens), keep="end")

    def _note_answers(self, state: RevisionState, revisions: Sequence[Revision]) -> None:
        for revision in revisions:
            if state.read_answer(revision.solution) is not None:
                revision.answered = revision.solution
