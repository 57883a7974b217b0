"""Trains a router: a classifier of steps of the small model by whether the target model would write a better one.

As in Arbitrage (arXiv 2512.05033, section 3.3): the reward model with a head of two classes at the step's last token,
cross entropy, AdamW with warm-up and linear decay, the larger class thinned out to parity, three epochs. Its rate of
1e-5 is for a model of 1.5 B; the bundled models are a thousand times smaller and need more.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForTokenClassification

from decoding.core import Tokens
from decoding.validation import (
    MAX_INT,
    MAX_VALUE,
    require_choice,
    require_count,
    require_not_negative,
    require_number,
    require_share,
)
from reason.routing.classifier import HISTORIES, READS
from reason.routing.pairs import StepPair
from reason.training.loop import save_atomically

if TYPE_CHECKING:
    from reason.training.router_head import HeadRecipe

logger = logging.getLogger(__name__)

LABELS = ("score", "truth")

Floats = npt.NDArray[np.float64]
EncodePair = Callable[[StepPair], Tokens]
"""From a pair to the ids that a classifier reads of it, which end with the small model's step."""


@dataclass(frozen=True, kw_only=True)
class RouterRecipe:
    """Training settings of a router.

    label     what makes a step better: its `score`, or by rollouts the `truth`
    margin    by how much the target model's step must be better
    reads     what the classifier reads: `tokens` of the target model, or `text` by a tokenizer of its own
    history   `authors` marks each step with the model that wrote it (section 3.3: "Model 0", "Model 1"); or `none`
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
    reads: str = "tokens"
    history: str = "none"
    held_out: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        require_choice("reads", self.reads, READS)
        require_choice("history", self.history, HISTORIES)
        for name in ("epochs", "tokens_per_batch"):
            require_count(name, getattr(self, name), at_least=1)
        require_share("warmup", self.warmup)
        validate_router_recipe(self)


def read_shared_tokens(pair: StepPair) -> Tokens:
    """Returns the target model's ids of a pair: prompt, previous steps and the small model's step."""
    return pair.prefix + pair.small_step


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


def train_router(
    base: str,
    pairs: Sequence[StepPair],
    recipe: RouterRecipe,
    folder: Path,
    device: str,
    encode: EncodePair = read_shared_tokens,
) -> Any:
    """Returns the trained model, which reads what `encode` gives. A killed run continues with the epoch it was in,
    where it had the same base, pairs and recipe.

    *Mutates* `folder`.
    """
    torch.manual_seed(recipe.seed)
    model = AutoModelForTokenClassification.from_pretrained(base, num_labels=2, dtype=torch.float32).to(device).train()
    rng = random.Random(recipe.seed)
    examples = [_make_examples(balance_labels(pairs, recipe, rng), encode) for _ in range(recipe.epochs)]
    epochs = [_batch_examples(epoch, recipe, rng) for epoch in examples]
    steps = sum(len(epoch) for epoch in epochs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.rate)

    def factor(step: int) -> float:
        warm = max(1, round(recipe.warmup * steps))
        return min((step + 1) / warm, max(0.0, (steps - step) / max(1, steps - warm)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    checkpoint = folder / "checkpoint.pt"
    inputs = repr((base, asdict(recipe), list(pairs), [example.ids for example in examples[0]]))
    key = hashlib.sha256(inputs.encode()).hexdigest()
    first = _resume_training(checkpoint, key, model, optimizer, schedule, device)
    for number, epoch in enumerate(epochs):
        if number < first:
            continue
        total = 0.0
        for batch in epoch:
            labels = _label_tensor([example.pair for example in batch], recipe).to(device)
            loss = cross_entropy(_step_logits(model, batch, device), labels)
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
            checkpoint, state | {"key": key, "epochs": number + 1, "noise": torch.get_rng_state()}
        )  # noise of the head's dropout
    checkpoint.unlink(missing_ok=True)  # a training that has ended is not continued
    return model.eval()


def predict_gains(
    model: Any, pairs: Sequence[StepPair], recipe: RouterRecipe, device: str, encode: EncodePair = read_shared_tokens
) -> Floats:
    """Returns the model's probability for each pair, `[N]`."""
    likely = np.empty(len(pairs))
    examples = _make_examples(pairs, encode)
    places = {id(example): i for i, example in enumerate(examples)}
    for batch in _batch_examples(examples, recipe, None):
        probabilities = torch.softmax(_step_logits(model, batch, device), -1)[:, 1]
        likely[[places[id(example)] for example in batch]] = probabilities.double().cpu().numpy()
    return likely


@dataclass(frozen=True, eq=False)
class _Example:
    """A pair and the ids that the classifier reads of it."""

    pair: StepPair
    ids: Tokens


def _make_examples(pairs: Sequence[StepPair], encode: EncodePair) -> list[_Example]:
    return [_Example(pair, encode(pair)) for pair in pairs]


def _batch_examples(
    examples: Sequence[_Example], recipe: RouterRecipe, rng: random.Random | None
) -> list[list[_Example]]:
    """Batches of similar length, at most `tokens_per_batch` padded tokens each; shuffled if there is an `rng`."""
    batches: list[list[_Example]] = []
    for example in sorted(examples, key=lambda example: len(example.ids)):
        if batches and (len(batches[-1]) + 1) * len(example.ids) <= recipe.tokens_per_batch:
            batches[-1].append(example)
        else:
            batches.append([example])
    if rng is not None:
        rng.shuffle(batches)
    return batches


def _step_logits(model: Any, batch: Sequence[_Example], device: str) -> torch.Tensor:
    """`[B, 2]` at the last token of every draft step; padded on the right, which a causal model does not see."""
    ids_BL = torch.zeros((len(batch), max(len(example.ids) for example in batch)), dtype=torch.long)
    for row, example in enumerate(batch):
        ids_BL[row, : len(example.ids)] = torch.tensor(example.ids)
    ends_B = torch.tensor([len(example.ids) - 1 for example in batch])
    with torch.set_grad_enabled(model.training):
        logits_BL2: torch.Tensor = model(input_ids=ids_BL.to(device), use_cache=False).logits
    return logits_BL2[torch.arange(len(batch)), ends_B].float()


def _label_tensor(batch: Sequence[StepPair], recipe: RouterRecipe) -> torch.Tensor:
    return torch.from_numpy(label_better(batch, recipe).astype(np.int64))


def _resume_training(checkpoint: Path, key: str, model: Any, optimizer: Any, schedule: Any, device: str) -> int:
    """Loads the checkpoint of this training, if there is one, and returns its number of epochs. *Mutates* its
    arguments."""
    if not checkpoint.exists():
        return 0
    saved = torch.load(checkpoint, map_location=device, weights_only=True)
    if saved.get("key") != key:
        logger.warning("%s is of another training (base, pairs or recipe): this one begins anew", checkpoint)
        return 0
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    schedule.load_state_dict(saved["schedule"])
    torch.set_rng_state(saved["noise"].cpu())
    return int(saved["epochs"])
