"""Features of a step under a language model, and a small head that predicts from them which model's step is better.

The language model (a verifier) expected certain tokens and the step holds certain tokens. Where they differ, how sure
it was there, and how sure before and after, tells whether the step is wrong and also whether the target model would
have written it correctly, which the step's score does not. The language model runs unchanged, so that a scorer may use
the same weights.

Where an earlier step is wrong already, no step is worth the target model: features of those are included.

Shapes: K steps, T tokens of a step, F features, H hidden.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from reason.models.tokenizer import PretrainedTokenizer
from reason.scorers.base import Floats, StepFormat
from reason.scorers.formats.expectation import ExpectationPrm
from reason.scorers.heads import RewardHead, TokenStatisticsHead
from reason.scorers.step_formats import SharedTokenFormat

MODEL_TYPE = "step_evidence"  # in config.json, with the names below: trained heads have them
FEATURE_NAMES = (
    "worst ratio", "second worst ratio", "tokens not the likeliest", "log p, sum", "log max p, sum", "log max p, least",
    "entropy, sum", "entropy, most", "tokens", "place of the worst", "log p of the worst", "log max p at the worst",
    "entropy at the worst", "log max p before the worst, sum", "log max p before the worst, least",
    "entropy before the worst, sum", "log max p after the worst, sum", "entropy after the worst, sum",
    "steps before", "worst ratio of the steps before", "worst ratio of the step before",
    "steps before with a ratio below 1/5", "tokens before", "log max p of the steps before, sum",
)  # fmt: skip


def path_features(path: Sequence[Floats]) -> Floats:
    """Returns the features `FEATURE_NAMES` of each step of a path, with the steps before it, `[K, F]`.

    `path` holds `[T, 3]` per step: log p(token), log max p and entropy at each token.

    >>> (features,) = path_features([np.log([[0.5, 0.5, 2.0], [0.1, 0.8, 1.5]])])  # the second token is unexpected
    >>> [float(features[FEATURE_NAMES.index(name)]) for name in ("tokens not the likeliest", "place of the worst")]
    [1.0, 1.0]
    """
    if not path:
        return np.empty((0, len(FEATURE_NAMES)))
    own_KF = np.array([_own_features(step) for step in path])
    # of all steps before each: a thought may have hundreds
    worst_K, sum_K = own_KF[:, FEATURE_NAMES.index("worst ratio")], own_KF[:, FEATURE_NAMES.index("log max p, sum")]
    earlier_KF = np.array(
        [
            np.arange(len(path)), np.minimum.accumulate(_shift(worst_K)), _shift(worst_K),
            np.cumsum(_shift(worst_K < np.log(0.2))), np.cumsum(_shift(np.array([len(step) for step in path]))),
            np.cumsum(_shift(sum_K)),
        ]
    ).T  # fmt: skip
    return np.concatenate([own_KF, earlier_KF], axis=1)


def _own_features(step: Floats) -> list[float]:
    """Returns the features of a step that do not depend on the steps before it."""
    log_p, log_max, entropy = step.T
    ratio = log_p - log_max
    worst = int(ratio.argmin())
    second = np.delete(ratio, worst).min(initial=0.0)
    before, after = slice(None, worst), slice(worst + 1, None)
    return [
        ratio[worst], second, (ratio < 0).sum(), log_p.sum(), log_max.sum(), log_max.min(),
        entropy.sum(), entropy.max(), len(ratio), worst, log_p[worst], log_max[worst],
        entropy[worst], log_max[before].sum(), log_max[before].min(initial=0.0),
        entropy[before].sum(), log_max[after].sum(), entropy[after].sum(),
    ]  # fmt: skip


def _shift(values_K: Floats) -> Floats:
    """Returns the value of the step before each step; 0 before the first."""
    return np.concatenate([[0.0], values_K[:-1]])


def signed_log(features: Floats) -> Floats:
    """Returns the logarithm of values far from 0, with their sign: some sums are long-tailed."""
    return np.sign(features) * np.log1p(np.abs(features))


@dataclass(frozen=True)
class StepFeatureHead:
    """Maps features to a probability: standardised, two ReLU layers, a sigmoid.

    base     the language model that computes the features: folder, hub id, bundled:NAME
    tensors  float32: mean, scale `[F]`; weight0 `[F, H]`, bias0 `[H]`, weight1, bias1, weight2 `[H, 1]`, bias2 `[1]`
    """

    base: str
    tensors: dict[str, npt.NDArray[np.float32]]

    def predict_gain(self, features_KF: Floats) -> Floats:
        """Returns the probability `[K]` that the target model's step would be better."""
        t = self.tensors
        x = np.clip((signed_log(features_KF) - t["mean"]) / t["scale"], -6, 6)
        for layer in "01":
            x = np.maximum(x @ t[f"weight{layer}"] + t[f"bias{layer}"], 0)
        return np.asarray(1 / (1 + np.exp(-(x @ t["weight2"] + t["bias2"])[:, 0])), dtype=np.float64)

    def save(self, folder: Path) -> None:
        """Writes a checkpoint that `load` reads. *Mutates* the folder."""
        from safetensors.numpy import save_file

        save_file(self.tensors, folder / "head.safetensors")
        config = {"model_type": MODEL_TYPE, "base": self.base, "evidence": FEATURE_NAMES}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, config: Mapping[str, object]) -> Self:
        """Reads the head in a folder whose config.json is `config`. Raises: ValueError if it has other features."""
        from safetensors.numpy import load_file

        names = config.get("evidence", ())
        if not isinstance(names, list | tuple) or tuple(names) != FEATURE_NAMES:
            raise ValueError(f"{folder} was trained on other features; train it anew with `reason train-router`")
        return cls(str(config["base"]), load_file(folder / "head.safetensors"))


@dataclass(frozen=True, kw_only=True)
class StepFeatureAdapter(ExpectationPrm):
    """Adapter for the language models of `ExpectationPrm`: a step's score is the prediction of `step_head`."""

    step_head: StepFeatureHead
    head: ClassVar[RewardHead] = TokenStatisticsHead()

    def build_format(self, tokenizer: PretrainedTokenizer) -> StepFormat:
        """See `base.PrmAdapter`."""

        def predict_gains(outputs: Sequence[Floats]) -> Floats:
            """Predicts for each step, with the steps before it."""
            return self.step_head.predict_gain(path_features(outputs))

        return SharedTokenFormat(predict_gains)
