"""Trains a router: a classifier of steps of the small model by whether the target model would write a better one.

As in Arbitrage (arXiv 2512.05033, section 3.3): the reward model with a head of two classes at the step's last token,
cross entropy, AdamW with warm-up and linear decay, the larger class thinned out to parity, three epochs. Its rate of
1e-5 is for a model of 1.5 B; the bundled models are a thousand times smaller and need more.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForTokenClassification

from decoding.validation import (
    MAX_INT,
    MAX_VALUE,
    require_choice,
    require_count,
    require_not_negative,
    require_number,
    require_share,
)
from reason.routing.pairs import StepPair
from reason.training.loop import save_atomically

if TYPE_CHECKING:
    from reason.training.router_head import HeadRecipe

logger = logging.getLogger(__name__)

SHARES = (0.1, 0.2, 0.3, 0.5)
LABELS = ("score", "truth")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RouterRecipe:
    """Training settings of a router.

    label     what makes a step better: its `score`, or by rollouts the `truth`
    margin    by how much the target model's step must be better
    held_out  share of the problems that the router is evaluated on
    rate      learning rate after warm-up; `warmup` is a share of the steps

    Raises: ValueError naming the setting.
    """

    epochs: int = 3
    tokens_per_batch: int = 4096
    rate: float = 5e-4
    warmup: float = 0.05
    label: str = "score"
    margin: float = 0.0
    held_out: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "tokens_per_batch"):
            require_count(name, getattr(self, name), at_least=1)
        require_share("warmup", self.warmup)
        validate_router_recipe(self)


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


def validate_router_recipe(recipe: RouterRecipe | HeadRecipe) -> None:
    """Validates the fields that all recipes of routers have. Raises: ValueError naming the setting."""
    require_not_negative("rate", recipe.rate)
    require_choice("label", recipe.label, LABELS)
    require_number("margin", recipe.margin, low=-MAX_VALUE, high=MAX_VALUE)
    require_share("held_out", recipe.held_out, above_zero=True, below_one=True)
    require_count("seed", recipe.seed, at_most=MAX_INT)


def pair_advantages(pairs: Sequence[StepPair], label: str) -> Floats:
    """Returns how much better each target model's step is, `[N]`, by `score` or by `truth`. Raises: ValueError."""
    if label not in LABELS:
        raise ValueError(f"--label must be one of {', '.join(LABELS)}; got {label!r}")
    gains = [pair.score_gain if label == "score" else pair.truth_gain for pair in pairs]
    if None in gains:
        raise ValueError("--label=truth needs pairs collected with --rollouts")
    return np.array(gains, dtype=np.float64)


def label_better(pairs: Sequence[StepPair], recipe: RouterRecipe | HeadRecipe) -> npt.NDArray[np.bool_]:
    """Returns the labels `[N]`: whether the target model's step is better. Raises: ValueError, as `pair_advantages`."""
    return pair_advantages(pairs, recipe.label) > recipe.margin


def split_pairs(pairs: Sequence[StepPair], share: float, seed: int) -> tuple[list[StepPair], list[StepPair]]:
    """Returns pairs to train on and, of this share of the problems, pairs to evaluate on."""
    groups = sorted({pair.group for pair in pairs})
    random.Random(seed).shuffle(groups)
    held_out = set(groups[: max(1, round(share * len(groups)))])
    return [p for p in pairs if p.group not in held_out], [p for p in pairs if p.group in held_out]


def balance_labels(pairs: Sequence[StepPair], recipe: RouterRecipe, rng: random.Random) -> list[StepPair]:
    """Returns equally many pairs of either label, the larger class thinned out. Raises: ValueError if one is empty."""
    labels = label_better(pairs, recipe)
    gaining = [pair for pair, label in zip(pairs, labels, strict=True) if label]
    others = [pair for pair, label in zip(pairs, labels, strict=True) if not label]
    if not gaining or not others:
        raise ValueError("the target model is never, or always, better in these pairs; collect more")
    size = min(len(gaining), len(others))
    chosen = [*rng.sample(gaining, size), *rng.sample(others, size)]
    rng.shuffle(chosen)
    return chosen


