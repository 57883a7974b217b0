"""Divide the saved samples of runs as `allocation.samples` would: `python scripts/dev/divide_samples.py FOLDER...`.

Each folder is a run of search=best_of_n or self_consistency with many samples, and counts as one seed. Printed are the
accuracy of a majority vote over the divided samples, and the points that it is ahead of one over as many tokens in
equal shares: the mean over shuffled orders of the samples, and where 95 % of the orders lie.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reason.runs.allocation import GivenSamples, SampleAllocation
from reason.runs.metrics import GradedSample, maj_at_n
from reason.runs.result import ResultFile, SampleResult
from reason.runs.run import RESULTS

Samples = Sequence[SampleResult]
SETTINGS = ((4, 16), (8, 32), (16, 64))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--orders", type=int, default=8, help="shuffled orders of each run's samples")
    args = parser.parse_args()
    runs = [[row.samples for row in ResultFile(folder / RESULTS).read_results().values()] for folder in args.folders]
    for mean, most in SETTINGS:
        pairs = [
            compare_votes([rng.sample(samples, len(samples)) for samples in problems], mean, most)
            for problems in runs
            for rng in map(random.Random, range(args.orders))
        ]
        accuracies, leads = zip(*pairs, strict=True)
        low, high = np.quantile(leads, [0.025, 0.975])
        print(
            f"mean {mean}, at most {most}: accuracy {np.mean(accuracies):.3f}, {100 * np.mean(leads):+.1f} points "
            f"({100 * low:.1f} to {100 * high:.1f})"
        )


def compare_votes(problems: Sequence[Samples], mean: int, most: int) -> tuple[float, float]:
    """Returns the accuracy of votes over divided samples, and how far it is ahead of equal shares of as many tokens."""
    accuracy, tokens = count_votes(problems, divide_samples(problems, SampleAllocation(samples=mean), most))
    equal = [count_votes(problems, [count] * len(problems)) for count in range(1, most + 1)]
    nearest, _ = min(equal, key=lambda vote: abs(vote[1] - tokens))
    return accuracy, accuracy - nearest


def divide_samples(problems: Sequence[Samples], allocation: SampleAllocation, most: int) -> list[int]:
    """Returns the number of samples that each problem gets, round by round."""
    given = [GivenSamples() for _ in problems]
    while (counts := allocation.plan_samples(given, most)) != [problem.num_samples for problem in given]:
        given = [
            GivenSamples([sample.answer for sample in samples[:count]], count)
            for samples, count in zip(problems, counts, strict=True)
        ]
    return counts


def count_votes(problems: Sequence[Samples], counts: Sequence[int]) -> tuple[float, float]:
    """Returns accuracy and tokens per problem of majority votes over the first samples of each problem."""
    accuracy, num_tokens = 0.0, 0
    for samples, count in zip(problems, counts, strict=True):
        voters = samples[:count]
        accuracy += maj_at_n([GradedSample(sample.answer, sample.is_correct, None) for sample in voters])
        num_tokens += sum(sample.tokens for sample in voters)
    return accuracy / len(problems), num_tokens / len(problems)


if __name__ == "__main__":
    main()
