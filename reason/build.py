"""Turns settings into a solver: cheap objects are made and validated first, models load last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from decoding.core import Engine
from decoding.kv.eviction.policy import EvictionPolicy
from decoding.validation import (
    MAX_INT,
    require_choice,
    require_count,
    require_package,
    require_positive,
    require_share,
    require_text,
    shorten,
)
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
from reason.config.functions import function_overrides
from reason.config.versions import collect_versions
from reason.engines import speculation
from reason.engines.spec import EngineSpec, validate_engine
from reason.engines.speculation import SpeculationSpec
from reason.models.byte_tokenizer import BYTES
from reason.models.checkpoint import Checkpoint, eos_ids, find_model, load_tokenizer
from reason.models.loading import announce, paused_collector
from reason.problem import Problem, Solution
from reason.prompt import Prompt, PromptFormat
from reason.routing import spec as routing
from reason.routing.judge_spec import JudgeSpec, validate_judge, validate_verifier
from reason.routing.spec import RouterSpec
from reason.runs.allocation import SampleAllocation
from reason.runs.notebook import register_display
from reason.runs.papers.spec import read_paper
from reason.runs.resume import flatten_settings, hash_settings
from reason.runs.sample_rounds import require_divisible
from reason.scorers.base import ComparingScorer, LoadableEmbedder, Scorer
from reason.scorers.embedders.hidden_states import HiddenStateEmbedder
from reason.scorers.judge_model import AskingScorer, JudgeModel
from reason.scorers.part import PARTS
from reason.scorers.thought_verifier import YES_NO, ThoughtVerifier
from reason.solver import Solver
from reason.tasks.base import Task
from reason.thinking import ThinkingFormat
from reason.trust import TrustRule
from search.probes import EarlyExit
from search.steps import StepRule
from search.strategy import Budget, Strategy
from search.voting import TOURNAMENT

GROUPS = (
    "search",
    "step",
    "early_exit",
    "scorer",
    "embedder",
    "engine",
    "model",
    "router",
    "small",
    "budget",
    *speculation.GROUPS,
)
SCORING = ("scorer_reads", "scorer_window", "scorer_timeout", "trusted_score")
COMPARED = ("search", "step", "early_exit", "eviction", "budget")
"""Groups whose settings are in every row."""
SETTINGS = {
    *GROUPS,
    "eviction",  # a run of the last release has none
    "allocation",
    "auto",
    "task",
    "question",
    "limit",
    "seed",
    "concurrency",
    *SCORING,
    "resume",
    "plugins",
    "paper",
    "log_to",
}


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
    early_exit: EarlyExit | None
    eviction: EvictionPolicy | None
    checkpoint: Checkpoint
    engine: EngineSpec
    budget: Budget
    speculation: SpeculationSpec
    routing: RouterSpec | None
    judge: JudgeSpec | None
    verifier: JudgeSpec | None
    allocation: SampleAllocation | None
    names: dict[str, str]
    lossy_settings: tuple[str, ...]
    config: Settings

    @property
    def config_hash(self) -> str:
        """A hash of the settings that can change a row: equal hashes mean that rows may be compared."""
        return hash_settings(self.config)

    def run_metadata(self, task: Task, stands_in_for: str | None) -> dict[str, object]:
        """Returns what every row repeats of its run: options, settings and their hash, versions, and what is lossy.

        The settings are those that runs are compared by; `run.json` has all.
        """
        names = {"task": task.name} | ({"stands_in_for": stands_in_for} if stands_in_for else {}) | self.names
        lossy = {"lossy": ", ".join(self.lossy_settings)} if self.lossy_settings else {}
        compared = COMPARED if self.allocation is None else (*COMPARED, "allocation")
        return {
            **names,
            **lossy,
            "seed": self.config["seed"],
            "config": self.config_hash,
            "settings": {
                key: value
                # a run of the last release has no eviction
                for key, value in flatten_settings({key: self.config.get(key, {}) for key in compared}).items()
                if not key.endswith("._target_") and ".templates." not in key
            },
            "versions": collect_versions(),
        }

    def load_solver(self, task: Task | None = None, *, allocates: bool = False) -> Solver:
        """Loads the models and returns the solver; `task` finds answers in texts.

        `allocates` says that the caller divides samples among problems as `allocation` says; a solver alone does not.

        Raises: ConfigError.
        """
        if self.allocation is not None and not allocates:
            raise ConfigError(
                "allocation.samples is divided among the problems of a run, by `reason solve` and `reason bench "
                "evaluate`; leave it null here"
            )
        with paused_collector():
            return self._load_solver(task)

    def _load_solver(self, task: Task | None) -> Solver:
        source = self.checkpoint.source
        # Servers first: it takes a second to know that one is down, and minutes to load a model for nothing.
        self.engine.ping()
        if self.routing is not None:
            self.routing.small.ping()
        for judge in (self.judge, self.verifier):
            if judge is not None and judge.small is not None:
                judge.small.ping()
        with announce("loading the tokenizer"), as_config_error("model.path"):
            tokenizer = load_tokenizer(source)
        with as_config_error("model.prompt"):
            tags = () if self.thinking is None else self.thinking.tags
            prompt = Prompt(self.prompt_format, tokenizer, tags)
        if self.verifier is not None:
            self.verifier.require_words(prompt, YES_NO, "early_exit.verifier", "early_exit.verifier")
        elif self.early_exit is not None:
            self._validate_probe(self.early_exit, len(prompt.encode_continuation(self.early_exit.probe)))
        loading = announce(f"loading scorer {self.names['scorer']}") if self.scorer.gives_scores else nullcontext()
        with loading, as_config_error("scorer"):
            self.scorer.load(writer=tokenizer)
        if self.embedder is not None:
            with as_config_error("embedder"):
                self.embedder.load()
        target = self.engine.open_engine(
            self.checkpoint,
            tokenizer=tokenizer,
            speculation=self.speculation.make_speculation,
            eviction=self.eviction,
        )
        router = None
        if self.routing is not None:
            router = self.routing.open_routed_engine(
                target,
                tokenizer=tokenizer,
                prompt=prompt,
                # The small model does not draft tokens for itself where it already drafts them for the large one.
                # And it remembers nothing: a folder keeps the tables of one model.
                speculation=None
                if self.speculation.loads_a_model
                else replace(self.speculation, memory=None).make_speculation,
            )
        judge_model = self._give_judge_its_model(target, prompt)
        return Solver(
            strategy=self.strategy,
            engine=target,
            router=router,
            scorer=self.scorer,
            scorer_timeout=self.config["scorer_timeout"],
            scorer_reads=self.config.get("scorer_reads", "thought"),  # a run of the last release has neither of the two
            scorer_window=self.config.get("scorer_window", 4096),
            embedder=self.embedder,
            prompt=prompt,
            step_rule=self.step_rule,
            budget=self.budget,
            seed=self.config["seed"],
            concurrency=self.config["concurrency"],
            context_window=self.checkpoint.context_window,
            end_tokens=eos_ids(source, tokenizer),
            thinking=self.thinking,
            ends_thoughts=self.engine.settings.continues_text,
            early_exit=self.early_exit,
            verifier=self._open_verifier(target, prompt, judge_model),
            trust=self._make_trust(),
            **({} if task is None else {"find_answer": task.find}),
        )

    def join_solver(self, solver: Solver) -> Solver:
        """Returns a solver that shares engine and models with `solver` and has this spec's scorer, which loads none.

        Raises: ConfigError where the scorer cannot ask this model.
        """
        self._give_judge_its_model(solver.engine, solver.prompt)
        return solver.with_options(scorer=self.scorer, trust=self._make_trust())

    def _give_judge_its_model(self, target: Engine, prompt: Prompt) -> JudgeModel | None:
        if self.judge is None or not isinstance(self.scorer, AskingScorer):
            return None
        with as_config_error("scorer"):
            model = self.judge.open_judge(target, self.engine, prompt)
            self.scorer.use_model(model)
            return model

    def _open_verifier(self, target: Engine, prompt: Prompt, judge_model: JudgeModel | None) -> ThoughtVerifier | None:
        """Returns the model that reads thoughts; a small one that the scorer asks too is loaded once."""
        if self.verifier is None:
            return None
        is_small = self.verifier.small is not None
        if judge_model is not None and is_small and self.judge is not None and self.judge.small is not None:
            return ThoughtVerifier(model=judge_model, is_small=True)
        model = self.verifier.open_judge(target, self.engine, prompt)
        return ThoughtVerifier(model=model, is_small=is_small)

    def _make_trust(self) -> TrustRule:
        # a run of the last release has no such setting
        return TrustRule(self.config.get("trusted_score"), getattr(self.scorer, "judges_solutions", False))

    def _validate_probe(self, rule: EarlyExit, num_tokens: int) -> None:
        """Raises ConfigError where a probe of so many tokens, with its answer, does not fit the model's window."""
        window = self.checkpoint.context_window
        if window is not None and num_tokens + rule.probe_tokens >= window:
            raise ConfigError(
                f"early_exit.probe has {num_tokens} tokens, and with early_exit.probe_tokens={rule.probe_tokens} for "
                f"the answer it does not fit the model's window of {window}"
            )


