"""Turns settings into a solver: cheap objects are made and validated first, models load last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from decoding.validation import MAX_INT, require_count, require_positive, require_text
from reason.config import plugins
from reason.config.compose import (
    Settings,
    as_config_error,
    compose_settings,
    instantiate,
    list_options,
    load_option,
    resolve_settings,
)
from reason.config.errors import ConfigError, unknown_key
from reason.config.versions import collect_versions
from reason.engines import speculation
from reason.engines.spec import EngineSpec, validate_engine
from reason.engines.speculation import SpeculationSpec
from reason.models.checkpoint import Checkpoint, find_model, load_tokenizer
from reason.problem import Problem
from reason.prompt import Prompt, PromptFormat
from reason.routing import spec as routing
from reason.routing.spec import RouterSpec
from reason.runs.resume import hash_settings
from reason.scorers.base import LoadableEmbedder, Scorer
from reason.solver import Solver
from reason.tasks.base import Task
from reason.thinking import ThinkingFormat
from search.steps import StepRule
from search.strategy import Budget, Strategy

GROUPS = ("search", "step", "scorer", "embedder", "engine", "model", "router", "small", "budget", *speculation.GROUPS)
SETTINGS = {*GROUPS, "task", "question", "limit", "seed", "concurrency", "scorer_timeout", "resume", "plugins"}


@dataclass(frozen=True)
class SolveSpec:
    """Validated settings of a solver: every object exists except the models.

    names           the options by group, for result rows
    lossy_settings  settings under which text is not distributed as the target model's, such as `router=arbitrage`
    """

    strategy: Strategy
    scorer: Scorer
    embedder: LoadableEmbedder | None
    prompt_format: PromptFormat
    step_rule: StepRule | None
    thinking: ThinkingFormat | None
    checkpoint: Checkpoint
    engine: EngineSpec
    budget: Budget
    speculation: SpeculationSpec
    routing: RouterSpec | None
    names: dict[str, str]
    lossy_settings: tuple[str, ...]
    config: Settings

    @property
    def config_hash(self) -> str:
        """A hash of the settings that can change a row: equal hashes mean that rows may be compared."""
        return hash_settings(self.config)

    def run_metadata(self, task: Task, stands_in_for: str | None) -> dict[str, object]:
        """Returns what every row repeats of its run: options, seed, the settings' hash, versions, and what is lossy."""
        names = {"task": task.name} | ({"stands_in_for": stands_in_for} if stands_in_for else {}) | self.names
        lossy = {"lossy": ", ".join(self.lossy_settings)} if self.lossy_settings else {}
        return {
            **names,
            **lossy,
            "seed": self.config["seed"],
            "config": self.config_hash,
            "versions": collect_versions(),
        }

    def load_solver(self, task: Task | None = None) -> Solver:
        """Loads the models and returns the solver; `task` finds answers in texts. Raises: ConfigError."""
        source = self.checkpoint.source
        # Servers first: it takes a second to know that one is down, and minutes to load a model for nothing.
        self.engine.ping()
        if self.routing is not None:
            self.routing.small.ping()
        with as_config_error("model.path"):
            tokenizer = load_tokenizer(source)
        with as_config_error("model.prompt"):
            tags = () if self.thinking is None else (self.thinking.opening, self.thinking.closing)
            prompt = Prompt(self.prompt_format, tokenizer, tags)
        with as_config_error("scorer"):
            self.scorer.load(writer=tokenizer)
        if self.embedder is not None:
            with as_config_error("embedder"):
                self.embedder.load()
        target = self.engine.open_engine(
            self.checkpoint, tokenizer=tokenizer, speculation=self.speculation.make_speculation
        )
        router = None
        if self.routing is not None:
            router = self.routing.open_routed_engine(
                target,
                tokenizer=tokenizer,
                prompt=prompt,
                # The small model does not draft tokens for itself where it already drafts them for the large one.
                speculation=None if self.speculation.loads_a_model else self.speculation.make_speculation,
            )
        return Solver(
            strategy=self.strategy,
            engine=target,
            router=router,
            scorer=self.scorer,
            scorer_timeout=self.config["scorer_timeout"],
            embedder=self.embedder,
            prompt=prompt,
            step_rule=self.step_rule,
            budget=self.budget,
            seed=self.config["seed"],
            concurrency=self.config["concurrency"],
            context_window=self.checkpoint.context_window,
            thinking=self.thinking,
            ends_thoughts=self.engine.settings.continues_text,
            **({} if task is None else {"find_answer": task.find}),
        )


