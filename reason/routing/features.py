"""A router built on a reward model that is a language model: what it saw in a step, told by a small head.

The verifier expected certain tokens and the step holds certain tokens. Where they differ, how sure it was there, and
how sure before and after, says whether the step is wrong and also whether anybody would have got it right, which the
step's score does not. The language model runs unchanged, so a scorer may use the same weights.

Where an earlier step is wrong already, no step is worth the large model: so what was seen in those counts, too.

Shapes: K steps, T tokens of a step, F numbers of evidence, H hidden.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from reason.scorers.base import Floats, HeadKind, StepFormat
from reason.scorers.formats.expectation import Expectation
from reason.scorers.formats.token_classification import SharedTokens

KIND = "step_evidence"
NAMES = (
    "worst ratio", "second worst ratio", "tokens not the likeliest", "log p, sum", "log max p, sum", "log max p, least",
    "entropy, sum", "entropy, most", "tokens", "place of the worst", "log p of the worst", "log max p at the worst",
    "entropy at the worst", "log max p before the worst, sum", "log max p before the worst, least",
    "entropy before the worst, sum", "log max p after the worst, sum", "entropy after the worst, sum",
    "steps before", "worst ratio of the steps before", "worst ratio of the step before",
    "steps before with a ratio below 1/5", "tokens before", "log max p of the steps before, sum",
)  # fmt: skip


def evidence(path: Sequence[Floats]) -> Floats:
    """The numbers `NAMES` of a path's last step, `[F]`, from `[T, 3]` for each of its steps: log p(token), log max p
    and entropy at each token.

    >>> said = evidence([np.log([[0.5, 0.5, 2.0], [0.1, 0.8, 1.5]])])     # the second token is not the expected one
    >>> float(said[NAMES.index("tokens not the likeliest")]), float(said[NAMES.index("place of the worst")])
    (1.0, 1.0)
    """
    *earlier, step = path
    log_p, log_max, entropy = step.T
    ratio = log_p - log_max
    worst = int(ratio.argmin())
    second = np.delete(ratio, worst).min(initial=0.0)
    before, after = slice(None, worst), slice(worst + 1, None)
    ratios = np.array([(rows[:, 0] - rows[:, 1]).min() for rows in earlier])
    return np.array(
        [
            ratio[worst], second, (ratio < 0).sum(), log_p.sum(), log_max.sum(), log_max.min(),
            entropy.sum(), entropy.max(), len(ratio), worst, log_p[worst], log_max[worst],
            entropy[worst], log_max[before].sum(), log_max[before].min(initial=0.0),
            entropy[before].sum(), log_max[after].sum(), entropy[after].sum(),
            len(earlier), ratios.min(initial=0.0), ratios[-1] if earlier else 0.0, (ratios < np.log(0.2)).sum(),
            sum(map(len, earlier)), sum(rows[:, 1].sum() for rows in earlier),
        ]
    )  # fmt: skip


def squashed(found: Floats) -> Floats:
    """Logarithms of what is far from 0, sign kept: some sums are long-tailed."""
    return np.sign(found) * np.log1p(np.abs(found))


@dataclass(frozen=True)
class EvidenceHead:
    """From evidence to a probability: standardised, two ReLU layers, a sigmoid.

    base     the language model whose evidence it reads: folder, hub id, bundled:NAME
    tensors  mean, scale `[F]`; weight0 `[F, H]`, bias0 `[H]`, weight1, bias1, weight2 `[H, 1]`, bias2 `[1]`
    """

    base: str
    tensors: dict[str, np.ndarray]

    def likely(self, found: Floats) -> Floats:
        """`[K, F]` to the probability `[K]` that the large model's step would be better."""
        t = self.tensors
        x = np.clip((squashed(found) - t["mean"]) / t["scale"], -6, 6)
        for layer in "01":
            x = np.maximum(x @ t[f"weight{layer}"] + t[f"bias{layer}"], 0)
        return np.asarray(1 / (1 + np.exp(-(x @ t["weight2"] + t["bias2"])[:, 0])), dtype=np.float64)

    def save(self, folder: Path) -> None:
        """A checkpoint that `load` reads. *Mutates* the folder."""
        from safetensors.numpy import save_file

        save_file(self.tensors, folder / "head.safetensors")
        config = {"model_type": KIND, "base": self.base, "evidence": NAMES}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, config: dict[str, Any]) -> Self:
        """The head in a folder whose config.json is `config`. Raises: ValueError if it reads other evidence."""
        from safetensors.numpy import load_file

        if tuple(config.get("evidence", ())) != NAMES:
            raise ValueError(f"{folder} was trained on other evidence; train it anew with scripts/train_router.py")
        return cls(config["base"], load_file(folder / "head.safetensors"))


@dataclass(frozen=True)
class EvidenceSteps(SharedTokens):
    """See `base.StepFormat`; a step's score is the head's word on it. Outputs are log p, log max p and entropy."""

    head: EvidenceHead

    def read(self, pieces: Sequence[Floats]) -> Floats:
        """Each step's, with the steps before it."""
        return self.head.likely(np.array([evidence(pieces[:end]) for end in range(1, len(pieces) + 1)]))


@dataclass(frozen=True, kw_only=True)
class StepEvidence(Expectation):
    """Adapter for the same language models as `Expectation`, read for a head on their evidence."""

    judge: EvidenceHead
    head: ClassVar[HeadKind] = "token_statistics"

    def format(self, tokenizer: Any) -> StepFormat:
        """See `base.Adapter`."""
        del tokenizer
        return EvidenceSteps(self.judge)