def load(
    *overrides: str,
    scorer: Callable[..., Any] | None = None,
    engine: Callable[..., Any] | None = None,
    judge: Callable[..., Any] | None = None,
) -> Solver:
    """Returns a solver for the options and settings of the command line.

    Plain functions take the place of options, and settings of them stay settings:

    scorer  `score(question, steps)` returns a number from 0 to 1, or one for each step; as scorer=function
    engine  `write(messages, temperature=, max_tokens=, stop=, seed=)` returns the text of an answer; as engine=function
    judge   a function like `engine`, which is asked whether a solution is right; as scorer=judge scorer.model=small

    >>> import reason
    >>> question = "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3."
    >>> with reason.load("search.n=16", scorer=lambda question, steps: float("{15}" in steps[-1])) as solver:
    ...     solver.solve(question).answer
    '15'
    >>> reason.load("search=best_of_m")                                          # doctest: +ELLIPSIS
    Traceback (most recent call last):
    reason.config.errors.ConfigError: there is no search=best_of_m (did you mean best_of_n?); choose one of: ...

    Raises: ConfigError naming the setting.
    """
    for override in overrides:
        if not isinstance(override, str):
            raise ConfigError(f"load takes settings as texts, load('search.n=4', ...), got {shorten(override)}")
    register_display()
    given = function_overrides(overrides, scorer=scorer, engine=engine, judge=judge)
    return validate_settings(*compose_settings(given)).load_solver()