def train_router(base: str, pairs: Sequence[StepPair], recipe: RouterRecipe, folder: Path, device: str) -> Any:
    """Returns the trained model. A killed run continues with the epoch it was in. *Mutates* `folder`."""
    torch.manual_seed(recipe.seed)
    model = AutoModelForTokenClassification.from_pretrained(base, num_labels=2, dtype=torch.float32).to(device).train()
    rng = random.Random(recipe.seed)
    epochs = [_batch_pairs(balance_labels(pairs, recipe, rng), recipe, rng) for _ in range(recipe.epochs)]
    steps = sum(len(epoch) for epoch in epochs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.rate)

    def factor(step: int) -> float:
        warm = max(1, round(recipe.warmup * steps))
        return min((step + 1) / warm, max(0.0, (steps - step) / max(1, steps - warm)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    checkpoint = folder / "checkpoint.pt"
    first = _resume_training(checkpoint, model, optimizer, schedule, device)
    for number, epoch in enumerate(epochs):
        if number < first:
            continue
        total = 0.0
        for batch in epoch:
            loss = cross_entropy(_step_logits(model, batch, device), _label_tensor(batch, recipe).to(device))
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            total += loss.item()
        logger.info("epoch %d of %d: loss %.4f", number + 1, recipe.epochs, total / len(epoch))
        parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
        state = {name: part.state_dict() for name, part in parts.items()}
        save_atomically(
            checkpoint, state | {"epochs": number + 1, "noise": torch.get_rng_state()}
        )  # noise of the head's dropout
    return model.eval()


def predict_gains(model: Any, pairs: Sequence[StepPair], recipe: RouterRecipe, device: str) -> Floats:
    """Returns the model's probability for each pair, `[N]`."""
    likely = np.empty(len(pairs))
    places = {id(pair): i for i, pair in enumerate(pairs)}
    for batch in _batch_pairs(pairs, recipe, None):
        probabilities = torch.softmax(_step_logits(model, batch, device), -1)[:, 1]
        likely[[places[id(pair)] for pair in batch]] = probabilities.double().cpu().numpy()
    return likely


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


def _batch_pairs(pairs: Sequence[StepPair], recipe: RouterRecipe, rng: random.Random | None) -> list[list[StepPair]]:
    """Batches of similar length, at most `tokens_per_batch` padded tokens each; shuffled if there is an `rng`."""
    batches: list[list[StepPair]] = []
    for pair in sorted(pairs, key=_pair_length):
        if batches and (len(batches[-1]) + 1) * _pair_length(pair) <= recipe.tokens_per_batch:
            batches[-1].append(pair)
        else:
            batches.append([pair])
    if rng is not None:
        rng.shuffle(batches)
    return batches


def _pair_length(pair: StepPair) -> int:
    return len(pair.prefix) + len(pair.small_step)


def _step_logits(model: Any, batch: Sequence[StepPair], device: str) -> torch.Tensor:
    """`[B, 2]` at the last token of every draft step; padded on the right, which a causal model does not see."""
    ids_BL = torch.zeros((len(batch), max(map(_pair_length, batch))), dtype=torch.long)
    for row, pair in enumerate(batch):
        ids_BL[row, : _pair_length(pair)] = torch.tensor(pair.prefix + pair.small_step)
    ends_B = torch.tensor([_pair_length(pair) - 1 for pair in batch])
    with torch.set_grad_enabled(model.training):
        logits_BL2: torch.Tensor = model(input_ids=ids_BL.to(device), use_cache=False).logits
    return logits_BL2[torch.arange(len(batch)), ends_B].float()


def _label_tensor(batch: Sequence[StepPair], recipe: RouterRecipe) -> torch.Tensor:
    return torch.from_numpy(label_better(batch, recipe).astype(np.int64))


def _resume_training(checkpoint: Path, model: Any, optimizer: Any, schedule: Any, device: str) -> int:
    """Loads a checkpoint, if there is one, and returns its number of epochs. *Mutates* its arguments."""
    if not checkpoint.exists():
        return 0
    saved = torch.load(checkpoint, map_location=device, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    schedule.load_state_dict(saved["schedule"])
    torch.set_rng_state(saved["noise"].cpu())
    return int(saved["epochs"])
