"""Learns the weights of an ensemble of scorers from runs in which they scored the same solutions.

python -m reason.scorers.ensemble_weights prm=RUN_FOLDER likelihood=RUN_FOLDER --out weights.json

The runs differ in nothing but `scorer`, and their search must not choose by score before the end (best_of_n or
self_consistency): then solution for solution is the same text, graded, with one score per run. A stacked
generalisation (Wolpert 1992) with a logistic regression whose weights are not negative, so that no scorer counts
against itself; learning it from rows of runs is ours.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from decoding.validation import is_number
from reason.scorers.probabilities import stable_sigmoid

Floats = npt.NDArray[np.float64]

LEAST_PROBABILITY = 1e-12
"""Scores count as at least this far from 0 and 1: the logit of a score of 0 would outweigh all others."""

_RIDGE = 1e-2
_MIN_ROWS = 20


@dataclass(frozen=True)
class EnsembleWeights:
    """Weights of the logits of the members, by the names of their options, and what is added to their sum."""

    weights: Mapping[str, float]
    bias: float

    @classmethod
    def read(cls, path: str) -> EnsembleWeights:
        """Returns the weights in a file. Raises: ValueError, OSError."""
        try:
            fields = json.loads(Path(path).read_text(encoding="utf-8"))
            weights, bias = dict(fields["weights"]), fields["bias"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"weights_file={path} must be JSON with weights and bias") from None
        if not is_number(bias) or not all(is_number(weight, low=0) for weight in weights.values()):
            raise ValueError(f"weights_file={path}: weights must be numbers >= 0, and bias a number")
        return cls(weights, bias)

    def write(self, path: Path) -> None:
        """Writes the file that `read` reads."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def to_logits(probabilities: npt.ArrayLike) -> Floats:
    """Returns the logarithms of the odds, of probabilities kept `LEAST_PROBABILITY` from 0 and 1."""
    inside = np.clip(np.asarray(probabilities, dtype=np.float64), LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    logits: Floats = np.log(inside) - np.log1p(-inside)
    return logits


def fit_weights(scores_NK: Floats, is_right_N: npt.NDArray[np.bool_]) -> tuple[Floats, float]:
    """Returns weights `[K]`, each at least 0, and the bias, of a logistic regression on the logits of K scores.

    A small ridge keeps the weights finite where a scorer separates the solutions. Raises: ValueError where nothing can
    be learned.
    """
    from scipy.optimize import minimize

    if len(is_right_N) < _MIN_ROWS or is_right_N.all() or not is_right_N.any():
        num_right = int(is_right_N.sum())
        raise ValueError(
            f"weights are learned from at least {_MIN_ROWS} graded solutions, right and wrong ones; there are "
            f"{len(is_right_N)}, of which {num_right} are right"
        )
    logits_NK, signs_N = to_logits(scores_NK), np.where(is_right_N, 1.0, -1.0)

    def find_loss(parameters: Floats) -> tuple[float, Floats]:
        margins_N = signs_N * (logits_NK @ parameters[:-1] + parameters[-1])
        slopes_N = -signs_N * stable_sigmoid(-margins_N)
        ridge = np.append(_RIDGE * parameters[:-1], 0.0)
        loss = np.logaddexp(0, -margins_N).sum() + 0.5 * float(ridge @ parameters)
        return float(loss), np.append(logits_NK.T @ slopes_N, slopes_N.sum()) + ridge

    num_scorers = logits_NK.shape[1]
    bounds = [(0.0, None)] * num_scorers + [(None, None)]
    fitted = minimize(find_loss, np.zeros(num_scorers + 1), jac=True, method="L-BFGS-B", bounds=bounds)
    weights_K: Floats = fitted.x[:-1]
    if not weights_K.any():
        raise ValueError("no scorer tells right solutions from wrong ones: all weights would be 0")
    return weights_K, float(fitted.x[-1])


def learn_weights(runs: Mapping[str, Path]) -> EnsembleWeights:
    """Returns the weights of the scorers whose runs, by the name of the scorer, are in these folders.

    Raises: ValueError where the runs do not have the same solutions or too few.
    """
    tables = {name: _read_solutions(folder / "results.jsonl") for name, folder in runs.items()}
    first_name, first = next(iter(tables.items()))
    for name, table in tables.items():
        if {key: grade for key, (grade, _) in table.items()} != {key: grade for key, (grade, _) in first.items()}:
            raise ValueError(
                f"the runs of {first_name} and {name} have not the same solutions; they may differ in scorer alone, "
                "with search=self_consistency or best_of_n"
            )
    keys = [key for key in first if all(table[key][1] is not None for table in tables.values())]
    scores_NK = np.array([[table[key][1] for table in tables.values()] for key in keys], dtype=np.float64)
    weights_K, bias = fit_weights(
        scores_NK.reshape(-1, len(tables)), np.array([first[key][0] == "right" for key in keys], dtype=bool)
    )
    return EnsembleWeights(dict(zip(tables, map(float, weights_K), strict=True)), bias)


def _read_solutions(file: Path) -> dict[tuple[object, ...], tuple[str, float | None]]:
    """Returns grade and score of each graded solution of a run: by problem, place, answer and length."""
    solutions: dict[tuple[object, ...], tuple[str, float | None]] = {}
    data = file.read_bytes()
    # as bytes: a text may hold what is a line break in Unicode alone; the last line may be half written
    rows = [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
    for row in {row["id"]: row for row in rows}.values():  # of several rows of a problem the last one counts
        for sample in row.get("samples") or []:
            if sample["grade"] in ("right", "wrong"):
                key = (row["id"], sample["node"], sample["answer"], sample["tokens"])
                solutions[key] = (sample["grade"], sample["score"])
    return solutions


def main(arguments: Sequence[str] | None = None) -> None:
    """Learns weights and writes them to a file."""
    parser = argparse.ArgumentParser(prog="python -m reason.scorers.ensemble_weights")
    parser.add_argument("runs", nargs="+", metavar="SCORER=RUN_FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    runs = {name: Path(folder) for name, _, folder in (text.partition("=") for text in given.runs)}
    if len(runs) < 2 or not all(map(str, runs.values())) or "" in runs:
        parser.error(f"name two scorers and their runs, such as prm=outputs/A likelihood=outputs/B; got {given.runs}")
    try:
        learned = learn_weights(runs)
    except (ValueError, KeyError, OSError) as error:
        parser.exit(1, f"{error}\n")
    learned.write(given.out)
    print(json.dumps(asdict(learned)))


if __name__ == "__main__":
    main()
