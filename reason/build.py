"""From settings to a solver: cheap things are made and checked first, models loaded last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from decoding.core import Engine
from decoding.validation import is_count
from reason.config import plugins
from reason.config.compose import complaints, composed, make, member, members, resolved
from reason.config.errors import ConfigError, unknown_key
from reason.config.versions import versions
from reason.engines import spec as engines
from reason.engines import speculation
from reason.engines.spec import EnginePlan
from reason.engines.speculation import SpeculationPlan
from reason.models.checkpoint import Checkpoint, find_model, load_tokenizer
from reason.problem import Problem
from reason.prompt import Prompt, PromptFormat
from reason.routing import spec as router
from reason.routing.engine import Arbitrage
from reason.routing.spec import RouterPlan
from reason.runs.resume import HARMLESS
from reason.scorers.base import Scorer
from reason.scorers.embedders.base import Embedder
from reason.scorers.none import NoScorer
from reason.scorers.prm import PrmScorer
from reason.solver import Solver
from reason.tasks.base import Task
from search.strategy import Budget, Strategy

GROUPS = ("search", "scorer", "embedder", "engine", "model", "router", "draft", "budget", *speculation.GROUPS)
SETTINGS = {*GROUPS, "task", "question", "limit", "seed", "concurrency", "scorer_timeout", "resume", "plugins"}


@dataclass(frozen=True)
class Plan:
    """Checked settings: everything but the models exists. `names` says what runs, for people and rows."""

    strategy: Strategy
    scorer: Scorer
    embedder: Embedder | None
    form: PromptFormat
    checkpoint: Checkpoint
    engine: EnginePlan
    budget: Budget
    speculation: SpeculationPlan
    routing: RouterPlan | None
    names: dict[str, str]
    config: dict[str, Any]

    @property
    def digest(self) -> str:
        """Tells settings apart that may give different rows."""
        kept = {key: value for key, value in self.config.items() if key not in HARMLESS}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]

    def stamp(self, task: Task, stands_in_for: str | None) -> dict[str, Any]:
        """What every row says of its run: what was solved with what, seed, settings and versions."""
        names = {"task": task.name} | ({"stands_in_for": stands_in_for} if stands_in_for else {}) | self.names
        return {**names, "seed": self.config["seed"], "config": self.digest, "versions": versions()}

    def open(self, task: Task | None = None) -> Solver:
        """Load the models; `task` says how answers are found. Raises: ConfigError where a setting is to blame."""
        source = self.checkpoint.source
        self.engine.knock()
        if self.routing is not None:
            self.routing.draft.knock()
        with complaints("model.path"):
            tokenizer = load_tokenizer(source)
        with complaints("model.prompt"):
            prompt = Prompt(self.form, tokenizer)
        with complaints("scorer"):
            self.scorer.load(writer=tokenizer)
        if self.embedder is not None:
            with complaints("embedder"):
                self.embedder.load()
        writer = self.engine.open(self.checkpoint, tokenizer=tokenizer, speculation=self.speculation.parts)
        engine: Engine | Arbitrage = writer
        if self.routing is not None:
            engine = self.routing.engine(
                writer,
                tokenizer=tokenizer,
                prompt=prompt,
                # a small model that guesses for the large one has nothing to guess for itself
                speculation=None if self.speculation.loads_a_model else self.speculation.parts,
            )
        return Solver(
            strategy=self.strategy,
            engine=engine,
            scorer=self.scorer,
            scorer_timeout=self.config["scorer_timeout"],
            embedder=self.embedder,
            prompt=prompt,
            budget=self.budget,
            seed=self.config["seed"],
            concurrency=self.config["concurrency"],
            window=self.checkpoint.window,
            **({} if task is None else {"find": task.find}),
        )


def load(*overrides: str) -> Solver:
    """A solver from the names and settings of the command line.

    >>> import reason
    >>> reason.load("search=best_of_m")                                          # doctest: +ELLIPSIS
    Traceback (most recent call last):
    reason.config.errors.ConfigError: there is no search=best_of_m (did you mean best_of_n?); choose one of: astar, ...

    Raises: ConfigError naming the setting.
    """
    return check(*composed(overrides)).open()


def from_config(cfg: Any) -> Solver:
    """A solver from a `DictConfig` composed of `conf/solve.yaml`. Raises: ConfigError naming the setting."""
    return check(resolved(cfg), {}).open()


def check(config: dict[str, Any], choices: Mapping[str, str]) -> Plan:
    """Everything that can be known without loading a model. Raises: ConfigError naming the setting."""
    _check_shape(config)
    _check_effort(choices)
    plugins.load(config.get("plugins", []))
    engine = engines.check("engine", config["engine"])
    strategy: Strategy = make("search", config["search"])
    form: PromptFormat = make("model.prompt", config["model"]["prompt"])
    scorer: Scorer = make("scorer", config["scorer"])
    with complaints("budget"):
        budget = Budget(**config["budget"])
    if strategy.needs_scorer and isinstance(scorer, NoScorer):
        raise ConfigError(
            f"search={choices.get('search', type(strategy).__name__)} chooses by score and scorer=none gives none; "
            "choose scorer=prm or scorer=likelihood, or search=self_consistency"
        )
    embedder = _embedder(config, choices) if strategy.needs_embedder else None
    checkpoint = find_model(config["model"]["path"])
    with complaints("scorer"):
        scorer.check()
        if isinstance(scorer, PrmScorer):
            scorer.check_writer(checkpoint)
    speculative = speculation.check(config)
    if engine.servers is not None:
        _check_served(config, choices, embedder)
    engine = engine.fit(
        checkpoint,
        form=form,
        scorer=scorer,
        sampling=getattr(strategy, "sampling", None),
        goes_on=_goes_on(strategy, choices),
    )
    routing = router.check(config, scorer, checkpoint, form)
    names = _names(config, choices)
    return Plan(strategy, scorer, embedder, form, checkpoint, engine, budget, speculative, routing, names, config)


def task_of(plan: Plan, choices: Mapping[str, str]) -> tuple[Task, str | None]:
    """What to solve, and the name of the task it stands in for, if it does. Raises: ConfigError.

    A question; else the chosen task, or the bundled set that the model names as its stand-in (a file of
    one's own is never replaced); else the model's default task.
    """
    question, model, node = plan.config["question"], plan.config["model"], plan.config.get("task")
    if question is not None:
        if node is not None:
            raise ConfigError("question and task are both set; give one of them")
        with complaints("question"):
            return Task("question", [Problem.ask(str(question))]), None
    if node is None:
        if model["default_task"] is None:
            raise ConfigError(f"say what to solve: question=... or +task=...; tasks are: {', '.join(members('task'))}")
        return make("task", member("task", model["default_task"])), None
    asked = choices.get("task", "")
    stand_in = model["stand_in"].get(asked)
    if stand_in is None or node.get("path") is not None:
        return make("task", node), None
    default = member("task", stand_in)
    kept = {key: node[key] for key in default if key != "_target_" and node.get(key) is not None}
    return make("task", default | kept), asked


def _embedder(config: Mapping[str, Any], choices: Mapping[str, str]) -> Embedder:
    embedder: Embedder = make("embedder", config["embedder"])
    with complaints("embedder"):
        embedder.check()
    if embedder.wants_hidden and choices.get("router", "off") != "off":
        raise ConfigError(
            "embedder=hidden_states cannot compare the steps of two models, which router="
            f"{choices['router']} has; choose embedder=words or embedder=sentence_transformers"
        )
    return embedder


def _goes_on(strategy: Strategy, choices: Mapping[str, str]) -> str | None:
    """What makes engines go on with what they wrote, in the words it was set with; None if nothing does."""
    if choices.get("router", "off") != "off":
        return f"router={choices['router']}"
    return f"search={choices.get('search', type(strategy).__name__)}" if strategy.by_steps else None


def _check_served(config: Mapping[str, Any], choices: Mapping[str, str], embedder: Embedder | None) -> None:
    """Raises: ConfigError for what only an engine in this process can do."""
    engine = choices.get("engine", "sglang")
    if config["speculation"] != member("speculation", "off"):
        raise ConfigError(
            f"speculation={choices.get('speculation', 'stand')} guesses inside engine=local; with engine={engine} "
            "leave speculation=off: a server guesses if it was started so"
        )
    if embedder is not None and embedder.wants_hidden:
        raise ConfigError(
            f"embedder={choices.get('embedder', 'hidden_states')} needs hidden states, which engine={engine} does not "
            "give; choose embedder=words or embedder=sentence_transformers"
        )


def _check_shape(config: Mapping[str, Any]) -> None:
    for key in config.keys() - SETTINGS:
        raise ConfigError(unknown_key(key, SETTINGS))
    for group in GROUPS:
        if not isinstance(config.get(group), dict):
            raise ConfigError(f"{group} is not set; choose {group}=..., it cannot be left out")
    for key, at_least in (("seed", 0), ("concurrency", 1), ("limit", 1)):
        if not is_count(config[key], at_least=at_least) and not (key == "limit" and config[key] is None):
            raise ConfigError(f"{key} must be an int >= {at_least}, got {config[key]!r}")
    timeout = config["scorer_timeout"]
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0):
        raise ConfigError(f"scorer_timeout must be a number of seconds > 0 or null, got {timeout!r}")


def _check_effort(choices: Mapping[str, str]) -> None:
    effort = choices.get("effort")
    if effort in (None, "None"):  # Hydra's word for a group that is not chosen, and the same as text
        return
    search = composed([f"effort={effort}"])[1]["search"]
    if choices["search"] != search:
        raise ConfigError(f"effort={effort} is search={search}; leave out search={choices['search']}, or effort")


def _names(config: Mapping[str, Any], choices: Mapping[str, str]) -> dict[str, str]:
    groups = ("search", "scorer", "engine", "speculation", "router")
    names = {group: choices.get(group, config[group]["_target_"]) for group in groups}
    paths = {f"{group}_path": config[group]["path"] for group in ("model", "scorer") if config[group].get("path")}
    return {"model": str(config["model"]["name"]), **names, **paths}
