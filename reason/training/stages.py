"""Trains the bundled models in stages. Each stage reads the output of earlier ones and is skipped once done."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers import PreTrainedTokenizerFast as FastTokenizer

import reason.models
from decoding.model.device_choice import Device
from decoding.threads import limit_threads
from decoding.validation import MAX_INT, require_choice, require_count, require_not_negative
from reason.build import load
from reason.engines.acceptance_head import save_acceptance_head
from reason.engines.draft_vocabulary import save_draft_vocabulary
from reason.engines.judge_head import save_judge
from reason.models.checkpoint import find_model
from reason.runs.metrics import compute_metrics
from reason.runs.result import ProblemResult
from reason.solver import Solver
from reason.tasks.puzzles.families import PUZZLES
from reason.tasks.puzzles.thought import ThoughtStyle
from reason.tasks.synthetic import Synthetic
from reason.tasks.synthetic.families import FAMILIES
from reason.training.classifier import deepen_model
from reason.training.contrast import ContrastLoss, digit_ids
from reason.training.distillation import DistillationLoss, batch_texts, measure_agreement
from reason.training.draft_heads import (
    DraftHeadRecipe,
    find_held_out,
    open_pair,
    rank_ids,
    train_acceptance_head,
    train_judge,
    write_texts,
)
from reason.training.loop import (
    Batch,
    LossFunction,
    RateFunction,
    TrainingRecipe,
    full_rate,
    language_loss,
    resolve_device,
    train_model,
)
from reason.training.stream import OpenSource, SolutionSource, batch_stream
from reason.training.td_lambda import TdLoss, ValueRecipe, batch_trajectories, name_value_model, write_trajectories
from reason.training.thoughts import ThoughtSource
from reason.training.tokenizer import build_thinker_tokenizer, build_tokenizer
from search.seeds import derive_seed

BUNDLED = Path(reason.models.__file__).parent / "bundled"
SPECULATION_STAGES = ("tiny_draft", "acceptance_head", "judge_head", "draft_vocabulary")
"""Parts of speculation; they learn from texts of models that are there already."""
STAGES = (
    "tokenizer",
    "target",
    "draft",
    "verifier",
    "prm",
    "report",
    "thinker",
    *SPECULATION_STAGES,
    "value_models",
    "ship",
)

THINKER_WINDOW = 4096  # tokens; its training texts are shorter, but a thought may run away

AccuracyTable = dict[str, dict[str, float]]
"""From "family/difficulty" to metric to value."""
StageFigures = Mapping[str, float] | Mapping[str, AccuracyTable]
"""Results of a stage: numbers by name, or for `report` a table per model."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Size of a model. Raises: ValueError naming the setting."""

    hidden: int
    layers: int
    mlp: int
    heads: int

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "mlp", "heads"):
            require_count(name, getattr(self, name), at_least=1)


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Settings of all stages.

    weights         share of each family of problems
    puzzle_weights  share of each family of puzzles, for the thinker
    puzzle_difficulty   lowest and highest, drawn evenly; None: all, short searches more often
    shapes          by model; the verifier has the target's
    recipes         by stage
    thought_style   how often the parts of a thought occur
    heads           of the small parts of speculation, which read models that are there already
    values          of the value models, which judge the solutions of a model that is there already
    judging_layers  layers that the reward model has beyond the verifier's
    ship_to         folder of the bundled models

    Raises: ValueError naming the setting.
    """

    folder: Path
    weights: Mapping[str, float]
    shapes: Mapping[str, ModelShape]
    recipes: Mapping[str, TrainingRecipe]
    puzzle_weights: Mapping[str, float] = field(default_factory=dict)
    puzzle_difficulty: tuple[int, int] | None = None
    thought_style: ThoughtStyle = field(default_factory=ThoughtStyle)
    heads: DraftHeadRecipe = field(default_factory=DraftHeadRecipe)
    values: ValueRecipe = field(default_factory=ValueRecipe)
    judging_layers: int = 2
    seed: int = 0
    report_problems: int = 24
    report_samples: int = 16
    device: Device = "auto"
    ship_to: Path = BUNDLED

    def __post_init__(self) -> None:
        for name in ("judging_layers", "report_problems", "report_samples"):
            require_count(name, getattr(self, name), at_least=1)
        require_count("seed", self.seed, at_most=MAX_INT)
        for family, weight in self.weights.items():
            require_not_negative(f"weights.{family}", weight)
        for family, weight in self.puzzle_weights.items():
            require_choice(f"puzzle_weights: {family}", family, tuple(PUZZLES))
            require_not_negative(f"puzzle_weights.{family}", weight)
        if self.puzzle_difficulty is not None:
            low, high = (*self.puzzle_difficulty, None, None)[:2]
            require_count("puzzle_difficulty[0]", low, at_least=1)
            require_count("puzzle_difficulty[1]", high, at_least=low)

    @property
    def resolved_device(self) -> str:
        """The device to train on."""
        return resolve_device(self.device)


def run_stage(stage: str, plan: TrainingPlan) -> StageFigures:
    """Runs one stage unless its folder says that it is done; returns its results."""
    done = plan.folder / stage / "done.json"
    if done.exists():
        logger.info("%s: already done", stage)
        return dict(json.loads(done.read_text()))
    done.parent.mkdir(parents=True, exist_ok=True)
    stage_functions: dict[str, Callable[[TrainingPlan], StageFigures]] = {
        "tokenizer": _train_tokenizer,
        "target": partial(_train_writer, "target"),
        "draft": partial(_train_writer, "draft"),
        "verifier": _train_verifier,
        "prm": _train_prm,
        "report": _report_models,
        "thinker": _train_thinker,
        "tiny_draft": _train_tiny_draft,
        "acceptance_head": _train_acceptance_head,
        "judge_head": _train_judge_head,
        "draft_vocabulary": _count_draft_vocabulary,
        "value_models": _train_value_models,
        "ship": _ship_models,
    }
    torch.manual_seed(plan.seed)
    figures = stage_functions[stage](plan)
    done.write_text(json.dumps(figures))
    return figures


def report_accuracy(writer: Path, prm: Path | None, *, problems: int, samples: int) -> AccuracyTable:
    """Returns the metrics of `samples` solutions for `problems` held-out problems per family and difficulty.

    Solutions are scored by `prm` if there is one.
    """
    search = ["search=best_of_n", f"scorer.path={prm}"] if prm else ["search=self_consistency", "scorer=none"]
    with load(f"model.path={writer}", f"search.n={samples}", *search) as solver:
        return dict(_accuracy_cells(solver, problems))


def _accuracy_cells(solver: Solver, problems: int) -> Iterator[tuple[str, dict[str, float]]]:
    for family, cls in FAMILIES.items():
        for difficulty in cls.difficulties:
            task = Synthetic(families=[family], difficulty=difficulty, size=problems, seed=1)
            results = []
            for _, outcome in solver.solve_many(task):
                if isinstance(outcome, Exception):
                    raise outcome
                results.append(ProblemResult.from_solution(outcome, task.grade_text))
            estimates = compute_metrics([result.graded_samples for result in results])
            metrics = {name: metric.value for name, metric in estimates.items()}
            logger.info("%s/%d: %s", family, difficulty, metrics)
            yield f"{family}/{difficulty}", metrics


def _train_tokenizer(plan: TrainingPlan) -> dict[str, float]:
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(plan.folder / "tokenizer")
    return {"entries": len(tokenizer)}


def _train_writer(stage: str, plan: TrainingPlan) -> dict[str, float]:
    model = LlamaForCausalLM(_make_config(_load_tokenizer(plan.folder / "tokenizer"), plan.shapes[stage]))
    return _save_model(stage, plan, model, _train_stage(stage, plan, model))


def _train_verifier(plan: TrainingPlan) -> dict[str, float]:
    """Trains the target further: a verifier must know more than the model that it judges."""
    model = _load_model(plan, "target")
    return _save_model("verifier", plan, model, _train_stage("verifier", plan, model))


def _train_prm(plan: TrainingPlan) -> dict[str, float]:
    """Trains the reward model: the verifier with more layers, as a classifier of tokens."""
    model = deepen_model(_load_model(plan, "verifier"), plan.judging_layers)
    tokenizer = _load_tokenizer(plan.folder / "tokenizer")
    writers = [_load_model(plan, name).to(plan.resolved_device) for name in ("target", "draft")]
    contrast = ContrastLoss(writers, digit_ids(tokenizer, model.config.vocab_size))
    figures = _train_stage("prm", plan, model, loss_of=contrast, rate_of=model.rate_of)
    return _save_model("prm", plan, model.classifier, figures)


def _train_thinker(plan: TrainingPlan) -> dict[str, float]:
    """Trains the model that thinks, with a tokenizer of its own, on puzzles alone."""
    folder = plan.folder / "thinker_tokenizer"
    if not folder.exists():
        build_thinker_tokenizer().save_pretrained(folder)
    tokenizer = _load_tokenizer(folder)
    model = LlamaForCausalLM(_make_config(tokenizer, plan.shapes["thinker"], window=THINKER_WINDOW))
    source = ThoughtSource(plan.puzzle_weights, plan.thought_style, plan.puzzle_difficulty)
    figures = _train_stage("thinker", plan, model, source, folder)
    return _save_model("thinker", plan, model, figures, folder)


def _train_tiny_draft(plan: TrainingPlan) -> dict[str, float]:
    """Trains a model that only drafts, on texts of the target alone."""
    source = find_model(plan.heads.target, key="heads.target").source
    recipe, tokenizer, device = plan.recipes["tiny_draft"], _load_tokenizer(Path(source)), plan.resolved_device
    texts = write_texts(plan.heads.target, plan.weights, plan.heads, device)
    cut = find_held_out(texts)
    teacher = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).to(device)
    model = LlamaForCausalLM(_make_config(tokenizer, plan.shapes["tiny_draft"]))

    def make_stream(seed: int) -> Iterator[Batch]:
        return batch_texts(texts[:cut], recipe.tokens_per_batch, tokenizer.pad_token_id, seed)

    with limit_threads(recipe.threads):
        folder = plan.folder / "tiny_draft"
        figures = train_model(model, make_stream, recipe, folder, device, loss_of=DistillationLoss(teacher))
    figures["accepted"] = round(measure_agreement(model, teacher, texts[cut:]), 4)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return figures


def _train_acceptance_head(plan: TrainingPlan) -> dict[str, float]:
    target, draft, _ = open_pair(plan.heads, plan.resolved_device)
    texts = write_texts(plan.heads.target, plan.weights, plan.heads, plan.resolved_device)
    head, figures = train_acceptance_head(texts, target, draft, plan.heads)
    save_acceptance_head(plan.folder / "acceptance_head", head, plan.heads.draft)
    return figures


def _train_judge_head(plan: TrainingPlan) -> dict[str, float]:
    target, _, tokenizer = open_pair(plan.heads, plan.resolved_device)
    texts = write_texts(plan.heads.draft, plan.weights, plan.heads, plan.resolved_device)
    weight_D, bias, figures = train_judge(texts, target, tokenizer, plan.heads)
    save_judge(plan.folder / "judge_head", weight_D.numpy(), bias, plan.heads.target)
    return figures


def _count_draft_vocabulary(plan: TrainingPlan) -> dict[str, float]:
    texts = write_texts(plan.heads.target, plan.weights, plan.heads, plan.resolved_device)
    ids = rank_ids(texts, plan.heads.vocabulary_size)
    save_draft_vocabulary(plan.folder / "draft_vocabulary", ids, plan.heads.target)
    tokens = [token for text in texts for token in text.tokens]
    return {"ids": len(ids), "share_of_tokens": float(np.isin(tokens, ids).mean())}


def _train_value_models(plan: TrainingPlan) -> dict[str, float]:
    """Trains value models on solutions that a model wrote, each from other weights and in another order."""
    source, recipe, values = find_model(plan.values.base).source, plan.recipes["value_models"], plan.values
    trajectories = write_trajectories(values, plan.weights)
    share = sum(t.is_right for t in trajectories) / len(trajectories)
    figures = {"solutions": float(len(trajectories)), "right": round(share, 4)}
    tokenizer = _load_tokenizer(Path(source))
    for index in range(1, values.models + 1):
        torch.manual_seed(plan.seed + index)
        base = LlamaForCausalLM.from_pretrained(source, dtype=torch.float32)
        model = deepen_model(base, plan.judging_layers)
        folder = name_value_model(plan.folder, index)

        def make_stream(seed: int, index: int = index) -> Iterator[Batch]:
            return batch_trajectories(
                trajectories, recipe.tokens_per_batch, tokenizer.pad_token_id, derive_seed(seed, index)
            )

        with limit_threads(recipe.threads):
            trained = train_model(
                model,
                make_stream,
                recipe,
                folder,
                plan.resolved_device,
                loss_of=TdLoss(values.decay),
                rate_of=model.rate_of,
            )
        model.classifier.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        figures[f"loss_{index}"] = trained["loss"]
    return figures


def _report_models(plan: TrainingPlan) -> dict[str, AccuracyTable]:
    size = {"problems": plan.report_problems, "samples": plan.report_samples}
    return {
        "target": report_accuracy(plan.folder / "target", plan.folder / "prm", **size),
        "draft": report_accuracy(plan.folder / "draft", None, **size),
    }


def _ship_models(plan: TrainingPlan) -> dict[str, float]:
    """Copies the models to where the package looks for them."""
    sizes = {}
    for name in ("target", "draft", "verifier", "prm", "thinker", *SPECULATION_STAGES):
        if not (plan.folder / name / "done.json").exists():
            continue
        to = plan.ship_to / name
        to.mkdir(parents=True, exist_ok=True)
        for pattern in ("*.json", "*.jinja", "*.safetensors"):
            for file in (plan.folder / name).glob(pattern):
                if file.name != "done.json":
                    shutil.copy(file, to / file.name)
        sizes[f"{name}_mb"] = round(sum(f.stat().st_size for f in to.iterdir()) / 1e6, 2)
    return sizes


def _train_stage(
    stage: str,
    plan: TrainingPlan,
    model: torch.nn.Module,
    open_source: OpenSource | None = None,
    tokenizer: Path | None = None,
    *,
    loss_of: LossFunction = language_loss,
    rate_of: RateFunction = full_rate,
) -> dict[str, float]:
    recipe = plan.recipes[stage]

    def make_stream(seed: int) -> Iterator[Batch]:
        return batch_stream(
            str(tokenizer or plan.folder / "tokenizer"),
            open_source or SolutionSource(plan.weights),
            tokens_per_batch=recipe.tokens_per_batch,
            seed=seed,
            workers=recipe.workers,
        )

    with limit_threads(recipe.threads):
        return train_model(
            model, make_stream, recipe, plan.folder / stage, plan.resolved_device, loss_of=loss_of, rate_of=rate_of
        )


def _load_model(plan: TrainingPlan, stage: str) -> LlamaForCausalLM:
    model: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(plan.folder / stage, dtype=torch.float32)
    return model


def _save_model(
    stage: str,
    plan: TrainingPlan,
    model: PreTrainedModel,
    figures: dict[str, float],
    tokenizer: Path | None = None,
) -> dict[str, float]:
    model.to(torch.bfloat16).save_pretrained(plan.folder / stage)
    _load_tokenizer(tokenizer or plan.folder / "tokenizer").save_pretrained(plan.folder / stage)
    return figures


def _load_tokenizer(folder: Path) -> FastTokenizer:
    tokenizer: FastTokenizer = AutoTokenizer.from_pretrained(folder)
    return tokenizer


def _make_config(tokenizer: FastTokenizer, shape: ModelShape, window: int = 2048) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=(len(tokenizer) + 63) // 64 * 64,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        intermediate_size=shape.mlp,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=window,
        tie_word_embeddings=True,
        attention_bias=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
