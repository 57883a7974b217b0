"""Train a router on pairs of steps that scripts/collect_steps.py recorded, and say how good it is.

python scripts/train_router.py pairs.jsonl --out routers/mine          from the bundled reward model
python scripts/solve.py router=arbitrage router.path=routers/mine      then use it

A killed run goes on at the epoch it was in.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table


def main() -> int:
    from reason.training.router import RouterRecipe

    recipe = RouterRecipe()
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("pairs", type=Path, help="the file that collect_steps.py wrote")
    top.add_argument("--out", type=Path, required=True, help="folder of the trained router")
    top.add_argument(
        "--base", default="bundled:prm", help="the reward model to start from: folder, hub id, bundled:NAME"
    )
    for name, value in asdict(recipe).items():
        top.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value, help=f"default {value}")
    top.add_argument("--device", default="auto")
    args = top.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    console = Console(highlight=False)
    from reason import ConfigError
    from reason.arbitrage.pairs import read_pairs
    from reason.checkpoint import find_model, load_tokenizer
    from reason.models.hf import pick_device
    from reason.training.router import judge, split, train_router

    recipe = RouterRecipe(**{name: getattr(args, name) for name in asdict(recipe)})
    try:
        base = find_model(args.base, key="--base").source
        device = pick_device(args.device)
        pairs = list(read_pairs(args.pairs))
        train, held_out = split(pairs, recipe)
        args.out.mkdir(parents=True, exist_ok=True)
        model = train_router(base, train, recipe, args.out, str(device))
    except (ConfigError, ValueError, OSError) as error:
        console.print(str(error), style="red", markup=False)
        return 2
    judged = judge(model, held_out, recipe, str(device))
    model.save_pretrained(args.out)
    load_tokenizer(base).save_pretrained(args.out)
    figures = {
        "pairs": len(pairs), "held_out": len(held_out), "better": sum(p.advantage > recipe.margin for p in pairs),
        "recipe": asdict(recipe), "judged": {name: asdict(judgement) for name, judgement in judged.items()},
    }  # fmt: skip
    (args.out / "report.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    table = Table("told by", "AUC", "Spearman", "calibration error", box=None)
    for name, judgement in judged.items():
        calibration = "" if judgement.calibration is None else f"{judgement.calibration:.3f}"
        table.add_row(name, f"{judgement.auc:.3f}", f"{judgement.spearman:+.3f}", calibration)
    console.print(table)
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
