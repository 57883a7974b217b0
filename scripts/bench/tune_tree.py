"""Learn a tree template: `python scripts/bench/tune_tree.py --out FILE`, for controller=template controller.file=FILE.

As STAND does (arXiv 2506.04708): decodes problems of the training split with a large static tree, counts how often
each place of it is accepted, and keeps the best, in order, so that the first n are the best n. What was learned is one
JSON object, in FILE and as the last line of stdout.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

from rich.console import Console

from reason.bench.arguments import bind_threads, positive


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--out", type=Path, help="write the template to this file")
    top.add_argument(
        "--contender",
        default="stand_rejection",
        help="drafter and rule, as scripts/bench/engine_and_speculation.py calls them",
    )
    top.add_argument("--keep", type=positive, default=80, help="places to keep")
    top.add_argument("--start", type=positive, default=625, help="places of the static tree")
    top.add_argument("--depth", type=positive, default=20, help="levels of the static tree")
    top.add_argument("--problems", type=positive, default=4, help="training problems of each family")
    top.add_argument("--trajectories", type=positive, default=16, help="branches of each problem")
    top.add_argument("--temperature", type=float, default=1.0)
    top.add_argument("--live", type=positive, default=4, help="branches decoded together")
    top.add_argument("--max-tokens", type=positive, help="of a trajectory; default: the model's")
    top.add_argument("--kv-mib", type=positive, default=64, help="size of the KV pool")
    top.add_argument("--threads", type=positive, help="torch threads; default: torch's own choice")
    top.add_argument("--device", default="auto")
    top.add_argument("--dtype", default="auto")
    return top


def main() -> None:
    args = parser().parse_args()
    bind_threads(args.threads)
    logging.disable(logging.ERROR)  # transformers announces every setting it does not like
    from reason.bench.drafter_setups import find_tunable
    from reason.bench.trees import static_tree
    from reason.bench.tune import tune
    from reason.bench.workload import Target, Workload, questions

    try:
        contender = find_tunable(args.contender)
    except ValueError as error:
        sys.exit(str(error))
    target = Target.load(device=args.device, dtype=args.dtype)
    asked = questions(target.prompt, per_family=args.problems, split="train")
    work = Workload(asked, args.trajectories, args.temperature, args.max_tokens or target.max_tokens)
    start = static_tree(args.start, args.depth)
    tuned = tune(
        target, work, contender.drafter(), contender.rule, start, keep=args.keep, live=args.live, kv_mib=args.kv_mib
    )
    tuned.levels().show(Console(stderr=not sys.stdout.isatty(), width=120))
    settings = {key: value for key, value in vars(args).items() if key not in ("out", "threads")}
    content = tuned.as_dict(settings)
    if args.out:
        args.out.write_text(json.dumps(content) + "\n", encoding="utf-8")
    print(json.dumps(content))


if __name__ == "__main__":
    main()
