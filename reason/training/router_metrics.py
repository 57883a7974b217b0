"""Measures how well numbers predict where the target model would write the better step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reason.routing.pairs import StepPair
from reason.training.router import Floats, pair_advantages

SHARES = (0.1, 0.2, 0.3, 0.5)


@dataclass(frozen=True)
class RouterMetrics:
    """How well a number predicts where the target model is better.

    realised     mean rise of the label's number if the target model writes each of `SHARES` of the steps
    improved     share of those steps that are better from it
    calibration  expected calibration error of a probability; None for other numbers
    truth        rank correlation with the gain by ground truth, over the pairs that have it; None without any
    """

    auc: float
    spearman: float
    realised: tuple[float, ...]
    improved: tuple[float, ...]
    calibration: float | None = None
    truth: float | None = None


def evaluate_router(
    likely: Floats, pairs: Sequence[StepPair], margin: float, label: str = "score"
) -> dict[str, RouterMetrics]:
    """Evaluates the router's probabilities `[N]` and the baselines on held-out pairs.

    The oracle knows both steps' scores.
    """
    advantage = pair_advantages(pairs, label)
    gaining = advantage > margin
    known = np.array([pair.truth_gain is not None for pair in pairs])
    true = np.array([pair.truth_gain or 0.0 for pair in pairs])
    predictors = {
        "router": likely,
        "own score, negated": -np.array([pair.small_score for pair in pairs]),
        "own doubt": np.array([0.0 if pair.small_entropy is None else pair.small_entropy for pair in pairs]),
        "own length": np.array([float(len(pair.small_step)) for pair in pairs]),
        "tokens before it": np.array([float(len(pair.prefix)) for pair in pairs]),
        "chance": np.random.default_rng(0).random(len(pairs)),
        "oracle": pair_advantages(pairs, "score"),
    }
    return {
        name: RouterMetrics(
            roc_auc(values, gaining),
            rank_correlation(values, advantage),
            tuple(realised_gain(values, advantage, share) for share in SHARES),
            tuple(improved_share(values, advantage, share) for share in SHARES),
            calibration_error(values, gaining) if name == "router" else None,
            rank_correlation(values[known], true[known]) if known.any() else None,
        )
        for name, values in predictors.items()
    }


def realised_gain(values: Floats, advantage: Floats, share: float) -> float:
    """Returns the mean rise of the steps' scores, or truths, if the target model writes the share of them with the
    largest values (the paper's objective, section 3.2; ties in the order given).

    >>> realised_gain(np.array([0.9, 0.1, 0.5]), np.array([0.6, 0.3, -0.3]), 2 / 3)
    0.1
    """
    return round(float(advantage[_largest_indices(values, share)].sum() / len(values)), 4)


def improved_share(values: Floats, advantage: Floats, share: float) -> float:
    """Returns the share of those steps that are better from the target model; the others were rewritten in vain."""
    return round(float((advantage[_largest_indices(values, share)] > 0).mean()), 4)


def _largest_indices(values: Floats, share: float) -> npt.NDArray[np.intp]:
    return np.argsort(-values, kind="stable")[: max(1, round(share * len(values)))]


def roc_auc(values: Floats, positive: npt.NDArray[np.bool_]) -> float:
    """Returns the probability that a positive has a larger value than a negative, ties counting half.

    >>> roc_auc(np.array([0.1, 0.9, 0.5]), np.array([False, True, False]))
    1.0
    """
    from scipy.stats import mannwhitneyu

    if not positive.any() or positive.all():
        return float("nan")
    wins = mannwhitneyu(values[positive], values[~positive]).statistic
    return float(wins / (positive.sum() * (~positive).sum()))


def rank_correlation(a: Floats, b: Floats) -> float:
    """Returns the rank correlation (Spearman); nan where one of the two does not vary."""
    from scipy.stats import spearmanr

    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(spearmanr(a, b).statistic)


def calibration_error(likely: Floats, positive: npt.NDArray[np.bool_], bins: int = 10) -> float:
    """Returns the expected calibration error: mean difference of prediction and frequency, over ten bins.

    >>> calibration_error(np.array([0.0, 0.0, 1.0, 1.0]), np.array([False, False, True, True]))
    0.0
    """
    place = np.minimum((likely * bins).astype(int), bins - 1)
    gaps = [
        abs(likely[place == b].mean() - positive[place == b].mean()) * (place == b).mean()
        for b in range(bins)
        if (place == b).any()
    ]
    return float(sum(gaps))
