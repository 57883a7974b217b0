"""The stages of training the bundled models. Each reads what earlier ones wrote and is skipped once done."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

import reason.models
from decoding.model.transformers_checkpoint import Device
from decoding.threads import threads
from reason.training.classifier import deepen
from reason.training.contrast import Contrast, digit_ids
from reason.training.loop import Recipe, train
from reason.training.report import report
from reason.training.stream import stream
from reason.training.tokenizer import build_tokenizer

BUNDLED = Path(reason.models.__file__).parent / "bundled"
logger = logging.getLogger(__name__)
STAGES = ("tokenizer", "target", "draft", "verifier", "prm", "report", "ship")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model's size."""

    hidden: int
    layers: int
    mlp: int
    heads: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything training needs to know. `shapes` and `recipes` are keyed by stage; `judging_layers` is how much deeper
    than the verifier the reward model is."""

    folder: Path
    weights: Mapping[str, float]
    shapes: Mapping[str, Shape]
    recipes: Mapping[str, Recipe]
    judging_layers: int = 2
    seed: int = 0
    report_problems: int = 24
    report_samples: int = 16
    device: Device = "auto"
    ship_to: Path = BUNDLED

    @property
    def where(self) -> str:
        """The device to use."""
        return ("cuda" if torch.cuda.is_available() else "cpu") if self.device == "auto" else self.device


def run(stage: str, plan: Plan) -> dict[str, Any]:
    """Runs one stage unless its folder says it is done; returns its figures."""
    done = plan.folder / stage / "done.json"
    if done.exists():
        logger.info("%s: already done", stage)
        return dict(json.loads(done.read_text()))
    done.parent.mkdir(parents=True, exist_ok=True)
    work: dict[str, Callable[[Plan], dict[str, Any]]] = {
        "tokenizer": _tokenizer,
        "target": partial(_target_or_draft, "target"),
        "draft": partial(_target_or_draft, "draft"),
        "verifier": _verifier,
        "prm": _prm,
        "report": _report,
        "ship": _ship,
    }
    torch.manual_seed(plan.seed)
    figures = work[stage](plan)
    done.write_text(json.dumps(figures))
    return figures


def _tokenizer(plan: Plan) -> dict[str, Any]:
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(plan.folder / "tokenizer")
    return {"entries": len(tokenizer)}


def _target_or_draft(stage: str, plan: Plan) -> dict[str, Any]:
    model = LlamaForCausalLM(_config(plan, plan.shapes[stage]))
    return _fit(stage, plan, model)


def _verifier(plan: Plan) -> dict[str, Any]:
    """The target trained on, because who judges must know more than who writes."""
    return _fit("verifier", plan, _open(plan, "target"))


def _prm(plan: Plan) -> dict[str, Any]:
    """The reward model: the verifier, deepened, as a classifier of tokens."""
    model = deepen(_open(plan, "verifier"), plan.judging_layers)
    tokenizer = _load_tokenizer(plan)
    writers = [_open(plan, name).to(plan.where) for name in ("target", "draft")]
    contrast = Contrast(writers, digit_ids(tokenizer, model.config.vocab_size))
    figures = _train("prm", plan, model, loss_of=contrast, rate_of=model.rate_of)
    return _save("prm", plan, model.classifier, figures)


def _report(plan: Plan) -> dict[str, Any]:
    """Accuracy by family and difficulty, on held-out problems."""
    size = {"problems": plan.report_problems, "samples": plan.report_samples}
    return {
        "target": report(plan.folder / "target", plan.folder / "prm", **size),
        "draft": report(plan.folder / "draft", None, **size),
    }


def _ship(plan: Plan) -> dict[str, Any]:
    """Put the models where the package looks for them."""
    sizes = {}
    for name in ("target", "draft", "verifier", "prm"):
        to = plan.ship_to / name
        to.mkdir(parents=True, exist_ok=True)
        for pattern in ("*.json", "*.safetensors"):
            for file in (plan.folder / name).glob(pattern):
                if file.name != "done.json":
                    shutil.copy(file, to / file.name)
        sizes[f"{name}_mb"] = round(sum(f.stat().st_size for f in to.iterdir()) / 1e6, 2)
    return sizes


def _open(plan: Plan, stage: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(plan.folder / stage, dtype=torch.float32)


def _fit(stage: str, plan: Plan, model: Any) -> dict[str, Any]:
    return _save(stage, plan, model, _train(stage, plan, model))


def _train(stage: str, plan: Plan, model: Any, **how: Any) -> dict[str, Any]:
    recipe = plan.recipes[stage]

    def batches(seed: int) -> Any:
        return stream(
            str(plan.folder / "tokenizer"),
            plan.weights,
            tokens_per_batch=recipe.tokens_per_batch,
            seed=seed,
            workers=recipe.workers,
        )

    with threads(recipe.threads):
        return train(model, batches, recipe, plan.folder / stage, plan.where, **how)


def _save(stage: str, plan: Plan, model: Any, figures: dict[str, Any]) -> dict[str, Any]:
    model.to(torch.bfloat16).save_pretrained(plan.folder / stage)
    _load_tokenizer(plan).save_pretrained(plan.folder / stage)
    return figures


def _load_tokenizer(plan: Plan) -> Any:
    return AutoTokenizer.from_pretrained(plan.folder / "tokenizer")


def _config(plan: Plan, shape: Shape) -> LlamaConfig:
    tokenizer = _load_tokenizer(plan)
    return LlamaConfig(
        vocab_size=(len(tokenizer) + 63) // 64 * 64,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        intermediate_size=shape.mlp,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        attention_bias=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
