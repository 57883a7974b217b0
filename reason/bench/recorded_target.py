"""Replays recorded texts of real models through an engine whose model has random weights: teacher forcing.

The model computes every round at its full cost; then the recorded next token of each branch gets all probability. So
texts and accepted lengths are those of recordings, and the rounds are real ones but for two small copies to the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch

from decoding.core import Tokens
from decoding.model.transformers_checkpoint import HFBackend
from decoding.round import Speculation
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.draft import Draft, DraftSampling, VerifyResult
from decoding.speculation.interfaces import AcceptanceRule, Branch
from decoding.speculation.target_logits import TargetLogits
from reason.bench.accepted_paths import learn_accepted_paths
from reason.bench.puppet import IMPOSSIBLE, describe_misfit
from reason.bench.replay import (
    EncodedProblem,
    RecordedProblem,
    encode_texts,
    load_replay_tokenizer,
    read_recordings,
)
from reason.bench.workload import Workload, WorkloadQuestion
from reason.models.tokenizer import PretrainedTokenizer
from reason.training.tokenizer import build_text_tokenizer
from search.seeds import derive_seed

FAMILY = "recorded"
LEARNED_TOKENS = 16_384  # of a vocabulary learned from the recorded problems; fewer where the texts give fewer


def learn_tokenizer(recordings: Sequence[RecordedProblem], limit: int) -> PretrainedTokenizer:
    """Returns a tokenizer learned from recordings, but not from the samples of the first `limit` problems.

    Those are to be drafted: it would cut them into long pieces.
    """
    samples = [text for one in recordings[limit:] for text in one.samples]
    tokenizer: PretrainedTokenizer = build_text_tokenizer(
        [*samples, *(one.problem for one in recordings)], LEARNED_TOKENS
    )
    return tokenizer


@dataclass(frozen=True)
class RecordedText:
    """Implements `AcceptanceRule`: coupled acceptance after the recorded next token has got all probability.

    texts   whole branches, prompt included, by group and seed; their last token ends a generation

    A row after a token that is not the recorded one keeps the logits of the model. *Mutates* the logits.
    """

    texts: Mapping[tuple[str, int], Tokens]
    rule: AcceptanceRule = field(default_factory=Coupled)

    @property
    def lossless(self) -> bool:
        return self.rule.lossless

    @property
    def supported_sampling(self) -> tuple[DraftSampling, ...]:
        return self.rule.supported_sampling

    def verify_drafts(
        self, branches: Sequence[Branch], drafts: Sequence[Draft], target: TargetLogits
    ) -> list[VerifyResult]:
        rows: list[int] = []
        tokens: list[int] = []
        for branch, draft, first in zip(branches, drafts, target.first_rows, strict=True):
            following = self.texts[branch.group, branch.seed][len(branch.tokens) :]
            depths = {-1: 0}  # of the root and of the nodes on the recorded path
            for node, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True)):
                if parent in depths and following[depths[parent]] == token and depths[parent] + 1 < len(following):
                    depths[node] = depths[parent] + 1
            rows += [first + 1 + node for node in depths]
            tokens += [following[depth] for depth in depths.values()]
        with torch.inference_mode():  # the logits were made in it
            device = target.logits_WV.device
            target.logits_WV[torch.tensor(rows, device=device), torch.tensor(tokens, device=device)] += IMPOSSIBLE
        return self.rule.verify_drafts(branches, drafts, target)


@dataclass(frozen=True)
class RecordedTarget:
    """Implements `SpeculationTarget` by a random model and recorded problems, each with equally many samples.

    Drafts are the likeliest tokens: a recorded text has no noise that a drafter could know. Rows after a token that is
    not the recorded one teach nothing.

    Raises: ValueError for a vocabulary that does not fit the model's, and for a text longer than its window.
    """

    backend: HFBackend
    tokenizer: PretrainedTokenizer
    problems: tuple[EncodedProblem, ...]
    end: int
    task: str = FAMILY

    def __post_init__(self) -> None:
        num_tokens = 1 + max(self.end, *self.tokenizer.get_vocab().values())
        if num_tokens > self.backend.vocab_size:
            raise ValueError(describe_misfit(num_tokens, self.backend.vocab_size))
        longest = max(len(one.prompt) + len(text) + 1 for one in self.problems for text in one.samples)
        if longest > self.backend.max_positions:
            raise ValueError(
                f"a recording of {longest} tokens exceeds the body's window of {self.backend.max_positions}"
            )

    @classmethod
    def read(cls, backend: HFBackend, file: Path, *, tokenizer: str | None, limit: int) -> RecordedTarget:
        """Reads the first `limit` problems of a file; without a tokenizer one is learned from the file's other texts.

        Raises: ValueError or OSError.
        """
        recordings = read_recordings(file)
        loaded = learn_tokenizer(recordings, limit) if tokenizer is None else load_replay_tokenizer(tokenizer)
        end = loaded.eos_token_id
        if end is None:
            raise ValueError(f"tokenizer {tokenizer} has no end-of-sequence token")
        return cls(backend, loaded, tuple(encode_texts(recordings[:limit], loaded)), end)

    @property
    def eos_ids(self) -> frozenset[int]:
        """The token that ends every recording."""
        return frozenset([self.end])

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest recording, its end included."""
        return 1 + max(len(text) for problem in self.problems for text in problem.samples)

    @property
    def num_samples(self) -> int:
        """Recordings that every problem has."""
        return min(len(problem.samples) for problem in self.problems)

    @cached_property
    def texts(self) -> dict[tuple[str, int], Tokens]:
        """Every recording with its prompt and its end, by group and seed of the request that decodes it."""
        return {
            (str(number), derive_seed(str(number), sample)): (*problem.prompt, *text, self.end)
            for number, problem in enumerate(self.problems)
            for sample, text in enumerate(problem.samples)
        }

    def make_questions(self, *, per_family: int, split: Literal["train", "heldout"]) -> tuple[WorkloadQuestion, ...]:
        """See `SpeculationTarget`; recordings are not split, the training questions are the last ones."""
        questions = [WorkloadQuestion(FAMILY, str(n), problem.prompt) for n, problem in enumerate(self.problems)]
        return tuple(questions[:per_family] if split == "heldout" else questions[-per_family:])

    def adapt_speculation(self, speculation: Speculation, workload: Workload) -> Speculation:
        """See `SpeculationTarget`."""
        drafter = learn_accepted_paths(speculation.drafter)
        return replace(speculation, drafter=drafter, acceptance=RecordedText(self.texts, speculation.acceptance))
