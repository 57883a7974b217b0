"""Trains value models by TD(lambda), as in FETCH (arXiv 2502.11183): every step learns from those behind it.

The value of a step is 2 p - 1, with the classifier's probability p that the solution will be right; it is read at the
step's last token. The target of the last step is the outcome, 1 or -1; that of a step before mixes the value of the
next step and its target. Shapes: B solutions of at most T tokens with their prompts, S steps.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch

from decoding.validation import MAX_INT, require_count, require_number
from reason.build import load
from reason.tasks.synthetic import Synthetic
from reason.training.classifier import DeepenedClassifier
from reason.training.loop import Batch
from search.strategy import Candidate, SearchResult

NO_STEP = -1


@dataclass(frozen=True, kw_only=True)
class ValueRecipe:
    """How value models are trained.

    models      number of them, with different data order and first weights: an ensemble
    decay       lambda: 1 learns from outcomes alone, 0 from the next step alone
    writer      model whose solutions they learn to judge
    base        model that they begin as, of the same vocabulary
    problems    problems of the training split
    samples     solutions of each
    difficulty  lowest and highest of the problems

    Raises: ValueError naming the setting.
    """

    models: int = 2
    decay: float = 0.8
    writer: str = "bundled:target"
    base: str = "bundled:verifier"
    problems: int = 2000
    samples: int = 4
    difficulty: tuple[int, int] = (1, 4)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("models", "problems", "samples"):
            require_count(f"values.{name}", getattr(self, name), at_least=1)
        require_number("values.decay", self.decay, low=0, high=1)
        require_count("values.seed", self.seed, at_most=MAX_INT)


@dataclass(frozen=True)
class Trajectory:
    """One solution with its prompt: `ids`, the index of the last token of each step, and whether it is right."""

    ids: list[int]
    step_ends: list[int]
    is_right: bool


def write_trajectories(recipe: ValueRecipe, weights: Mapping[str, float]) -> list[Trajectory]:
    """Returns solutions of the writer to problems of the training split; one without an answer is wrong."""
    low, high = recipe.difficulty
    task = Synthetic(
        families=dict(weights), split="train", difficulty=[low, high], size=recipe.problems, seed=recipe.seed
    )
    search = ("search=self_consistency", f"search.n={recipe.samples}", "scorer=none")
    trajectories_of: dict[str, list[Trajectory]] = {}
    with load(f"model.path={recipe.writer}", *search, f"seed={recipe.seed}") as solver:
        for problem, outcome in solver.solve_many(task):
            if isinstance(outcome, Exception):
                raise outcome
            result = outcome.result
            trajectories_of[problem.id] = [
                _read_trajectory(
                    result, candidate, task.grade_text(problem, result.tree.path_text(candidate.node)).value == "right"
                )
                for candidate in result.candidates
            ]
    # in the order of the problems, not of their completion
    return [trajectory for problem in task for trajectory in trajectories_of[problem.id]]


def _read_trajectory(result: SearchResult, candidate: Candidate, is_right: bool) -> Trajectory:
    ids = list(result.tree.prefix_tokens(candidate.node))
    lengths = [len(step.tokens) for step in result.tree.path_steps(candidate.node)]
    begin = len(ids) - sum(lengths)
    return Trajectory(ids, [begin + end - 1 for end in accumulate(lengths)], is_right)


def batch_trajectories(
    trajectories: Sequence[Trajectory], tokens_per_batch: int, pad_id: int, seed: int
) -> Iterator[Batch]:
    """Yields endless batches of at most `tokens_per_batch` padded tokens, or of one solution; each epoch has its order.

    A batch has `ids` `[B, T]`, padded on the right, `step_ends` `[B, S]`, padded with -1, and `outcomes` `[B]`.
    """
    rng = random.Random(seed)
    while True:
        epoch = rng.sample(trajectories, len(trajectories))
        chosen: list[Trajectory] = []
        for trajectory in epoch:
            longest = max(len(t.ids) for t in [*chosen, trajectory])
            if chosen and (len(chosen) + 1) * longest > tokens_per_batch:
                yield _collate(chosen, pad_id)
                chosen = []
            chosen.append(trajectory)
        yield _collate(chosen, pad_id)


def _collate(trajectories: Sequence[Trajectory], pad_id: int) -> Batch:
    def stack(rows: Sequence[Sequence[int]], padding: int) -> torch.Tensor:
        longest = max(map(len, rows))
        return torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows])

    return {
        "ids": stack([t.ids for t in trajectories], pad_id),
        "step_ends": stack([t.step_ends for t in trajectories], NO_STEP),
        "outcomes": torch.tensor([1.0 if t.is_right else -1.0 for t in trajectories]),
    }


def td_targets(values: torch.Tensor, outcomes: torch.Tensor, real: torch.Tensor, decay: float) -> torch.Tensor:
    """Returns the TD(lambda) target `[B, S]` of each step's value, without discount.

    The last step's is the outcome; before it G_t = (1 - decay) V_(t+1) + decay G_(t+1).

    values    of the steps `[B, S]`, from -1 to 1
    outcomes  `[B]`, 1 or -1
    real      `[B, S]`, False for padding, which comes last

    >>> values, real = torch.tensor([[0.0, 0.5, 0.2]]), torch.tensor([[True, True, True]])
    >>> [round(target, 3) for target in td_targets(values, torch.tensor([1.0]), real, 0.8)[0].tolist()]
    [0.772, 0.84, 1.0]
    """
    targets = torch.zeros_like(values)
    later, next_values = outcomes, outcomes  # behind the last step is the outcome
    for step in range(values.shape[1] - 1, -1, -1):
        mixed = (1 - decay) * next_values + decay * later
        targets[:, step] = torch.where(real[:, step], mixed, targets[:, step])
        later = torch.where(real[:, step], mixed, later)
        next_values = torch.where(real[:, step], values[:, step], next_values)
    return targets


@dataclass(frozen=True)
class TdLoss:
    """The mean squared error of the values against their TD(lambda) targets, which have no gradient."""

    decay: float

    def __call__(self, model: DeepenedClassifier, batch: Batch) -> torch.Tensor:
        real = batch["step_ends"] != NO_STEP
        hidden = model(input_ids=batch["ids"])
        at = batch["step_ends"].clamp(min=0)[..., None].expand(-1, -1, hidden.shape[-1])
        values = torch.tanh(model.right_log_odds(hidden.gather(1, at)) / 2)  # 2 p - 1
        targets = td_targets(values.detach(), batch["outcomes"], real, self.decay)
        errors = (values - targets) ** 2 * real
        return errors.sum() / real.sum().clamp(min=1)


def name_value_model(folder: Path, index: int) -> Path:
    """Returns the folder of one of the value models of a stage, from 1."""
    return folder / "value_models" / str(index)
