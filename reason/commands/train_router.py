"""Trains a router on pairs of steps that `reason collect-steps` recorded, and evaluates it.

reason train-router features pairs.jsonl --out routers/mine     a head on features of the bundled verifier
reason train-router finetune pairs.jsonl --out routers/mine --base HUB_ID
reason solve router=arbitrage router.path=routers/mine          then use it

features trains a small head on how a language model expected each step; finetune trains a whole reward model to
classify steps, as in Arbitrage. The better step is the one that scores higher or, with --label truth, the one that
more often leads to the right answer (of pairs collected with --rollouts). A killed run continues with the features that
it computed, or with the epoch it was in.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from reason.commands import typed

if TYPE_CHECKING:
    from reason.routing.pairs import StepPair
    from reason.training.router import Floats, RouterMetrics, RouterRecipe
    from reason.training.router_head import HeadRecipe

CAPTION = (
    "On held-out problems. rho: rank correlation with the gain by the target model's step, by {label}. "
    "10%...: mean gain if the target model writes these steps. better: share of the first {share} with a gain. "
    "ECE: expected calibration error of the probability."
)
SOURCE = "the reward model to start from: folder, hub id or bundled:NAME (default %(default)s)"


def build_parser() -> argparse.ArgumentParser:
    from reason.training.router import RouterRecipe
    from reason.training.router_head import HeadRecipe

    top = typed.make_parser("train-router", __doc__)
    methods = top.add_subparsers(dest="method", required=True)
    for name, recipe in (("features", HeadRecipe()), ("finetune", RouterRecipe())):
        aliases = ["evidence"] if name == "features" else []  # its name in the last release
        method = methods.add_parser(name, aliases=aliases)
        method.set_defaults(recipe=type(recipe))
        method.add_argument("pairs", type=Path, help="file that collect_steps.py wrote")
        method.add_argument("--out", type=Path, required=True, help="folder of the trained router")
        method.add_argument("--base", default="bundled:verifier", help=SOURCE)
        method.add_argument("--device", default="auto")
        for key, value in asdict(recipe).items():
            method.add_argument(f"--{key.replace('_', '-')}", type=type(value), default=value, help=f"default {value}")
    return top


def train_feature_head(
    base: str, train: list[StepPair], held_out: list[StepPair], recipe: HeadRecipe, folder: Path, device: str
) -> Floats:
    """Trains and saves a head; returns its probabilities for the held-out pairs."""
    from reason.training.router import label_better
    from reason.training.router_head import read_features_cached, train_head

    features = read_features_cached(base, [*train, *held_out], device, folder / "evidence.npz")
    head = train_head(base, features[: len(train)], label_better(train, recipe).tolist(), recipe)
    head.save(folder)
    return head.predict_gain(features[len(train) :])


def finetune_classifier(
    base: str, train: list[StepPair], held_out: list[StepPair], recipe: RouterRecipe, folder: Path, device: str
) -> Floats:
    """Trains and saves a classifier; returns its probabilities for the held-out pairs."""
    from reason.models.checkpoint import find_model, load_tokenizer
    from reason.training.router import predict_gains, train_router

    source = find_model(base, key="--base").source
    model = train_router(source, train, recipe, folder, device)
    model.save_pretrained(folder)
    tokenizer: Any = load_tokenizer(source)
    tokenizer.save_pretrained(folder)
    return predict_gains(model, held_out, recipe, device)


def metrics_table(judged: dict[str, RouterMetrics], label: str) -> Table:
    from reason.training.router import SHARES

    with_truth = label == "score" and any(j.truth is not None for j in judged.values())
    shares = [f"{share:.0%}" for share in SHARES]
    names = ["predictor", "AUC", "rho", *shares, "better", "ECE"] + ["truth"] * with_truth
    shown = Table(*names, box=None, caption=CAPTION.format(label=label, share=shares[0]), caption_justify="left")
    for name, j in judged.items():
        rises = [f"{rise:.3f}" for rise in j.realised]
        last = ["" if value is None else f"{value:.3f}" for value in [j.calibration] + [j.truth] * with_truth]
        shown.add_row(name, f"{j.auc:.3f}", f"{j.spearman:+.3f}", *rises, f"{j.improved[0]:.0%}", *last)
    return shown


def run_program() -> int:
    args = build_parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    console = Console(highlight=False)
    from reason import ConfigError
    from reason.models.checkpoint import find_model
    from reason.routing.pairs import read_pairs
    from reason.training.loop import resolve_device
    from reason.training.router import evaluate_router, label_better, split_pairs

    try:
        recipe: Any = args.recipe(**{name: getattr(args, name) for name in asdict(args.recipe())})
        find_model(args.base, key="--base")
        device = resolve_device(args.device)
        pairs = list(read_pairs(args.pairs))
        train, held_out = split_pairs(pairs, recipe.held_out, recipe.seed)
        args.out.mkdir(parents=True, exist_ok=True)
        gaining = int(label_better(pairs, recipe).sum())
        method = train_feature_head if args.method != "finetune" else finetune_classifier
        likely = method(args.base, train, held_out, recipe, args.out, device)
    except (ConfigError, ValueError, OSError) as error:
        console.print(str(error), style="red", markup=False)
        return 2
    judged = evaluate_router(likely, held_out, recipe.margin, recipe.label)
    figures = {
        "method": "finetune" if args.method == "finetune" else "features", "base": args.base,
        "recipe": asdict(recipe), "pairs": len(pairs),
        "held_out": len(held_out), "better": gaining,
        "judged": {name: asdict(judgement) for name, judgement in judged.items()},
    }  # fmt: skip
    (args.out / "report.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    console.print(metrics_table(judged, recipe.label))
    return 0
