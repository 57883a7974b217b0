"""Parallel-Distill-Refine (arXiv 2510.01123): drafts are distilled into a short workspace, from which the next drafts
start."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from decoding.core import Tokens
from decoding.validation import require_choice, require_count
from search.revision_search import RevisionSearch
from search.revision_state import RevisionState
from search.seeds import derive_seed
from search.strategy import Resources, SearchResult
from search.templates import Places
from search.tree import SearchTree

DISTILLATIONS = ("summary", "top_k", "random_k", "answers", "notes")

TEMPLATES = {
    "draft": "Attempt {number}:\n{text}",
    "answer": "{answer} (given by {count} of {total} attempts)",
    "nothing": "Nothing was found out yet.",
    "summary": (
        "{question}\n\nHere are attempts at this problem. They may be wrong or unfinished.\n\n{drafts}\n\n"
        "Summarise them for the next attempt: results that can be relied on, where the attempts "
        "contradict each other and which of them is right, mistakes, and what is still to be done."
    ),
    "put_in": "\n\nBefore I go on, I write down what I know so far.\n{closing}\n\nWhat I know so far: ",
    "refine": (
        "{question}\n\nNotes from earlier attempts, which may be wrong:\n{workspace}\n\n"
        "Check the notes, keep what is right, and solve the problem."
    ),
}


@dataclass(frozen=True, kw_only=True)
class Pdr(RevisionSearch):
    """Parallel-Distill-Refine: `n` drafts, then rounds of `n` more that start from a short text about the last ones.

    With one draft per round it is Sequential Refine. `RevisionSearch` describes the other knobs.

    rounds            rounds of drafts; the solutions of the last one vote
    last_n            solutions of the last round, where there are several rounds; None: `n`; the paper has 1
    distill           how drafts become the workspace: `summary` (the model summarises them), `top_k` (the best ones, by
                      score, or without scores by the votes for their answers), `random_k` (others for each new draft),
                      `answers` (how often each was given) or `notes` (each draft ends with notes, for which a text is
                      put in behind its unfinished thought)
    top_k             drafts of `top_k` and `random_k`
    think_tokens      tokens of a thought, after which a draft is distilled as it is, but for those of the last round,
                      whose thoughts are then ended by force; None: drafts are written to their end
    draft_tokens      tokens of a draft that are shown, the last ones
    workspace_tokens  tokens of the workspace
    """

    places: ClassVar[Mapping[str, Places]] = {
        "draft": Places(("text",), ("number",)),
        "answer": Places(("answer",), ("count", "total")),
        "nothing": Places(),
        "summary": Places(("drafts",), ("question",)),
        "put_in": Places((), ("closing",)),
        "refine": Places(("question", "workspace")),
    }

    n: int = 8
    rounds: int = 2
    last_n: int | None = None
    distill: str = "summary"
    top_k: int = 2
    think_tokens: int | None = None
    draft_tokens: int = 1024
    workspace_tokens: int = 1024
    templates: Mapping[str, str] = field(default_factory=TEMPLATES.copy)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rounds", "top_k", "draft_tokens", "workspace_tokens"):
            require_count(name, getattr(self, name), at_least=1)
        for name in ("last_n", "think_tokens"):
            require_count(name, getattr(self, name), at_least=1, or_null=True)
        require_choice("distill", self.distill, DISTILLATIONS)
        if self.distill == "notes" and self.think_tokens is None:
            raise ValueError("distill=notes asks unfinished drafts for notes; set think_tokens, or another distill")

    @property
    def continues_text(self) -> bool:
        """Whether requests continue earlier output: unfinished drafts are continued."""
        return self.think_tokens is not None

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        state, prompts = RevisionState(root, resources, self), [SearchTree.ROOT] * self.n
        solutions: list[int] = []
        for number in range(self.rounds):
            is_last = number == self.rounds - 1
            leaves = await state.write_solutions(prompts, self.think_tokens, pauses=not is_last)
            drafts = [leaf for leaf in leaves if leaf >= 0]  # an empty draft adds no node
            if not solutions or any(state.read_answer(draft) is not None for draft in drafts):
                solutions = drafts
            if is_last or not drafts:
                break
            width = self.n if self.last_n is None or number < self.rounds - 2 else self.last_n
            prompts = await self._distill(state, drafts, width, derive_seed(resources.seed, "drafts", number))
        return state.build_result(solutions)

    async def _distill(self, state: RevisionState, drafts: list[int], width: int, seed: int) -> list[int]:
        """Returns the prompts of the next `width` drafts; none where the budget ran out."""
        if self.distill == "summary":
            return await self._summarise(state, drafts) * width
        if self.distill == "notes":
            return await self._write_notes(state, drafts) * width
        if self.distill == "random_k":
            dice = random.Random(seed)
            chosen = [sorted(dice.sample(drafts, min(self.top_k, len(drafts)))) for _ in range(width)]
            return [self._show_drafts(state, few) for few in chosen]
        if self.distill == "answers":
            return [self._refine(state, self._count_answers(state, drafts), drafts)] * width
        return [self._show_drafts(state, self._choose_best(state, drafts))] * width

    async def _summarise(self, state: RevisionState, drafts: Sequence[int]) -> list[int]:
        """Returns the prompt that shows a summary of the drafts; none where the budget ran out."""

        def build(limit: int) -> str:
            texts = [state.shorten(state.read_text(draft), limit, keep="end") for draft in drafts]
            return state.fill("summary", drafts=self._list_drafts(state, texts))

        request = state.ask("notes", build, self.draft_tokens, drafts, len(drafts))
        return [
            self._refine(state, summary, [leaf] if leaf >= 0 else drafts)
            for leaf, summary in await state.write_notes([request], self.workspace_tokens)
        ]

    async def _write_notes(self, state: RevisionState, drafts: Sequence[int]) -> list[int]:
        """Returns the prompt that shows the notes of the unfinished drafts and the texts of the others; none where the
        budget ran out."""
        share = max(1, self.workspace_tokens // len(drafts))
        paused = [draft for draft in drafts if state.is_paused(draft)]
        requests = [state.put_in(draft, state.fill("put_in")) for draft in paused]
        notes = dict(zip(paused, await state.write_notes(requests, share), strict=False))
        if paused and not notes:
            return []
        sources = [notes[draft][0] if draft in notes and notes[draft][0] >= 0 else draft for draft in drafts]
        texts = [
            notes[draft][1] if draft in notes else state.shorten(state.read_text(draft), share, keep="end")
            for draft in drafts
        ]
        return [self._refine(state, self._list_drafts(state, texts), sources)]

    def _show_drafts(self, state: RevisionState, drafts: Sequence[int]) -> int:
        share = max(1, min(self.draft_tokens, self.workspace_tokens // len(drafts)))
        texts = [state.shorten(state.read_text(draft), share, keep="end") for draft in drafts]
        return self._refine(state, self._list_drafts(state, texts), drafts)

    def _refine(self, state: RevisionState, workspace: str, sources: Sequence[int]) -> int:
        def build(limit: int) -> str:
            shown = state.shorten(workspace, limit, keep="start").strip() or state.fill("nothing")
            return state.fill("refine", workspace=shown)

        return state.ask("solution", build, self.workspace_tokens, sources)

    def _list_drafts(self, state: RevisionState, texts: Sequence[str]) -> str:
        shown = [text for text in texts if text]
        return "\n\n".join(state.fill("draft", number=str(i), text=text) for i, text in enumerate(shown, 1))

    def _count_answers(self, state: RevisionState, drafts: Sequence[int]) -> str:
        answers = Counter(answer for draft in drafts if (answer := state.read_answer(draft)) is not None)
        total = str(len(drafts))
        return "\n".join(
            state.fill("answer", answer=answer, count=str(count), total=total)
            for answer, count in answers.most_common()
        )

    def _choose_best(self, state: RevisionState, drafts: Sequence[int]) -> list[int]:
        """The drafts with the highest scores; among those without a score, the ones whose answer is the most frequent.
        Of equals the first ones."""
        answers = {draft: state.read_answer(draft) for draft in drafts}
        votes = Counter(answer for answer in answers.values() if answer is not None)
        scores = {draft: state.tree.path_score(draft, self.agg_strategy) for draft in drafts}

        def rank(draft: int) -> tuple[float, int]:
            score, answer = scores[draft], answers[draft]
            return -1.0 if score is None else score, 0 if answer is None else votes[answer]

        return sorted(sorted(drafts, key=rank, reverse=True)[: self.top_k])
