"""Run every search with and without speculation and routing, and compare all output with what an earlier commit gave.

    python scripts/dev/same_output.py FILE            # on the earlier commit: writes FILE
    python scripts/dev/same_output.py FILE --compare  # later: names every run that differs, exits with 1 if any does

Keys are left out of the comparison, as names may change; values, their order and their nesting may not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reason.config.compose import compose_settings, list_options
from reason.config.renamed_settings import rename_overrides
from reason.runs.result import UNSTABLE_USAGE_FIELDS, ProblemResult
from reason.runs.run import tree_record
from reason.runs.summary import summarise_results
from reason.settings.validate import validate_settings
from reason.tasks.selection import select_task

FLOAT64 = ("engine.dtype=float64", "scorer.dtype=float64")
ROUTED = ("router=arbitrage", "router.dtype=float64", "small.dtype=float64")


def runs() -> Iterator[tuple[str, ...]]:
    """The settings of every run that is compared."""
    for search in list_options("search"):
        for speculation in ("off", "stand"):
            yield (f"search={search}", f"speculation={speculation}")
    for drafter in ("suffix", "hybrid", "token_recycling", "prompt_lookup", "stand_published"):
        yield ("search=best_of_n", f"speculation={drafter}")
    for search in ("best_of_n", "rebase", "beam_search"):
        for speculation in ("off", "stand"):
            yield (f"search={search}", f"speculation={speculation}", *ROUTED)
    for rule in ("recursive_rejection", "recursive_iid", "k_sequential", "point_mass", "traversal", "greedy_match"):
        # one branch: beside another, what is drafted depends on when either arrived, and texts on what is drafted
        rules = ("speculation=stand_published", "controller=template", f"acceptance={rule}")
        yield ("search=best_of_n", "search.n=1", *rules)


def output(settings: tuple[str, ...], problems: int) -> str:
    """Digest of all trees, rows and metrics of one run."""
    overrides = ("+task=synthetic", "task.difficulty=[2,3]", "search.n=4", *FLOAT64, *settings)
    config, choices = compose_settings(overrides)
    plan = validate_settings(config, choices)
    task, _ = select_task(plan.config, choices, plan.scorer)
    outputs, results = [], []
    with plan.load_solver(task) as solver:
        for problem in list(task)[:problems]:
            solution = solver.solve(problem)
            result = ProblemResult.from_solution(solution, task.grade_text)
            row = result.to_json()
            row["usage"] = {key: value for key, value in row["usage"].items() if key not in UNSTABLE_USAGE_FIELDS}
            row |= {"accepted_length": None, "speedup": None}
            del row["shape"]  # newer than the first reference files
            outputs.append([row, tree_record(solution)])
            results.append(result)
    return hashlib.sha256(
        json.dumps(without_keys([outputs, summarise_results(results)["metrics"]])).encode()
    ).hexdigest()


def run_name(settings: Sequence[str]) -> str:
    """The settings that tell a run from the others."""
    return " ".join(setting for setting in settings if "dtype" not in setting)


def without_keys(value: Any) -> Any:
    """Plain data with every mapping replaced by the list of its values."""
    if isinstance(value, dict):
        return [without_keys(item) for item in value.values()]
    return [without_keys(item) for item in value] if isinstance(value, list | tuple) else value


def find_differing(before: Mapping[str, str], digests: Mapping[str, str]) -> list[str]:
    """Names of the runs that are not as before, those that are new or gone among them."""
    return [name for name in {**before, **digests} if before.get(name) != digests.get(name)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--problems", type=int, default=3)
    arguments = parser.parse_args()
    digests = {}
    for settings in runs():
        name = run_name(settings)
        digests[name] = output(settings, arguments.problems)
        print(f"{digests[name][:12]}  {name}", flush=True)
    if not arguments.compare:
        arguments.file.write_text(json.dumps(digests, indent=1) + "\n")
        return
    saved = json.loads(arguments.file.read_text())
    before = {run_name(rename_overrides(name.split())): digest for name, digest in saved.items()}
    differ = find_differing(before, digests)
    print(f"{len(before.keys() - differ)} of {len(before)} runs the same", *differ, sep="\n  ")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