def load(*overrides: str) -> Solver:
    """Returns a solver for the options and settings of the command line.

    >>> import reason
    >>> reason.load("search=best_of_m")                                          # doctest: +ELLIPSIS
    Traceback (most recent call last):
    reason.config.errors.ConfigError: there is no search=best_of_m (did you mean best_of_n?); choose one of: astar, ...

    Raises: ConfigError naming the setting.
    """
    return validate_settings(*compose_settings(overrides)).load_solver()


def from_config(cfg: object) -> Solver:
    """Returns a solver for a `DictConfig` composed of `conf/solve.yaml`. Raises: ConfigError naming the setting."""
    return validate_settings(resolve_settings(cfg), {}).load_solver()


def validate_settings(config: Settings, choices: Mapping[str, str]) -> SolveSpec:
    """Validates everything that needs no loaded model. Raises: ConfigError naming the setting."""
    _validate_keys(config)
    _validate_effort(choices)
    plugins.load_plugins(config.get("plugins", []))
    engine = validate_engine("engine", config["engine"])
    strategy: Strategy = instantiate("search", config["search"])
    prompt_format: PromptFormat = instantiate("model.prompt", config["model"]["prompt"])
    # None in a run of the last release, which has no such group: the solver ends steps at the prompt's delimiter
    step_rule: StepRule | None = instantiate("step", config["step"]) if "step" in config else None
    thinking = _make_thinking(config["model"].get("thinking"))
    scorer: Scorer = instantiate("scorer", config["scorer"])
    with as_config_error("budget"):
        budget = Budget(**config["budget"])
    if strategy.needs_scorer and not scorer.gives_scores:
        raise ConfigError(
            f"search={_option_name(choices, strategy)} chooses by score and scorer=none gives none; "
            "choose scorer=prm or scorer=likelihood, or search=self_consistency"
        )
    embedder = _make_embedder(config, choices) if strategy.needs_embedder else None
    checkpoint = find_model(config["model"]["path"])
    with as_config_error("scorer"):
        scorer.validate()
        scorer.validate_writer(checkpoint)
    speculative = speculation.validate_speculation(config)
    if engine.is_remote:
        _validate_remote(config, choices, embedder)
    engine = engine.adapt_to(
        checkpoint,
        prompt_format=prompt_format,
        thinking=thinking,
        scorer=scorer,
        sampling=getattr(strategy, "sampling", None),  # a plug-in strategy need not have it
        continued_by=_continued_by(strategy, choices),
    )
    if thinking is not None and thinking.think_tokens is not None and not engine.settings.continues_text:
        raise ConfigError(
            "model.thinking.think_tokens puts in a text, and engine.api=chat begins every answer anew; "
            "choose engine.prefill=true if the server can continue an answer, or leave think_tokens null"
        )
    router = routing.validate_routing(config, scorer, checkpoint, prompt_format, thinking)
    names = _option_names(config, choices)
    return SolveSpec(
        strategy=strategy,
        scorer=scorer,
        embedder=embedder,
        prompt_format=prompt_format,
        step_rule=step_rule,
        thinking=thinking,
        checkpoint=checkpoint,
        engine=engine,
        budget=budget,
        speculation=speculative,
        routing=router,
        names=names,
        lossy_settings=_lossy_settings(names, speculative, router),
        config=config,
    )


def select_task(spec: SolveSpec, choices: Mapping[str, str]) -> tuple[Task, str | None]:
    """Returns the task to solve, and the name of the task that it stands in for, or None. Raises: ConfigError.

    In this order: the question; the chosen task, or the bundled set that the model declares as its stand-in (never for
    a file of the user); the model's default task.
    """
    question, model, node = spec.config["question"], spec.config["model"], spec.config.get("task")
    if question is not None:
        if node is not None:
            raise ConfigError("question and task are both set; give one of them")
        with as_config_error("question"):
            return Task("question", [Problem.from_question(str(question))]), None
    if node is None:
        if model["default_task"] is None:
            options = ", ".join(list_options("task"))
            raise ConfigError(f"nothing to solve: set question=... or +task=...; tasks are: {options}")
        return instantiate("task", load_option("task", model["default_task"])), None
    chosen = choices.get("task", "")
    stand_in = model["stand_in"].get(chosen)
    if stand_in is None or node.get("path") is not None:
        return instantiate("task", node), None
    default = load_option("task", stand_in)
    shared = {key: node[key] for key in default if key != "_target_" and node.get(key) is not None}
    return instantiate("task", default | shared), chosen


