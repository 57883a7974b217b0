"""The language model that reads running thoughts for `early_exit.verifier`, asked as a judge is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from reason.scorers.judge_model import JudgeModel, VerdictWords
from search.part_verifier import AskVerdict, PartVerdict

YES_NO = VerdictWords("yes", "no")


@dataclass(frozen=True, kw_only=True)
class ThoughtVerifier:
    """Reads the thoughts of a solver's problems.

    is_small  whether it is the model at the settings `small`, whose tokens are counted apart
    """

    model: JudgeModel
    is_small: bool

    def bind(self, remove_tags: Callable[[str], str]) -> AskVerdict:
        """Returns what asks it; a tag of a thought would look like one of its own, so requests have none."""

        async def ask(request: str, *, max_tokens: int, deadline: float | None) -> PartVerdict:
            verdict = await self.model.ask_word(remove_tags(request), YES_NO, max_tokens=max_tokens, deadline=deadline)
            usage = verdict.usage
            if self.is_small:
                usage = replace(usage, small_tokens=usage.tokens, small_forwards=usage.forwards, forwards=0)
            return PartVerdict(verdict.is_yes, usage)

        return ask

    def close(self) -> None:
        """Closes the engine of a model of its own; that of the model that solves is closed with the solver."""
        if self.is_small:
            self.model.engine.close()
