"""Learn a tree template: `reason bench tune_tree --out FILE`, for controller=template controller.file=FILE.

As in STAND (arXiv 2506.04708): decodes problems of the training split with a large static tree, counts how often each
node of it is accepted, and keeps the best nodes, in order, so that the first n are the best n. The template is one JSON
object, in FILE and in the last line of stdout.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys

from rich.console import Console

from reason.bench.arguments import accept_old_flag, limit_threads, positive_int, report_path, temperature
from reason.commands import typed


def make_parser() -> argparse.ArgumentParser:
    top = typed.make_parser("bench tune_tree", __doc__)
    top.add_argument("--out", type=report_path, help="write the template to this file")
    setup = top.add_argument(
        "--drafter-setup",
        default="stand_rejection",
        help="drafter and rule, by their name in `reason bench speculation`",
    )
    accept_old_flag(top, "--contender", setup)
    top.add_argument("--keep", type=positive_int, default=80, help="nodes to keep")
    top.add_argument("--start", type=positive_int, default=625, help="nodes of the static tree")
    top.add_argument("--depth", type=positive_int, default=20, help="levels of the static tree")
    top.add_argument("--problems", type=positive_int, default=4, help="training problems of each family")
    top.add_argument("--trajectories", type=positive_int, default=16, help="branches of each problem")
    top.add_argument("--temperature", type=temperature, default=1.0)
    top.add_argument("--live", type=positive_int, default=4, help="branches decoded together")
    top.add_argument("--max-tokens", type=positive_int, help="per trajectory; default: the model's limit")
    top.add_argument("--kv-mib", type=positive_int, default=64, help="size of the KV pool")
    top.add_argument("--threads", type=positive_int, help="torch threads; default: torch's own choice")
    top.add_argument("--device", default="auto")
    top.add_argument("--dtype", default="auto")
    return top


def run_program() -> None:
    args = make_parser().parse_args()
    limit_threads(args.threads)
    logging.disable(logging.ERROR)  # transformers logs every setting that it ignores
    from reason.bench.drafter_setups import find_tunable_setup
    from reason.bench.tune import static_tree, tune_template
    from reason.bench.workload import BundledTarget, Workload, make_questions

    try:
        setup = find_tunable_setup(args.drafter_setup)
    except ValueError as error:
        sys.exit(str(error))
    target = BundledTarget.load(device=args.device, dtype=args.dtype)
    questions = make_questions(target.prompt, per_family=args.problems, split="train")
    workload = Workload(questions, args.trajectories, args.temperature, args.max_tokens or target.max_tokens)
    start = static_tree(args.start, args.depth)
    tuned = tune_template(
        target,
        workload,
        setup.make_drafter(),
        setup.rule,
        start,
        keep=args.keep,
        live=args.live,
        kv_mib=args.kv_mib,
    )
    tuned.depth_table().print_table(Console(stderr=not sys.stdout.isatty(), width=120))
    settings = {key: value for key, value in vars(args).items() if key not in ("out", "threads")}
    content = tuned.to_json(settings)
    if args.out:
        args.out.write_text(json.dumps(content) + "\n", encoding="utf-8")
    print(json.dumps(content))
