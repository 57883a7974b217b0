"""Trains a router on pairs of steps that `reason collect-steps` recorded, and evaluates it.

reason train-router features pairs.jsonl --out routers/mine     a head on features of the bundled verifier
reason train-router finetune pairs.jsonl --out routers/mine --base HUB_ID
reason train-router pair --out routers/mine model=qwen2.5-math-7b small.path=SMALL scorer=qwen_prm +task=math500
reason solve router=arbitrage router.path=routers/mine          then use it

features trains a small head on how a language model expected each step; finetune trains a whole reward model to
classify steps, as in Arbitrage; pair records the pairs first, with the settings of `reason solve`, and trains the
reward model on them, with its own tokenizer where its vocabulary is not that of the large model. --history authors
marks each step with the model that wrote it. The better step is the one that scores higher or, with --label truth, that
more often leads to the right answer (of pairs collected with --rollouts). A killed run continues with the features that
it computed, or with the epoch it was in.
"""

from __future__ import annotations

import json
import logging
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from reason.bench.arguments import positive_int
from reason.commands import typed

if TYPE_CHECKING:
    from reason.routing.pairs import StepPair
    from reason.training.router import Floats, RouterRecipe
    from reason.training.router_head import HeadRecipe
    from reason.training.router_metrics import RouterMetrics

CAPTION = (
    "On held-out problems. rho: rank correlation with the gain by the target model's step, by {label}. "
    "10%...: mean gain if the target model writes these steps. better: share of the first {share} with a gain. "
    "ECE: expected calibration error of the probability."
)
SOURCE = "the reward model to start from: folder, hub id or bundled:NAME (default %(default)s)"


def build_parser() -> ArgumentParser:
    from reason.training.router import RouterRecipe
    from reason.training.router_head import HeadRecipe

    top = typed.make_parser("train-router", __doc__)
    methods = top.add_subparsers(dest="method", required=True)
    for name, recipe in (("features", HeadRecipe()), ("finetune", RouterRecipe())):
        aliases = ["evidence"] if name == "features" else []  # its name in the last release
        method = methods.add_parser(name, aliases=aliases)
        method.add_argument("pairs", type=Path, help="file that collect_steps.py wrote")
        method.add_argument("--base", default="bundled:verifier", help=SOURCE)
        _add_options(method, recipe)
    pair = methods.add_parser("pair", help="records and trains")
    pair.add_argument("settings", nargs="*", help="settings of `reason solve`")
    pair.add_argument("--base", help="the model to start from (default: the reward model of the settings)")
    pair.add_argument("--rollouts", type=positive_int, help="graded completions of each step, for --label truth")
    _add_options(pair, RouterRecipe(), reads=None)
    return top


def _add_options(method: ArgumentParser, recipe: RouterRecipe | HeadRecipe, **defaults: None) -> None:
    method.set_defaults(recipe=type(recipe))
    method.add_argument("--out", type=Path, required=True, help="folder of the trained router")
    method.add_argument("--device", default="auto")
    for key, value in asdict(recipe).items():
        default = defaults.get(key, value) if key in defaults else value
        shown = "by the vocabularies" if default is None else default
        method.add_argument(f"--{key.replace('_', '-')}", type=type(value), default=default, help=f"default {shown}")


def record_training_pairs(args: Namespace) -> None:
    """Records pairs beside the router, and sets what the settings of the two models decide. *Mutates* the arguments.

    Raises: ConfigError, ValueError.
    """
    from reason import ConfigError
    from reason.commands.collect_steps import record_pairs, validate_pair
    from reason.models.checkpoint import find_model, read_vocabulary

    spec, choices = validate_pair(args.settings)
    args.base = args.base or spec.config["scorer"].get("path")
    if args.base is None:
        raise ConfigError(f"scorer={choices.get('scorer')} has no model that a router could begin as; set --base")
    if args.reads is None:
        ours, theirs = (
            read_vocabulary(find_model(args.base, key="--base").source),
            read_vocabulary(spec.checkpoint.source),
        )
        args.reads = "tokens" if ours is not None and ours == theirs else "text"
    args.recipe(**{name: getattr(args, name) for name in asdict(args.recipe())})  # checked before models run
    args.pairs = args.out / "pairs.jsonl"
    record_pairs(spec, choices, args.pairs, args.rollouts, Console(stderr=True, highlight=False))


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
    from reason.routing.classifier import CONFIG_KEY, RouterClassifier, encode_pair
    from reason.training.router import EncodePair, predict_gains, read_shared_tokens, train_router

    source = find_model(base, key="--base").source
    tokenizer: Any = load_tokenizer(source)
    adapter = RouterClassifier(reads=recipe.reads, history=recipe.history)  # type: ignore[arg-type]  # checked
    step_format = adapter.build_format(tokenizer)
    shares_all = (recipe.reads, recipe.history) == ("tokens", "none")
    encode: EncodePair = read_shared_tokens if shares_all else partial(encode_pair, step_format=step_format)
    model = train_router(source, train, recipe, folder, device, encode)
    setattr(model.config, CONFIG_KEY, adapter.to_config())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return predict_gains(model, held_out, recipe, device, encode)


def metrics_table(judged: dict[str, RouterMetrics], label: str) -> Table:
    from reason.training.router_metrics import SHARES

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
    from reason.training.router import RouterRecipe, label_better, split_pairs
    from reason.training.router_metrics import evaluate_router

    try:
        if args.method == "pair":
            record_training_pairs(args)
        recipe: Any = args.recipe(**{name: getattr(args, name) for name in asdict(args.recipe())})
        find_model(args.base, key="--base")
        device = resolve_device(args.device)
        pairs = list(read_pairs(args.pairs))
        train, held_out = split_pairs(pairs, recipe.held_out, recipe.seed)
        args.out.mkdir(parents=True, exist_ok=True)
        gaining = int(label_better(pairs, recipe).sum())
        method = finetune_classifier if args.recipe is RouterRecipe else train_feature_head
        likely = method(args.base, train, held_out, recipe, args.out, device)
    except (ConfigError, ValueError, OSError) as error:
        console.print(str(error), style="red", markup=False)
        return 2
    judged = evaluate_router(likely, held_out, recipe.margin, recipe.label)
    figures = {
        "method": "finetune" if args.recipe is RouterRecipe else "features", "base": args.base,
        "recipe": asdict(recipe), "pairs": len(pairs),
        "held_out": len(held_out), "better": gaining,
        "judged": {name: asdict(judgement) for name, judgement in judged.items()},
    }  # fmt: skip
    (args.out / "report.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    console.print(metrics_table(judged, recipe.label))
    return 0
