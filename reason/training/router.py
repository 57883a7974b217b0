"""Train a router: from a step the small model wrote, how likely is it that the large one would write a better one?

As in Arbitrage (arXiv 2512.05033, section 3.3): the reward model with a head of two classes at the step's last token,
cross entropy, AdamW with warm-up and linear decay, the larger class thinned out to parity, three epochs. Its 1e-5 is
for a model of 1.5 B; ours are a thousand times smaller and want more.
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

from reason.routing.pairs import Pair
from reason.training.loop import save_whole

if TYPE_CHECKING:
    from reason.training.router_head import HeadRecipe

logger = logging.getLogger(__name__)

SHARES = (0.1, 0.2, 0.3, 0.5)
LABELS = ("score", "truth")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RouterRecipe:
    """How a router is trained. `label` is what makes a step better: its `score`, or by rollouts the `truth`; `margin`
    by how much; `held_out` the share of problems the router is judged on."""

    epochs: int = 3
    tokens_per_batch: int = 4096
    rate: float = 5e-4
    warmup: float = 0.05
    label: str = "score"
    margin: float = 0.0
    held_out: float = 0.1
    seed: int = 0


@dataclass(frozen=True)
class Judgement:
    """How well a number tells where the large model is better.

    realised     what the label's number rises by if the large model writes each of `SHARES` of the steps
    improved     the share of those steps that are better from it
    calibration  the expected calibration error of a probability; None for what is none
    truth        rank correlation with the advantage by ground truth, over the pairs that have it; None without any
    """

    auc: float
    spearman: float
    realised: tuple[float, ...]
    improved: tuple[float, ...]
    calibration: float | None = None
    truth: float | None = None


def advantages(pairs: Sequence[Pair], label: str) -> Floats:
    """How much better each large model's step is, `[N]`, by `score` or by `truth`. Raises: ValueError."""
    if label not in LABELS:
        raise ValueError(f"--label must be one of {', '.join(LABELS)}; got {label!r}")
    found = [pair.advantage if label == "score" else pair.gain for pair in pairs]
    if None in found:
        raise ValueError("--label=truth needs pairs collected with --rollouts")
    return np.array(found, dtype=np.float64)


def better(pairs: Sequence[Pair], recipe: RouterRecipe | HeadRecipe) -> npt.NDArray[np.bool_]:
    """Which large model's steps count as better, `[N]`: the labels. Raises: ValueError, as `advantages`."""
    return advantages(pairs, recipe.label) > recipe.margin