def solve(question: str | Problem, *overrides: str, **functions: Callable[..., Any] | None) -> Solution:
    """Loads the models, solves one problem and frees them; for more than one, `load` a solver. Functions are as there.

    >>> import reason
    >>> question = "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3."
    >>> reason.solve(question, "search.n=16").answer
    '15'

    Raises: ConfigError naming the setting.
    """
    with load(*overrides, **functions) as solver:
        return solver.solve(question)


async def asolve(question: str | Problem, *overrides: str, **functions: Callable[..., Any] | None) -> Solution:
    """Awaits what `solve` returns; the models are loaded in another thread."""
    solver = await asyncio.to_thread(load, *overrides, **functions)
    try:
        return await solver.asolve(question)
    finally:
        await asyncio.to_thread(solver.close)


def from_config(cfg: object) -> Solver:
    """Returns a solver for a `DictConfig` composed of `conf/solve.yaml`. Raises: ConfigError naming the setting."""
    return validate_settings(resolve_settings(cfg), {}).load_solver()


def validate_settings(config: Settings, choices: Mapping[str, str]) -> SolveSpec:
    """Validates everything that needs no loaded model. Raises: ConfigError naming the setting."""
    _validate_keys(config)
    _refuse_auto(config)
    _validate_effort(choices)
    with as_config_error("paper"):
        if read_paper(config.get("paper")) is not None:
            require_package("the interval beside a paper's figure", "scipy")
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
            f"search={_option_name(choices, strategy)} chooses by score and {_name_scoreless(choices, scorer)} gives "
            f"none; choose {_advise_scores(config, choices, engine)}"
        )
    if strategy.select == TOURNAMENT and not (isinstance(scorer, ComparingScorer) and scorer.tournament):
        raise ConfigError(
            f"search.select={TOURNAMENT} has a judge compare solutions, and "
            f"scorer={choices.get('scorer', type(scorer).__name__)} is none; choose scorer=judge (with "
            "scorer.judges=pairs it only compares), or scorer=ensemble with judge among its members"
        )
    if config.get("scorer_reads") == "answer" and thinking is not None and strategy.by_steps and strategy.needs_scorer:
        raise ConfigError(
            f"scorer_reads=answer gives the steps of a thought no score, and search={_option_name(choices, strategy)} "
            "chooses among them by score; choose scorer_reads=window or thought, or search=best_of_n"
        )
    if getattr(strategy, "needs_logprobs", False) and not engine.settings.gives_logprobs:
        raise ConfigError(
            f"search={_option_name(choices, strategy)} with these settings reads log-probabilities; "
            "set engine.logprobs=true"
        )
    if getattr(strategy, "names_top", False) and not engine.settings.names_tokens:
        raise ConfigError(
            f"search={_option_name(choices, strategy)} chooses among the most likely tokens, and "
            f"engine={choices.get('engine', 'local')} does not say which these are; choose engine=local"
        )
    embedder = _make_embedder(config, choices) if strategy.needs_embedder else None
    checkpoint = find_model(config["model"]["path"])
    with as_config_error("scorer"):
        scorer.validate()
        scorer.validate_writer(checkpoint)
    speculative = speculation.validate_speculation(config)
    if engine.is_remote:
        _validate_remote(config, choices, embedder)
    eviction = _make_eviction(config, choices, engine)
    num_top, measured_for = _find_measured(strategy, scorer, step_rule, choices)
    engine = engine.adapt_to(
        checkpoint,
        prompt_format=prompt_format,
        thinking=thinking,
        scorer=scorer,
        sampling=getattr(strategy, "sampling", None),  # a plug-in strategy need not have it
        continued_by=_continued_by(strategy, choices),
        num_top=num_top,
        measured_for=measured_for,
    )
    for member in getattr(scorer, "members", ()):  # each as if it were the only one
        engine.adapt_to(
            checkpoint, prompt_format=prompt_format, scorer=member, sampling=None, continued_by=None, thinking=thinking
        )
    if thinking is not None and not engine.settings.continues_text:
        for knob, value, default in (("think_tokens", thinking.think_tokens, "null"), ("waits", thinking.waits, "0")):
            if value and not (knob == "think_tokens" and engine.settings.ends_thoughts):
                raise ConfigError(
                    f"model.thinking.{knob} puts in a text, and this engine begins every answer anew; with "
                    "engine=openai choose engine.prefill=true if the server can continue an answer, "
                    + ("engine.think_tokens_field if it takes a budget, " if knob == "think_tokens" else "")
                    + f"or leave {knob} {default}"
                )
    early_exit = _make_early_exit(config, choices, thinking, engine)
    router = routing.validate_routing(config, scorer, checkpoint, prompt_format, engine, thinking, measured_for)
    if router is not None and getattr(strategy, "writes_prompts", False):
        raise ConfigError(
            f"router={choices.get('router', '')} routes the steps behind one prompt, and search="
            f"{_option_name(choices, strategy)} writes prompts of its own; leave router=off"
        )
    allocation = _make_allocation(config, strategy)
    judge = validate_judge(config, scorer, checkpoint, engine, prompt_format, thinking, has_router=router is not None)
    verifier = validate_verifier(config, early_exit, checkpoint, engine, prompt_format, thinking)
    names = _option_names(config, choices)
    return SolveSpec(
        strategy=strategy,
        scorer=scorer,
        embedder=embedder,
        prompt_format=prompt_format,
        step_rule=step_rule,
        thinking=thinking,
        early_exit=early_exit,
        eviction=eviction,
        checkpoint=checkpoint,
        engine=engine,
        budget=budget,
        speculation=speculative,
        routing=router,
        judge=judge,
        verifier=verifier,
        allocation=allocation,
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
        if getattr(spec.scorer, "reads_gold", False):
            raise ConfigError(
                "scorer=oracle scores by the gold answers of a task, and a question has none; choose another scorer"
            )
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


def _make_early_exit(
    config: Settings, choices: Mapping[str, str], thinking: ThinkingFormat | None, engine: EngineSpec
) -> EarlyExit | None:
    """Returns the rule that ends thoughts; None for `none`. Raises: ConfigError where the run has no use for it."""
    if not config["early_exit"]:
        return None
    settings = dict(config["early_exit"])
    name = f"early_exit={choices.get('early_exit', settings.get('_target_'))}"
    if thinking is None:
        raise ConfigError(
            f"{name} ends thoughts, and this model writes none; choose early_exit=none, or its format with "
            "thinking@model.thinking=PRESET"
        )
    if settings.get("probe") is None:
        settings["probe"] = thinking.probe
    rule: EarlyExit = instantiate("early_exit", settings)
    if rule.hint is not None and thinking.closing in rule.hint:
        raise ConfigError(
            f"early_exit.hint must leave it to the model to write the closing tag {thinking.closing!r}; "
            f"model.thinking.forced_end holds it, got {rule.hint!r}"
        )
    if not engine.settings.continues_text:
        raise ConfigError(
            f"{name} continues a thought, and this engine begins every answer anew; choose early_exit=none, or with "
            "engine=openai engine.prefill=true if the server can continue an answer"
        )
    if rule.needs_logprobs and not engine.settings.gives_logprobs:
        raise ConfigError(f"{name} reads log-probabilities; set engine.logprobs=true, or choose early_exit=converged")
    if choices.get("router", "off") != "off":
        raise ConfigError(
            f"{name} asks one model for its answer, and router={choices['router']} writes with two; choose router=off"
        )
    return rule


def _make_eviction(config: Settings, choices: Mapping[str, str], engine: EngineSpec) -> EvictionPolicy | None:
    """Returns which KV of a long text a branch keeps; None for `none`, and in a run of the last release."""
    if not config.get("eviction"):
        return None
    policy = instantiate("eviction", config["eviction"])
    if not isinstance(policy, EvictionPolicy):
        target = config["eviction"].get("_target_")
        raise ConfigError(
            f"eviction._target_ must be a subclass of {EvictionPolicy.__module__}.EvictionPolicy, got {target!r}"
        )
    try:
        engine.validate_eviction(policy)
    except ValueError as error:
        raise ConfigError(f"eviction={choices.get('eviction', type(policy).__name__)} {error}") from error
    return policy


def _make_allocation(config: Settings, strategy: Strategy) -> SampleAllocation | None:
    """Returns how samples are divided among problems; None: each has those of its search."""
    settings = config.get("allocation", {"samples": None})  # a run of the last release has no such setting
    if not isinstance(settings, Mapping):
        raise ConfigError(f"allocation has settings of its own, as allocation.samples=8; got {shorten(settings)}")
    if settings["samples"] is None:
        return None
    with as_config_error():
        allocation = SampleAllocation(**settings)
        require_divisible(strategy)
    n = getattr(strategy, "n", 0)
    if n <= allocation.samples:
        raise ConfigError(
            f"search.n is the most samples of one problem, and must be above allocation.samples={allocation.samples}, "
            f"the mean of all; got {n}"
        )
    return allocation


def _make_embedder(config: Settings, choices: Mapping[str, str]) -> LoadableEmbedder:
    embedder: LoadableEmbedder = instantiate("embedder", config["embedder"])
    with as_config_error("embedder"):
        embedder.validate()
    if isinstance(embedder, HiddenStateEmbedder):
        embedder.warn_of_other_model(config["model"]["path"])
    if embedder.needs_hidden_states and choices.get("router", "off") != "off":
        raise ConfigError(
            "embedder=hidden_states cannot compare the steps of two models, which router="
            f"{choices['router']} has; choose embedder=words or embedder=sentence_transformers"
        )
    return embedder


def _find_measured(
    strategy: Strategy, scorer: Scorer, step_rule: StepRule | None, choices: Mapping[str, str]
) -> tuple[int, str | None]:
    """Returns `GenerationRequest.num_top` of the run, and the first setting that reads what is measured."""
    readers = {
        f"scorer={choices.get('scorer', type(scorer).__name__)}": scorer.num_top,
        f"step={choices.get('step', type(step_rule).__name__)}": 0 if step_rule is None else step_rule.num_top,
        _name_reader(strategy, choices): getattr(strategy, "num_top", 0),  # a plug-in strategy need not have it
    }
    return max(readers.values()), next((name for name, num_top in readers.items() if num_top), None)


def _name_reader(strategy: Strategy, choices: Mapping[str, str]) -> str:
    """The setting by which a strategy reads what is measured of each token."""
    drops = getattr(strategy, "drop_percentile", None) is not None
    return "search.drop_percentile" if drops else f"search={_option_name(choices, strategy)}"


def _continued_by(strategy: Strategy, choices: Mapping[str, str]) -> str | None:
    """The setting that makes requests continue earlier output; None if none does."""
    if choices.get("router", "off") != "off":
        return f"router={choices['router']}"
    continues_text = strategy.by_steps or getattr(strategy, "continues_text", False)  # a plug-in need not have it
    return f"search={_option_name(choices, strategy)}" if continues_text else None


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
        require_choice("scorer_reads", config.get("scorer_reads", "thought"), PARTS)
        require_count("scorer_window", config.get("scorer_window", 1), at_least=1)
        if config.get("trusted_score") is not None:
            require_share("trusted_score", config["trusted_score"])
        if config["scorer_timeout"] is not None:
            require_positive("scorer_timeout", config["scorer_timeout"])


def _refuse_auto(config: Settings) -> None:
    """Raises ConfigError for a `search=auto` that nothing has replaced."""
    if str(config["search"].get("_target_")).endswith(".front.AutoSearch"):
        raise ConfigError("search=auto chooses from settings as they are typed: give them to load(...) or to a command")


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
    eviction_setting = f"eviction={names['eviction']}" if "eviction" in names else None
    settings = (speculative.lossy, eviction_setting, routing_setting)
    return tuple(setting for setting in settings if setting is not None)


def _name_scoreless(choices: Mapping[str, str], scorer: Scorer) -> str:
    """Names the setting by which a scorer gives no scores."""
    name = f"scorer={choices.get('scorer', 'none')}"
    return f"{name} with judges=pairs" if isinstance(scorer, ComparingScorer) else name


def _advise_scores(config: Settings, choices: Mapping[str, str], engine: EngineSpec) -> str:
    """Names what gives scores with this engine and model, or does without."""
    if engine.settings.gives_logprobs and config["model"]["path"] != BYTES:
        return "scorer=prm or scorer=likelihood, or search=self_consistency"
    advice = "search=self_consistency, a vote that needs no scores, or scorer=judge, which asks the model itself"
    if choices.get("engine") != "openai":
        return advice
    return (
        f"{advice}; scorer=confidence and scorer=likelihood also need a model whose tokenizer is here (model=hf "
        "model.path=FOLDER) and engine.logprobs=true"
    )


def _option_name(choices: Mapping[str, str], strategy: Strategy) -> str:
    return choices.get("search", type(strategy).__name__)


def _option_names(config: Settings, choices: Mapping[str, str]) -> dict[str, str]:
    groups = ("search", "scorer", "engine", "speculation", "router")
    names = {group: choices.get(group, config[group]["_target_"]) for group in groups}
    if config["early_exit"]:  # only where it is on, as the rows of earlier releases are
        names["early_exit"] = choices.get("early_exit", config["early_exit"]["_target_"])
    if config.get("eviction"):
        names["eviction"] = choices.get("eviction", config["eviction"]["_target_"])
    paths = {f"{group}_path": config[group]["path"] for group in ("model", "scorer") if config[group].get("path")}
    return {"model": str(config["model"]["name"]), **names, **paths}
