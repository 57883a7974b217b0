"""Turns settings into a `SolveSpec`: makes every object except the models, and checks each group against the others."""

from __future__ import annotations

from collections.abc import Mapping

from decoding.validation import require_package
from reason.config import plugins
from reason.config.compose import Settings, as_config_error, instantiate, load_option
from reason.config.errors import ConfigError
from reason.engines.spec import validate_engine
from reason.engines.speculation import SpeculationSpec, validate_speculation
from reason.models.checkpoint import find_model
from reason.prompt import PromptFormat
from reason.routing.judge_spec import validate_judge, validate_verifier
from reason.routing.spec import RouterSpec, validate_routing
from reason.runs.papers.spec import read_paper
from reason.scorers.base import LoadableEmbedder, Scorer
from reason.settings.optional_groups import make_allocation, make_embedder, make_eviction
from reason.settings.run_settings import refuse_auto, validate_effort, validate_run_settings
from reason.settings.search_needs import find_continuing, find_measured, option_name, validate_needs
from reason.settings.solve_spec import SolveSpec
from reason.settings.thoughts import make_early_exit, make_thinking, validate_thought_limits
from search.steps import StepRule
from search.strategy import Budget, Strategy


def validate_settings(config: Settings, choices: Mapping[str, str]) -> SolveSpec:
    """Validates everything that needs no loaded model. Raises: ConfigError naming the setting."""
    validate_run_settings(config)
    refuse_auto(config)
    validate_effort(choices)
    with as_config_error("paper"):
        if read_paper(config.get("paper")) is not None:
            require_package("the interval beside a paper's figure", "scipy")
    plugins.load_plugins(config.get("plugins", []))
    engine = validate_engine("engine", config["engine"])
    if not isinstance(config["search"].get("sampling", {}), dict):
        given = config["search"]["sampling"]
        raise ConfigError(f"search.sampling has settings of its own, as search.sampling.temperature=0.7; got {given!r}")
    strategy: Strategy = instantiate("search", config["search"])
    prompt_format: PromptFormat = instantiate("model.prompt", config["model"]["prompt"])
    # None in a run of the last release, which has no such group: the solver ends steps at the prompt's delimiter
    step_rule: StepRule | None = instantiate("step", config["step"]) if "step" in config else None
    thinking = make_thinking(config["model"].get("thinking"))
    scorer: Scorer = instantiate("scorer", config["scorer"])
    with as_config_error("budget"):
        budget = Budget(**config["budget"])
    validate_needs(config, choices, strategy, scorer, thinking, engine)
    embedder = make_embedder(config, choices, step_rule) if strategy.needs_embedder else None
    checkpoint = find_model(config["model"]["path"])
    with as_config_error("scorer"):
        scorer.validate()
        scorer.validate_writer(checkpoint)
    speculative = validate_speculation(config)
    speculative.validate_target(checkpoint)
    if engine.is_remote:
        _validate_remote(config, choices, embedder)
    eviction = make_eviction(config, choices, engine)
    num_top, measured_for = find_measured(strategy, scorer, step_rule, choices)
    engine = engine.adapt_to(
        checkpoint,
        prompt_format=prompt_format,
        thinking=thinking,
        scorer=scorer,
        sampling=getattr(strategy, "sampling", None),  # a plug-in strategy need not have it
        continued_by=find_continuing(strategy, choices),
        num_top=num_top,
        measured_for=measured_for,
    )
    for member in getattr(scorer, "members", ()):  # each as if it were the only one
        engine.adapt_to(
            checkpoint, prompt_format=prompt_format, scorer=member, sampling=None, continued_by=None, thinking=thinking
        )
    if thinking is not None:
        validate_thought_limits(thinking, engine)
    early_exit = make_early_exit(config, choices, thinking, engine)
    router = validate_routing(config, scorer, checkpoint, prompt_format, engine, thinking, measured_for)
    if router is not None and getattr(strategy, "writes_prompts", False):
        raise ConfigError(
            f"router={choices.get('router', '')} routes the steps behind one prompt, and search="
            f"{option_name(choices, strategy)} writes prompts of its own; leave router=off"
        )
    allocation = make_allocation(config, strategy)
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


def _lossy_settings(
    names: Mapping[str, str], speculative: SpeculationSpec, router: RouterSpec | None
) -> tuple[str, ...]:
    routing_setting = None if router is None else f"router={names['router']}"
    eviction_setting = f"eviction={names['eviction']}" if "eviction" in names else None
    settings = (speculative.lossy, eviction_setting, routing_setting)
    return tuple(setting for setting in settings if setting is not None)


def _option_names(config: Settings, choices: Mapping[str, str]) -> dict[str, str]:
    groups = ("search", "scorer", "engine", "speculation", "router")
    names = {group: choices.get(group, config[group]["_target_"]) for group in groups}
    if config["early_exit"]:  # only where it is on, as the rows of earlier releases are
        names["early_exit"] = choices.get("early_exit", config["early_exit"]["_target_"])
    if config.get("eviction"):
        names["eviction"] = choices.get("eviction", config["eviction"]["_target_"])
    paths = {f"{group}_path": config[group]["path"] for group in ("model", "scorer") if config[group].get("path")}
    return {"model": str(config["model"]["name"]), **names, **paths}