def split(pairs: Sequence[Pair], share: float, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Pairs to train on and, of this share of the problems, pairs to judge by."""
    groups = sorted({pair.group for pair in pairs})
    random.Random(seed).shuffle(groups)
    kept_out = set(groups[: max(1, round(share * len(groups)))])
    return [p for p in pairs if p.group not in kept_out], [p for p in pairs if p.group in kept_out]


def balanced(pairs: Sequence[Pair], recipe: RouterRecipe, rng: random.Random) -> list[Pair]:
    """As many pairs of either label: the larger class is thinned out. Raises: ValueError if one is empty."""
    labels = better(pairs, recipe)
    gaining = [pair for pair, label in zip(pairs, labels, strict=True) if label]
    others = [pair for pair, label in zip(pairs, labels, strict=True) if not label]
    if not gaining or not others:
        raise ValueError("the large model is never, or always, better in these pairs; collect more")
    size = min(len(gaining), len(others))
    chosen = [*rng.sample(gaining, size), *rng.sample(others, size)]
    rng.shuffle(chosen)
    return chosen


def train_router(base: str, pairs: Sequence[Pair], recipe: RouterRecipe, folder: Path, device: str) -> Any:
    """The trained model. A killed run goes on at the epoch it was in. *Mutates* `folder`."""
    torch.manual_seed(recipe.seed)
    model = AutoModelForTokenClassification.from_pretrained(base, num_labels=2, dtype=torch.float32).to(device).train()
    rng = random.Random(recipe.seed)
    epochs = [_batches(balanced(pairs, recipe, rng), recipe, rng) for _ in range(recipe.epochs)]
    steps = sum(len(epoch) for epoch in epochs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.rate)

    def factor(step: int) -> float:
        warm = max(1, round(recipe.warmup * steps))
        return min((step + 1) / warm, max(0.0, (steps - step) / max(1, steps - warm)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    checkpoint = folder / "checkpoint.pt"
    first = _resume(checkpoint, model, optimizer, schedule, device)
    for number, epoch in enumerate(epochs):
        if number < first:
            continue
        total = 0.0
        for batch in epoch:
            loss = cross_entropy(_logits(model, batch, device), _labels(batch, recipe).to(device))
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            total += loss.item()
        logger.info("epoch %d of %d: loss %.4f", number + 1, recipe.epochs, total / len(epoch))
        parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
        state = {name: part.state_dict() for name, part in parts.items()}
        save_whole(checkpoint, state | {"epochs": number + 1, "noise": torch.get_rng_state()})  # of the head's dropout
    return model.eval()


def likelihoods(model: Any, pairs: Sequence[Pair], recipe: RouterRecipe, device: str) -> Floats:
    """The model's probability for each pair, `[N]`."""
    likely = np.empty(len(pairs))
    places = {id(pair): i for i, pair in enumerate(pairs)}
    for batch in _batches(pairs, recipe, None):
        found = torch.softmax(_logits(model, batch, device), -1)[:, 1]
        likely[[places[id(pair)] for pair in batch]] = found.double().cpu().numpy()
    return likely


def judge(likely: Floats, pairs: Sequence[Pair], margin: float, label: str = "score") -> dict[str, Judgement]:
    """The router's probabilities `[N]`, and the numbers they have to beat, on pairs it has not seen. The oracle knows
    both steps' scores."""
    advantage = advantages(pairs, label)
    gaining = advantage > margin
    known = np.array([pair.gain is not None for pair in pairs])
    true = np.array([pair.gain or 0.0 for pair in pairs])
    told = {
        "router": likely,
        "own score, negated": -np.array([pair.draft_score for pair in pairs]),
        "own doubt": np.array([0.0 if pair.doubt is None else pair.doubt for pair in pairs]),
        "own length": np.array([float(len(pair.draft)) for pair in pairs]),
        "tokens before it": np.array([float(len(pair.prefix)) for pair in pairs]),
        "chance": np.random.default_rng(0).random(len(pairs)),
        "oracle": advantages(pairs, "score"),
    }
    return {
        name: Judgement(
            auc(values, gaining),
            spearman(values, advantage),
            tuple(realised(values, advantage, share) for share in SHARES),
            tuple(improved(values, advantage, share) for share in SHARES),
            calibration(values, gaining) if name == "router" else None,
            spearman(values[known], true[known]) if known.any() else None,
        )
        for name, values in told.items()
    }


def realised(values: Floats, advantage: Floats, share: float) -> float:
    """What the steps' scores, or chances, rise by on average if the large model writes this share of them, those of
    the largest values (the paper's objective, section 3.2; ties in the order given).

    >>> realised(np.array([0.9, 0.1, 0.5]), np.array([0.6, 0.3, -0.3]), 2 / 3)
    0.1
    """
    return round(float(advantage[_largest(values, share)].sum() / len(values)), 4)


def improved(values: Floats, advantage: Floats, share: float) -> float:
    """The share of those steps that are better from the large model: what is not, was written anew for nothing."""
    return round(float((advantage[_largest(values, share)] > 0).mean()), 4)


def _largest(values: Floats, share: float) -> npt.NDArray[np.intp]:
    return np.argsort(-values, kind="stable")[: max(1, round(share * len(values)))]


def auc(values: Floats, positive: npt.NDArray[np.bool_]) -> float:
    """The chance that a positive has the larger value than a negative, ties counting half.

    >>> auc(np.array([0.1, 0.9, 0.5]), np.array([False, True, False]))
    1.0
    """
    from scipy.stats import mannwhitneyu

    if not positive.any() or positive.all():
        return float("nan")
    wins = mannwhitneyu(values[positive], values[~positive]).statistic
    return float(wins / (positive.sum() * (~positive).sum()))


def spearman(a: Floats, b: Floats) -> float:
    """Rank correlation; nan where one does not vary."""
    from scipy.stats import spearmanr

    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(spearmanr(a, b).statistic)


def calibration(likely: Floats, positive: npt.NDArray[np.bool_], bins: int = 10) -> float:
    """Expected calibration error: by how much, in tenths of the probabilities, what was said and what was differ.

    >>> calibration(np.array([0.0, 0.0, 1.0, 1.0]), np.array([False, False, True, True]))
    0.0
    """
    place = np.minimum((likely * bins).astype(int), bins - 1)
    gaps = [
        abs(likely[place == b].mean() - positive[place == b].mean()) * (place == b).mean()
        for b in range(bins)
        if (place == b).any()
    ]
    return float(sum(gaps))


def _batches(pairs: Sequence[Pair], recipe: RouterRecipe, rng: random.Random | None) -> list[list[Pair]]:
    """Pairs of similar length together, at most so many padded tokens each, in random order if there is an `rng`."""
    found: list[list[Pair]] = []
    for pair in sorted(pairs, key=_length):
        if found and (len(found[-1]) + 1) * _length(pair) <= recipe.tokens_per_batch:
            found[-1].append(pair)
        else:
            found.append([pair])
    if rng is not None:
        rng.shuffle(found)
    return found


def _length(pair: Pair) -> int:
    return len(pair.prefix) + len(pair.draft)


def _logits(model: Any, batch: Sequence[Pair], device: str) -> torch.Tensor:
    """`[B, 2]` at the last token of every draft step; padded on the right, which a causal model does not see."""
    ids_BL = torch.zeros((len(batch), max(map(_length, batch))), dtype=torch.long)
    for row, pair in enumerate(batch):
        ids_BL[row, : _length(pair)] = torch.tensor(pair.prefix + pair.draft)
    ends_B = torch.tensor([_length(pair) - 1 for pair in batch])
    with torch.set_grad_enabled(model.training):
        logits_BL2: torch.Tensor = model(input_ids=ids_BL.to(device), use_cache=False).logits
    return logits_BL2[torch.arange(len(batch)), ends_B].float()


def _labels(batch: Sequence[Pair], recipe: RouterRecipe) -> torch.Tensor:
    return torch.from_numpy(better(batch, recipe).astype(np.int64))


def _resume(checkpoint: Path, model: Any, optimizer: Any, schedule: Any, device: str) -> int:
    """Epochs done before; loads them. *Mutates* its arguments."""
    if not checkpoint.exists():
        return 0
    saved = torch.load(checkpoint, map_location=device, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    schedule.load_state_dict(saved["schedule"])
    torch.set_rng_state(saved["noise"].cpu())
    return int(saved["epochs"])
