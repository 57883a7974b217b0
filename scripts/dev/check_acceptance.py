"""Check by chi-square that lossless acceptance rules keep the model's distribution; exits with 1 if one does not.

    python scripts/dev/check_acceptance.py                           # every rule that claims it, with every drafter
    python scripts/dev/check_acceptance.py --rules greedy_match      # one that does not: it misfits
    python scripts/dev/check_acceptance.py --draws 10000 --seed 2    # finer, on another random model

A random model with 16 tokens generates texts with speculation. Its exact distribution over each of their first four
tokens follows from all prefixes there are. The table has a p-value per token. A row misfits where one is below 0.01
divided by the number of all p-values (Bonferroni): correct rules misfit with one seed in a hundred. A row without an
accepted draft token tests nothing, and fails too.
"""

from __future__ import annotations

import argparse
import logging
import sys
from typing import TYPE_CHECKING

from rich.console import Console

from reason.bench.arguments import name_list, positive_int

if TYPE_CHECKING:
    from reason.bench.acceptance_fit import AcceptanceFit

HEADER = ("rule", "drafter, draws", "sampling", "texts", "accepted", "chi-square/dof by token", "p by token", "")


def make_parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument(
        "--rules", type=name_list, metavar="NAMES", help="such as coupled,traversal; default: lossless ones"
    )
    top.add_argument("--draws", type=positive_int, default=1000, help="texts for each row of the table; default: 1000")
    top.add_argument("--seed", type=positive_int, default=1, help="of the model and of the texts; default: 1")
    return top


def format_row(fit: AcceptanceFit, verdict: str) -> tuple[str, ...]:
    chi2 = " ".join(f"{position.chi2:.0f}/{position.dof}" for position in fit.positions)
    p_values = " ".join(f"{p:.2f}" if p >= 0.01 else f"{p:.0e}" for p in (one.p_value for one in fit.positions))
    accepted = f"{fit.accepted / max(1, fit.drafted):.2f} of {fit.drafted}"
    return fit.rule, fit.drafter, fit.sampling, str(fit.draws), accepted, chi2, p_values, verdict


def main() -> None:
    args = make_parser().parse_args()
    logging.disable(logging.ERROR)  # transformers logs every setting that it ignores
    from reason import ConfigError
    from reason.bench.acceptance_fit import find_misfits, make_rules, make_speculations, measure_fits
    from reason.bench.tiny_target import TinyTarget
    from reason.runs.tables import ResultTable

    try:
        rules = make_rules(args.rules)
    except ConfigError as error:
        sys.exit(str(error))
    target, progress = TinyTarget(args.seed), Console(stderr=True, width=120, highlight=False)
    cases = [(rule, *case) for rule, made in rules.items() for case in make_speculations(made, target)]
    fits: list[AcceptanceFit] = []
    for number, (rule, drafter, speculation) in enumerate(cases, start=1):
        fits += measure_fits(target, speculation, rule=rule, drafter=drafter, draws=args.draws, seed=args.seed)
        progress.print(f"{number}/{len(cases)} {rule} with {drafter}")
    misfits = find_misfits(fits)
    idle = [fit for fit in fits if not fit.accepted]
    verdicts = ["MISFIT" if fit in misfits else "NO DRAFT" if fit in idle else "fits" for fit in fits]
    title = f"{len(fits)} cases, {sum(len(fit.positions) for fit in fits)} p-values, seed {args.seed}"
    rows = [format_row(fit, verdict) for fit, verdict in zip(fits, verdicts, strict=True)]
    ResultTable(title, HEADER, rows).print_table(Console(width=160))
    print(f"{len(fits)} cases: {len(misfits)} misfit, {len(idle)} accepted no draft token")
    sys.exit(1 if misfits or idle else 0)


if __name__ == "__main__":
    main()
