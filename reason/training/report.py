"""How good the trained models are: accuracy by family and difficulty, and what the reward model adds."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from reason.tasks.synthetic.check import check
from reason.tasks.synthetic.draw import split_of
from reason.tasks.synthetic.exercise import Exercise
from reason.tasks.synthetic.families import FAMILIES
from reason.training.examples import Encoder
from reason.training.sampling import Sampled
from reason.training.stream import collate
from search.aggregate import AGGREGATIONS, aggregate


@dataclass(frozen=True)
class Judged:
    """One sampled solution: its answer, whether all of it is right, and its step scores (None: no reward model)."""

    answer: str
    right: bool
    steps: list[float] | None


def heldout(family: str, difficulty: int, count: int, seed: int = 1) -> list[Exercise]:
    """`count` held-out problems of one family and difficulty."""
    rng = random.Random(f"{family}/{difficulty}/{seed}")
    found: list[Exercise] = []
    while len(found) < count:
        exercise = FAMILIES[family].pose(rng, difficulty)
        if split_of(exercise.question) == "heldout":
            found.append(exercise)
    return found


def cells(count: int) -> list[Exercise]:
    """`count` held-out problems for every family at every difficulty."""
    return [e for name, cls in FAMILIES.items() for d in cls.difficulties for e in heldout(name, d, count)]


def judge(
    prm: Any | None, tokenizer: Any, exercises: Sequence[Exercise], samples: Sequence[Sequence[Sampled]]
) -> list[list[Judged]]:
    """Grade every sample with the exact checker and, if there is one, score it with the reward model."""
    flat = [(e, s) for e, row in zip(exercises, samples, strict=True) for s in row]
    scores: list[list[float] | None] = [None] * len(flat)
    if prm is not None:
        scores = list(score(prm, tokenizer, flat))
    judged = iter(
        Judged(answer_in(text), check(exercise, text).solved and finished, steps)
        for (exercise, (text, finished)), steps in zip(flat, scores, strict=True)
    )
    return [[next(judged) for _ in row] for row in samples]


@torch.no_grad()
def score(prm: Any, tokenizer: Any, flat: Sequence[tuple[Exercise, Sampled]], rows: int = 512) -> list[list[float]]:
    """The reward model's probability that all is right so far, at the last token of every step."""
    encode = Encoder(tokenizer)
    examples = [encode(e, text, finished=finished) for e, (text, finished) in flat]
    out: list[list[float]] = [[] for _ in examples]
    order = sorted(range(len(examples)), key=lambda i: len(examples[i].ids))
    for begin in range(0, len(order), rows):
        chunk = order[begin : begin + rows]
        batch = collate([examples[i] for i in chunk], tokenizer.pad_token_id)
        with torch.autocast(prm.device.type, dtype=torch.bfloat16):
            logits = prm(input_ids=batch["ids"].to(prm.device), use_cache=False).logits
        right = logits.float().softmax(-1)[..., 1].cpu()
        for row, i in enumerate(chunk):
            ends = batch["step_end"][row].nonzero().flatten().tolist()
            out[i] = right[row, ends].tolist() or [0.0]
    return out


def answer_in(text: str) -> str:
    """What stands in the last box, "" if there is none."""
    return text.rsplit("\\boxed{", 1)[1].split("}")[0] if "\\boxed{" in text else ""


def figures(judged: Sequence[Sequence[Judged]], answers: Sequence[str]) -> dict[str, float]:
    """Accuracies over problems with n samples each, and how well scores rank the samples of one problem."""
    solved = np.array([[s.answer == a for s in row] for row, a in zip(judged, answers, strict=True)])
    out = {
        "pass@1": float(solved.mean()),
        "derivation@1": float(np.mean([[s.right for s in row] for row in judged])),
        "pass@n": float(solved.any(1).mean()),
        "maj@n": float(np.mean([_vote(row, [1.0] * len(row)) == a for row, a in zip(judged, answers, strict=True)])),
    }
    if judged[0][0].steps is not None:
        for how in AGGREGATIONS:
            scores = [[aggregate(s.steps or [0.0], how) for s in row] for row in judged]
            best = [row[int(np.argmax(sc))].answer for row, sc in zip(judged, scores, strict=True)]
            voted = [_vote(row, sc) for row, sc in zip(judged, scores, strict=True)]
            out[f"best@n {how}"] = float(np.mean([x == a for x, a in zip(best, answers, strict=True)]))
            out[f"weighted@n {how}"] = float(np.mean([x == a for x, a in zip(voted, answers, strict=True)]))
            out[f"auc {how}"] = _within_problem_auc(solved, np.array(scores))
    return out


def table(
    judged: Sequence[Sequence[Judged]], exercises: Sequence[Exercise]
) -> Mapping[tuple[str, int], dict[str, float]]:
    """`figures` for every (family, difficulty)."""
    keys = sorted({(e.family, e.difficulty) for e in exercises})
    out = {}
    for key in keys:
        rows = [i for i, e in enumerate(exercises) if (e.family, e.difficulty) == key]
        out[key] = figures([judged[i] for i in rows], [str(exercises[i].answer) for i in rows])
    return out


def _vote(row: Sequence[Judged], weights: Sequence[float]) -> str:
    votes: dict[str, float] = {}
    for s, weight in zip(row, weights, strict=True):
        if s.answer:
            votes[s.answer] = votes.get(s.answer, 0.0) + weight
    return max(votes, key=votes.__getitem__) if votes else ""


def _within_problem_auc(solved: np.ndarray, scores: np.ndarray) -> float:
    """Probability that a right sample outranks a wrong one of the same problem (ties half)."""
    wins = pairs = 0.0
    for right, score_row in zip(solved, scores, strict=True):
        good, bad = score_row[right], score_row[~right]
        wins += (good[:, None] > bad).sum() + 0.5 * (good[:, None] == bad).sum()
        pairs += len(good) * len(bad)
    return wins / pairs if pairs else float("nan")
