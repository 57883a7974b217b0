"""The stages of training the bundled models. Each reads what earlier ones wrote and is skipped once done."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

import reason.models
from reason.models.hf import Device
from reason.tasks.synthetic.draw import distinct
from reason.tasks.synthetic.exercise import Exercise
from reason.training import report
from reason.training.examples import Encoder
from reason.training.loop import Loss, Recipe, train
from reason.training.losses import language_loss, verdict_loss
from reason.training.sampling import Sampled, sample
from reason.training.stream import Mixture, stream
from reason.training.tokenizer import build_tokenizer
from reason.training.verifier import verifier_on

BUNDLED = Path(reason.models.__file__).parent / "bundled"
logger = logging.getLogger(__name__)
STAGES = ("tokenizer", "target", "draft", "trunk", "samples", "prm", "report", "ship")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model's size."""

    hidden: int
    layers: int
    mlp: int
    heads: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything training needs to know. `models` and `recipes` are keyed by stage."""

    folder: Path
    weights: Mapping[str, float]
    shapes: Mapping[str, Shape]
    recipes: Mapping[str, Recipe]
    slip_rate: float = 0.65
    judging_layers: int = 2
    sample_problems: int = 30_000
    samples_per_problem: int = 4
    sample_share: float = 0.5
    temperature: float = 1.0
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
        "trunk": _trunk,
        "samples": _samples,
        "prm": _prm,
        "report": _report,
        "ship": _ship,
    }
    figures = work[stage](plan)
    done.write_text(json.dumps(figures))
    return figures


def _tokenizer(plan: Plan) -> dict[str, Any]:
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(plan.folder / "tokenizer")
    return {"entries": len(tokenizer)}


def _target_or_draft(stage: str, plan: Plan) -> dict[str, Any]:
    model = LlamaForCausalLM(_config(plan, plan.shapes[stage]))
    return _fit(stage, plan, model, language_loss, Mixture(weights=plan.weights))


def _trunk(plan: Plan) -> dict[str, Any]:
    """The reward model's body: the target trained on, because a verifier must know more than the writer."""
    model = AutoModelForCausalLM.from_pretrained(plan.folder / "target", dtype=torch.float32)
    return _fit("trunk", plan, model, language_loss, Mixture(weights=plan.weights))


def _samples(plan: Plan) -> dict[str, Any]:
    """The target's own solutions of training problems, labelled by the exact checker."""
    tokenizer = _load_tokenizer(plan)
    source = distinct(7, "train", weights=plan.weights, difficulties=(1, 3))
    exercises = [next(source) for _ in range(plan.sample_problems)]
    drawn = _sample("target", plan, exercises, plan.samples_per_problem)
    encode = Encoder(tokenizer)
    right = total = 0
    with (plan.folder / "samples" / "samples.jsonl").open("w") as out:
        for exercise, row in zip(exercises, drawn, strict=True):
            for text, finished in row:
                example = encode(exercise, text, finished=finished)
                right += 0 not in example.verdicts
                total += 1
                out.write(json.dumps(asdict(example)) + "\n")
    return {"samples": total, "right": right / total}


def _prm(plan: Plan) -> dict[str, Any]:
    """The reward model: judging layers on top of the trunk, taught with slips of the pen and the target's mistakes."""
    trunk = AutoModelForCausalLM.from_pretrained(plan.folder / "trunk", dtype=torch.float32)
    mixture = Mixture(
        weights=plan.weights,
        slip_rate=plan.slip_rate,
        samples=str(plan.folder / "samples" / "samples.jsonl"),
        share=plan.sample_share,
    )
    recipe = plan.recipes["prm"]
    tokenizer_dir = str(plan.folder / "tokenizer")
    some = next(stream(tokenizer_dir, mixture, tokens_per_batch=32_768, seed=recipe.seed, workers=0))
    model = verifier_on(trunk, plan.judging_layers, some["ids"])
    return _fit("prm", plan, model, verdict_loss, mixture)


def _report(plan: Plan) -> dict[str, Any]:
    """Accuracy by family and difficulty, on held-out problems, of whatever has been trained."""
    tokenizer = _load_tokenizer(plan)
    exercises = report.cells(plan.report_problems)
    prm = AutoModelForTokenClassification.from_pretrained(plan.folder / "prm", dtype=torch.float32)
    prm = prm.to(plan.where).eval()
    out: dict[str, Any] = {}
    for name in ("target", "draft"):
        drawn = _sample(name, plan, exercises, plan.report_samples)
        judged = report.judge(prm if name == "target" else None, tokenizer, exercises, drawn)
        out[name] = {f"{f}/{d}": cell for (f, d), cell in report.table(judged, exercises).items()}
    return out


def _sample(name: str, plan: Plan, exercises: Sequence[Exercise], n: int) -> list[list[Sampled]]:
    folder, tokenizer = plan.folder / name, _load_tokenizer(plan)
    return sample(folder, tokenizer, exercises, n, temperature=plan.temperature, device=plan.device)


def _ship(plan: Plan) -> dict[str, Any]:
    """Put the three models where the package looks for them."""
    sizes = {}
    for name in ("target", "draft", "prm"):
        to = plan.ship_to / name
        to.mkdir(parents=True, exist_ok=True)
        for pattern in ("*.json", "*.safetensors"):
            for file in (plan.folder / name).glob(pattern):
                if file.name != "done.json":
                    shutil.copy(file, to / file.name)
        sizes[f"{name}_mb"] = round(sum(f.stat().st_size for f in to.iterdir()) / 1e6, 2)
    return sizes


def _fit(stage: str, plan: Plan, model: Any, loss: Loss, mixture: Mixture) -> dict[str, Any]:
    recipe = plan.recipes[stage]
    torch.manual_seed(recipe.seed)

    def batches(seed: int) -> Any:
        return stream(
            str(plan.folder / "tokenizer"),
            mixture,
            tokens_per_batch=recipe.tokens_per_batch,
            seed=seed,
            workers=recipe.workers,
        )

    figures = train(model, loss, batches, recipe, plan.folder / stage, plan.where)
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
