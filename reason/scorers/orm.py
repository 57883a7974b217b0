"""An outcome reward model as a scorer: it judges a whole solution, or a path as if it were one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from decoding.core import Tokens, Usage
from reason.models.tokenizer import PretrainedTokenizer
from reason.scorers.formats.outcome import OutcomeReward
from reason.scorers.prm import LoadedPrm, PrmScorer
from search.strategy import ScoredPaths
from search.tree import Step

log = logging.getLogger(__name__)


class OutcomeScorer(PrmScorer):
    """Scores the last step of a path by the reward of all of it; the steps before it are left out.

    Use it with search.agg_strategy=last in searches over steps, where the steps before have scores of their own. Knobs
    as in `PrmScorer`; `adapter` is an `OutcomeReward`.
    """

    def __init__(
        self,
        *,
        adapter: OutcomeReward,
        path: str,
        device: str = "auto",
        dtype: str = "auto",
        numerics: str = "fast",
        max_tokens: int | None = None,
        kv_mib: int = 1024,
    ) -> None:
        super().__init__(
            adapter=adapter, path=path, device=device, dtype=dtype, numerics=numerics, max_tokens=max_tokens,
            kv_mib=kv_mib,
        )  # fmt: skip
        self.outcome = adapter

    def _build_format(self, tokenizer: PretrainedTokenizer) -> None:
        self.outcome.encode_solution(tokenizer, "", "")  # fails without a chat template

    def bind(self, question: str, prompt: Tokens) -> OutcomePaths:
        """See `base.Scorer`."""
        del prompt
        return OutcomePaths(self.loaded_prm, self.outcome, question)


@dataclass
class OutcomePaths:
    """A `StepScorer` of one problem. A text that was scored before is not read again."""

    prm: LoadedPrm
    adapter: OutcomeReward
    question: str
    known: dict[Tokens, float] = field(default_factory=dict)
    has_warned: bool = False

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        """See `search.strategy.StepScorer`. A path beyond the model's limit is not scored."""
        texts = [
            self.adapter.encode_solution(self.prm.tokenizer, self.question, "".join(step.text for step in path))
            for path in paths
        ]
        limit, longest = self.prm.limit, max(map(len, texts), default=0)
        if not self.has_warned and longest > limit.max_tokens:
            self.has_warned = True
            num_prompt = len(self.adapter.encode_solution(self.prm.tokenizer, self.question, ""))
            explanation = limit.explain(prompt_tokens=num_prompt)
            log.warning("a solution of %d tokens, prompt included, is not scored: %s", longest, explanation)
        new = list(dict.fromkeys(t for t in texts if len(t) <= limit.max_tokens and t not in self.known))
        if new:
            outputs = await self.prm.reader.encode(new, [len(text) - 1 for text in new])
            for text, rows in zip(new, outputs, strict=True):
                score = self.adapter.score_output(np.asarray(rows, dtype=np.float64)[-1])
                if not 0 <= score <= 1:  # also for nan
                    raise FloatingPointError(f"the reward model gave a score outside [0, 1]: {score}")
                self.known[text] = score
        scores = [
            [*[None] * (len(path) - 1), self.known[text]] if path and text in self.known else None
            for path, text in zip(paths, texts, strict=True)
        ]
        num_scored = sum(path_scores is not None for path_scores in scores)
        return ScoredPaths(scores, Usage(scorer_calls=num_scored, scored_tokens=sum(map(len, new))))
