"""Run a controller on texts of the bundled model as if each round took what the cost curve of another machine says.

    python scripts/dev/simulate_controller.py --drafters stand,hybrid --live 4,16
    python scripts/dev/simulate_controller.py --costs FILE.json    # [[branches, rows, tokens of context, ms], ...]

Drafts, accepted tokens and decisions are real, and the clock has no noise: two versions of a controller can be compared
in seconds where `reason bench puppet` takes minutes. One decision changes all that follow, so a few percent mean
something over several problems of each family only. A cost curve that is wrong it does not show. Prints tokens per
second over those of plain rounds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from reason.bench.arguments import name_list, positive_int, positive_ints, require_names
from reason.bench.drafter_setups import AT_FULL_SPEED
from reason.bench.simulated_clock import COSTS, ROW_COUNTS, read_costs, simulate
from reason.bench.workload import BundledTarget, Workload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafters", type=name_list, default=("stand", "suffix", "hybrid"))
    parser.add_argument("--live", type=positive_ints, default=(1, 4, 16, 64))
    parser.add_argument("--problems", type=positive_int, default=1, help="of each family")
    parser.add_argument("--trajectories", type=positive_int, default=16, help="of each problem")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--costs", type=Path, help="rounds of another machine; see above")
    parser.add_argument("--row-counts", type=positive_ints, default=ROW_COUNTS, help="rows that fill tiles there")
    args = parser.parse_args()
    # where a template says which drafts there are, no controller decides
    setups = {name: setup for name, setup in AT_FULL_SPEED.items() if setup.shape == "throughput"}
    require_names("--drafters", args.drafters, setups)
    rows = json.loads(args.costs.read_text(encoding="utf-8")) if args.costs else COSTS
    costs = read_costs(rows, args.row_counts)
    target = BundledTarget.load(device="cpu", dtype="float32")
    questions = target.make_questions(per_family=args.problems, split="heldout")
    workload = Workload(questions, args.trajectories, args.temperature, target.max_tokens)

    for live in args.live:
        plain, _ = simulate(target, workload, setups[args.drafters[0]], costs, live=live, drafts=False)
        for name in args.drafters:
            seconds, per_forward = simulate(target, workload, setups[name], costs, live=live)
            print(f"{live:4d} live  {name:<18} {plain / seconds:5.2f}x  {per_forward:5.2f} tokens/forward", flush=True)


if __name__ == "__main__":
    main()
