"""The training loop: resumes from its checkpoint, logs to a file, and decays the rate to the end."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from decoding.model.device_choice import Device, pick_device
from decoding.validation import MAX_INT, require_count, require_not_negative, require_positive, require_switch
from reason.training.examples import IGNORE

Batch = dict[str, torch.Tensor]
LossFunction = Callable[[Any, Batch], torch.Tensor]
"""From the model (its class depends on the stage) and a batch to the loss, a scalar."""
RateFunction = Callable[[str], float]
"""From a parameter's name to its share of the full learning rate."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainingRecipe:
    """Length and learning rates of a stage. `minutes` ends training early; the rate decays to its end all the same.
    `bfloat16` computes in it on the CPU too, which is twice as fast where the processor can; CUDA always does.

    Muon for matrices: at these sizes it needs less than half of AdamW's tokens for the same loss.

    Raises: ValueError naming the setting.
    """

    tokens: int
    tokens_per_batch: int = 65_536
    minutes: float = 1e9
    matrix_rate: float = 0.02
    other_rate: float = 4e-3
    warmup_steps: int = 100
    save_every_s: float = 120.0
    workers: int = 1
    threads: int | None = None
    bfloat16: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("tokens", "tokens_per_batch"):
            require_count(name, getattr(self, name), at_least=1, at_most=10**15)
        require_count("warmup_steps", self.warmup_steps, at_least=1)
        require_count("workers", self.workers)
        require_count("threads", self.threads, at_least=1, or_null=True)
        require_count("seed", self.seed, at_most=MAX_INT)
        for name in ("matrix_rate", "other_rate", "save_every_s"):
            require_not_negative(name, getattr(self, name))
        require_switch("bfloat16", self.bfloat16)
        require_positive("minutes", self.minutes, at_most=1e9)


def resolve_device(device: Device) -> str:
    """Returns the device to train on; `auto` is CUDA where there is one. Raises: ValueError for one that is missing."""
    return str(pick_device(device))


def language_loss(model: Any, batch: Batch) -> torch.Tensor:
    """Returns the weighted mean of the cross entropy of the solution's tokens; the prompt's are not counted."""
    logits, next_ids = model(input_ids=batch["ids"], use_cache=False).logits, batch["next_ids"].flatten()
    losses = cross_entropy(logits.flatten(0, 1).float(), next_ids, ignore_index=IGNORE, reduction="none")
    weights = batch["weights"].flatten() * (next_ids != IGNORE)
    return (losses * weights).sum() / weights.sum()


def full_rate(name: str) -> float:
    """Returns 1: every parameter learns at the full rate."""
    del name
    return 1.0


def build_optimizers(
    model: torch.nn.Module, recipe: TrainingRecipe, rate_of: RateFunction = full_rate
) -> list[torch.optim.Optimizer]:
    """Returns Muon for the matrices inside the layers, AdamW for embeddings, norms, biases and heads."""
    matrices: dict[float, list[torch.nn.Parameter]] = {}
    others: dict[float, list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            kind = matrices if parameter.ndim == 2 and ".layers." in f".{name}" else others
            kind.setdefault(rate_of(name), []).append(parameter)
    inner = [{"params": group, "lr": recipe.matrix_rate * share} for share, group in matrices.items()]
    outer = [{"params": group, "lr": recipe.other_rate * share} for share, group in others.items()]
    return [
        torch.optim.Muon(inner, momentum=0.95, weight_decay=0.0, adjust_lr_fn="original"),
        torch.optim.AdamW(outer, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def rate_factor(done: float, step: int, warmup_steps: int) -> float:
    """Returns the share of the full rate: linear warm-up, flat for half the run, then linear down to 2 %."""
    flat = 1.0 if done < 0.5 else max(0.02, 2 * (1 - done))
    return min(1.0, (step + 1) / warmup_steps) * flat


def train_model(
    model: torch.nn.Module,
    make_stream: Callable[[int], Iterator[Batch]],
    recipe: TrainingRecipe,
    folder: Path,
    device: str,
    *,
    loss_of: LossFunction = language_loss,
    rate_of: RateFunction = full_rate,
) -> dict[str, float]:
    """Trains `model` in place and returns its last figures. *Mutates* `model`; writes checkpoints into `folder`.

    `make_stream(seed)` returns batches; a resumed run uses another seed, so that no batch occurs twice.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = (folder / "train.log.jsonl").open("a")
    model.to(device).train()
    opts = build_optimizers(model, recipe, rate_of)
    rates = [[group["lr"] for group in opt.param_groups] for opt in opts]
    state = {"step": 0, "tokens": 0, "seconds": 0.0, "runs": 0}
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        for opt, part in zip(opts, saved["optimizers"], strict=True):
            opt.load_state_dict(part)
        state = saved["state"]
        logger.info("%s: resumed at %.1fM tokens", folder.name, state["tokens"] / 1e6)
    state["runs"] += 1
    stream = make_stream(recipe.seed + 1000 * int(state["runs"]))
    is_mixed = recipe.bfloat16 or device.startswith("cuda")
    mean_loss, last_log, last_save = 0.0, 0.0, time.monotonic()
    figures: dict[str, float] = {}
    while True:
        started = time.monotonic()
        done = max(state["tokens"] / recipe.tokens, state["seconds"] / (60 * recipe.minutes))
        if done >= 1:
            break
        factor = rate_factor(done, int(state["step"]), recipe.warmup_steps)
        for opt, started_with in zip(opts, rates, strict=True):
            for group, rate in zip(opt.param_groups, started_with, strict=True):
                group["lr"] = rate * factor
        batch = {name: tensor.to(device, non_blocking=True) for name, tensor in next(stream).items()}
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=is_mixed):
            loss = loss_of(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad(set_to_none=True)
        value = loss.item()
        mean_loss = value if state["step"] == 0 or not mean_loss else 0.95 * mean_loss + 0.05 * value
        state["step"] += 1
        state["tokens"] += batch["ids"].numel()
        now = time.monotonic()
        state["seconds"] += now - started
        if now - last_log > 10:
            last_log = now
            figures = {
                "tokens": state["tokens"],
                "loss": round(mean_loss, 4),
                "tokens_per_s": round(state["tokens"] / state["seconds"]),
                "done": round(done, 3),
            }
            log.write(json.dumps(figures) + "\n")
            log.flush()
            logger.info("%s: %s", folder.name, figures)
        if now - last_save > recipe.save_every_s:
            last_save = now
            parts = {"model": model.state_dict(), "optimizers": [opt.state_dict() for opt in opts], "state": state}
            save_atomically(checkpoint, parts)
    model.eval()
    return {**figures, "loss": round(mean_loss, 4), **{k: float(v) for k, v in state.items()}}


def save_atomically(path: Path, content: Mapping[str, object]) -> None:
    """Writes, then renames: a kill in between leaves the previous checkpoint complete."""
    partial = path.with_suffix(".partial")
    torch.save(content, partial)
    partial.replace(path)
