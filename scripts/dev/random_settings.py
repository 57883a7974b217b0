"""Draws settings of scripts/solve.py at random: searches with their knobs, scorers, routers, drafters, sampling.

A case is drawn from a seed and its number alone. Cases with neighbouring numbers share their models, which are then
loaded once for all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from reason import ConfigError
from reason.config.compose import compose_settings, list_options, load_option
from reason.settings.solve_spec import SolveSpec
from reason.settings.validate import validate_settings

CASES_PER_MODELS = 8
NUM_PROBLEMS = 3
NEEDS_A_CHECKPOINT = {"sentence_transformers", "zbmath"}
LOSSY_RULES = {"judge", "reflective"}  # at every temperature
SCORERS = ("prm", "expectation", "likelihood")  # those that need no model, or a bundled one

Knobs = Mapping[str, Sequence[object]]
SAMPLING: Knobs = {
    "max_tokens": (48, 150),
    "temperature": (0, 0.3, 0.7, 1, 1, 1.5),
    "top_p": (1, 1, 0.95, 0.7),
    "top_k": (0, 0, 5, 40),
    "min_p": (0, 0, 0.05),
}
STEP_SEARCH: Knobs = {
    "n": (2, 3, 4, 6),
    "agg_strategy": ("last", "min", "prod", "mean"),
    "select": ("weighted", "majority", "best"),
    "merge": (False, False, True),
    "early_stop": ("null", "null", 0.5, 1),
    "step_tokens": (24, 256),
    "depth": (3, 25),
}
LEVELS: Knobs = {"keep_width": (False, True)}
BEAMS: Knobs = {**LEVELS, "beam_width": (1, 2, 3)}
PARTICLES: Knobs = {"weights": ("odds", "likelihood"), "temperature": (0.3, 1, 4), "ess_threshold": (0, 0.5, 1)}
KNOBS: Mapping[str, Knobs] = {
    "best_of_n": {"n": (2, 3, 6), "agg_strategy": ("last", "min", "prod", "mean")},
    "self_consistency": {
        "n": (2, 3, 6),
        "agg_strategy": ("last", "min", "prod", "mean"),
        "select": ("majority", "weighted", "best"),
        "stop_error": ("null", "null", 0.05, 0.2),
    },
    "beam_search": BEAMS,
    "dvts": BEAMS,
    "rebase": {**LEVELS, "temperature": (0.02, 0.2, 1)},
    "ets": {
        **LEVELS,
        "temperature": (0.02, 0.2, 1),
        "penalty": (0, 0.5, 1, 2),
        "coverage": (0, 0.5, 1.5),
        "cost": ("nodes", "tokens"),
        "cover_first": (False, True),
        "solver_seconds": (60,),  # a program that is cut short depends on the load of the machine
    },
    "mcts": {
        "rule": ("uct", "puct"),
        "exploration": (0, 0.3, 1),
        "value": ("prm", "rollout"),
        "branching": (2, 3, 4),
        "widening": (1, 2),
        "widening_power": (0, 0.5),
        "parallel": (1, 2, 4),
    },
    "pdr": {
        "n": (2, 4),
        "rounds": (1, 2, 3),
        "distill": ("summary", "top_k", "random_k", "answers", "notes"),
        "think_tokens": (12, 30),
        "draft_tokens": (20, 200),
        "workspace_tokens": (20, 200),
    },
    "inftythink": {
        "n": (2, 4),
        "iterations": (1, 2, 4),
        "think_tokens": (12, 30, 200),
        "summary_tokens": (5, 20),
        "ask": ("prompt", "put_in"),
    },
    "self_refine": {"n": (2, 4), "rounds": (1, 2), "solution_tokens": (20, 200), "feedback_tokens": (5, 40)},
    "particle_filter": PARTICLES,
    "particle_gibbs": {**PARTICLES, "num_iterations": (1, 2, 3), "num_references": (0, 1)},
    "sequential_halving": {"rung_steps": (1, 2)},
    "diverse_beam": {**BEAMS, "num_groups": (1, 2), "diversity": (0, 0.2, 1), "ngram": (1, 2, 4)},
    "lookahead_beam": {"beam_width": (1, 2), "lookahead": (0, 1, 2)},
    "astar": {"branching": (1, 2, 3), "parallel": (1, 3), "expansions": (6, 12)},
}
WHOLE_SOLUTIONS = {"best_of_n", "self_consistency", "pdr", "inftythink", "self_refine"}
"""Searches that have none of the knobs of step searches."""
BUDGETS: Knobs = {"tokens": (100, 400), "calls": (7,)}  # others depend on time, or on what is drafted


@dataclass(frozen=True)
class DrawnSettings:
    """One case.

    search       settings of the search and its problems
    models       settings of the models that it uses
    speculation  settings of speculation
    """

    search: tuple[str, ...]
    models: tuple[str, ...]
    speculation: tuple[str, ...]

    def build_spec(self, *, speculates: bool) -> SolveSpec:
        """Validates the settings, with those of speculation or without speculation. Raises: ConfigError."""
        drafting = self.speculation if speculates else ("speculation=off",)
        return validate_settings(*compose_settings((*self.search, *self.models, *drafting)))


def draw_settings(seed: int, number: int, dtype: str) -> DrawnSettings:
    """Draws case `number` of a seed; the engines compute in `dtype`."""
    dice = random.Random(f"{seed}:{number // CASES_PER_MODELS}:models")
    models = _draw_valid(lambda: _draw_models(dice, dtype))
    dice = random.Random(f"{seed}:{number}")
    return _draw_valid(lambda: _draw_search(dice, models))


def _draw_valid(draw: Callable[[], DrawnSettings]) -> DrawnSettings:
    """Draws until the settings fit together."""
    for _ in range(1000):
        drawn = draw()
        try:
            drawn.build_spec(speculates=False)
            drawn.build_spec(speculates=True)
        except ConfigError:
            continue
        return drawn
    raise AssertionError("1000 draws in a row excluded each other")


def _draw_models(dice: random.Random, dtype: str) -> DrawnSettings:
    scorer, router = dice.choice(SCORERS), dice.choice(["off"] * 5 + list_options("router"))
    models = [f"scorer={scorer}", f"router={router}", f"engine.dtype={dtype}", "engine.kv_mib=64"]
    # hidden states of two models cannot be compared
    excluded = NEEDS_A_CHECKPOINT if router == "off" else {*NEEDS_A_CHECKPOINT, "hidden_states"}
    models.append(f"embedder={dice.choice([e for e in list_options('embedder') if e not in excluded])}")
    if scorer != "likelihood":
        models += [f"scorer.dtype={dice.choice(('float64', dtype))}", "scorer.kv_mib=64"]
    if router not in ("off", "target_only"):
        models += [f"small.dtype={dtype}", "small.kv_mib=64"]
    if "dtype" in load_option("router", router):
        models.append(f"router.dtype={dtype}")
    drafters = [drafter for drafter in list_options("speculation") if drafter != "off"]
    is_greedy = dice.random() < 0.2  # at temperature 0 most rules accept the same tokens
    rules = [rule for rule in list_options("acceptance") if rule not in LOSSY_RULES]
    speculation = [
        f"speculation={dice.choice(drafters)}",
        f"controller={dice.choice(list_options('controller'))}",
        f"acceptance={dice.choice(rules) if is_greedy else 'coupled'}",
        f"engine.max_batched_tokens={dice.choice((1024, 256))}",
        f"engine.max_running_requests={dice.choice((256, 4))}",
    ]
    search = ("search.sampling.temperature=0",) if is_greedy else ()
    return DrawnSettings(search, tuple(models), tuple(speculation))


def _draw_search(dice: random.Random, models: DrawnSettings) -> DrawnSettings:
    name = dice.choice(list(KNOBS))
    by_steps = name not in WHOLE_SOLUTIONS
    knobs = {**(STEP_SEARCH if by_steps else {}), **KNOBS[name]}
    search = [f"search={name}", *(f"search.{knob}={_spell(dice.choice(values))}" for knob, values in knobs.items())]
    search += [f"search.sampling.{knob}={_spell(dice.choice(values))}" for knob, values in SAMPLING.items()]
    search += [f"seed={dice.randrange(10**6)}", "+task=synthetic", f"task.seed={dice.randrange(10**6)}"]
    search += [f"task.difficulty=[1,{dice.choice((1, 2, 3))}]", f"task.size={NUM_PROBLEMS}", "concurrency=8"]
    if dice.random() < 0.15:
        limit = dice.choice(list(BUDGETS))
        search.append(f"budget.{limit}={dice.choice(BUDGETS[limit])}")
    return DrawnSettings((*search, *models.search), models.models, models.speculation)


def _spell(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