def _make_thinking(node: Mapping[str, object] | None) -> ThinkingFormat | None:
    """Returns the format of the model's thoughts; None for the preset `none`."""
    if not node:
        return None
    if not isinstance(node, Mapping) or "_target_" not in node:
        options = ", ".join(list_options("thinking"))
        raise ConfigError(f"model.thinking needs a preset first: thinking@model.thinking=PRESET, one of {options}")
    thinking: ThinkingFormat = instantiate("model.thinking", node)
    return thinking


def _make_embedder(config: Settings, choices: Mapping[str, str]) -> LoadableEmbedder:
    embedder: LoadableEmbedder = instantiate("embedder", config["embedder"])
    with as_config_error("embedder"):
        embedder.validate()
    if embedder.needs_hidden_states and choices.get("router", "off") != "off":
        raise ConfigError(
            "embedder=hidden_states cannot compare the steps of two models, which router="
            f"{choices['router']} has; choose embedder=words or embedder=sentence_transformers"
        )
    return embedder


def _continued_by(strategy: Strategy, choices: Mapping[str, str]) -> str | None:
    """The setting that makes requests continue earlier output; None if none does."""
    if choices.get("router", "off") != "off":
        return f"router={choices['router']}"
    return f"search={_option_name(choices, strategy)}" if strategy.by_steps else None


def _validate_remote(config: Settings, choices: Mapping[str, str], embedder: LoadableEmbedder | None) -> None:
    """Raises ConfigError for settings that only an engine in this process can follow."""
    engine = choices.get("engine", "sglang")
    if config["speculation"] != load_option("speculation", "off"):
        raise ConfigError(
            f"speculation={choices.get('speculation', 'stand')} drafts inside engine=local; with engine={engine} "
            "leave speculation=off: a server speculates if it was started with speculation"
        )
    if embedder is not None and embedder.needs_hidden_states:
        raise ConfigError(
            f"embedder={choices.get('embedder', 'hidden_states')} needs hidden states, which engine={engine} does not "
            "give; choose embedder=words or embedder=sentence_transformers"
        )


def _validate_keys(config: Settings) -> None:
    for key in config.keys() - SETTINGS:
        raise ConfigError(unknown_key(key, SETTINGS))
    for group in GROUPS:
        if not isinstance(config.get(group), dict):
            raise ConfigError(f"{group} is not set; choose {group}=..., it cannot be left out")
    with as_config_error():
        require_text("", config)
        require_count("seed", config["seed"], at_most=MAX_INT)
        require_count("concurrency", config["concurrency"], at_least=1)
        require_count("limit", config["limit"], at_least=1, at_most=MAX_INT, or_null=True)
        if config["scorer_timeout"] is not None:
            require_positive("scorer_timeout", config["scorer_timeout"])


def _validate_effort(choices: Mapping[str, str]) -> None:
    effort = choices.get("effort")
    if effort in (None, "None"):  # Hydra writes a group without a choice as the text None
        return
    search = compose_settings([f"effort={effort}"])[1]["search"]
    if choices["search"] != search:
        raise ConfigError(f"effort={effort} is search={search}; leave out search={choices['search']}, or effort")


def _lossy_settings(
    names: Mapping[str, str], speculative: SpeculationSpec, router: RouterSpec | None
) -> tuple[str, ...]:
    routing_setting = None if router is None else f"router={names['router']}"
    return tuple(setting for setting in (speculative.lossy, routing_setting) if setting is not None)


def _option_name(choices: Mapping[str, str], strategy: Strategy) -> str:
    return choices.get("search", type(strategy).__name__)


def _option_names(config: Settings, choices: Mapping[str, str]) -> dict[str, str]:
    groups = ("search", "scorer", "engine", "speculation", "router")
    names = {group: choices.get(group, config[group]["_target_"]) for group in groups}
    paths = {f"{group}_path": config[group]["path"] for group in ("model", "scorer") if config[group].get("path")}
    return {"model": str(config["model"]["name"]), **names, **paths}
