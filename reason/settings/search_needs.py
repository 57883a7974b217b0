"""Checks that scorer and engine have what a search needs, and finds what a search asks of every request."""

from __future__ import annotations

from collections.abc import Mapping

from reason.config.compose import Settings
from reason.config.errors import ConfigError
from reason.engines.spec import EngineSpec
from reason.models.byte_tokenizer import BYTES
from reason.scorers.base import ComparingScorer, Scorer
from reason.thinking import ThinkingFormat
from search.steps import StepRule
from search.strategy import Strategy
from search.voting import TOURNAMENT


def validate_needs(
    config: Settings,
    choices: Mapping[str, str],
    strategy: Strategy,
    scorer: Scorer,
    thinking: ThinkingFormat | None,
    engine: EngineSpec,
) -> None:
    """Raises ConfigError where a search needs scores, log-probabilities or names of tokens that it will not get."""
    if strategy.needs_scorer and not scorer.gives_scores:
        raise ConfigError(
            f"search={option_name(choices, strategy)} chooses by score and {_name_scoreless(choices, scorer)} gives "
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
            f"scorer_reads=answer gives the steps of a thought no score, and search={option_name(choices, strategy)} "
            "chooses among them by score; choose scorer_reads=window or thought, or search=best_of_n"
        )
    if getattr(strategy, "needs_logprobs", False) and not engine.settings.gives_logprobs:
        raise ConfigError(
            f"search={option_name(choices, strategy)} with these settings reads log-probabilities; "
            "set engine.logprobs=true"
        )
    if getattr(strategy, "names_top", False) and not engine.settings.names_tokens:
        raise ConfigError(
            f"search={option_name(choices, strategy)} chooses among the most likely tokens, and "
            f"engine={choices.get('engine', 'local')} does not say which these are; choose engine=local"
        )


def find_measured(
    strategy: Strategy, scorer: Scorer, step_rule: StepRule | None, choices: Mapping[str, str]
) -> tuple[int, str | None]:
    """Returns `GenerationRequest.num_top` of the run, and the first setting that reads what is measured."""
    readers = {
        f"scorer={choices.get('scorer', type(scorer).__name__)}": scorer.num_top,
        f"step={choices.get('step', type(step_rule).__name__)}": 0 if step_rule is None else step_rule.num_top,
        _name_reader(strategy, choices): getattr(strategy, "num_top", 0),  # a plug-in strategy need not have it
    }
    return max(readers.values()), next((name for name, num_top in readers.items() if num_top), None)


def find_continuing(strategy: Strategy, choices: Mapping[str, str]) -> str | None:
    """Returns the setting that makes requests continue earlier output; None if none does."""
    if choices.get("router", "off") != "off":
        return f"router={choices['router']}"
    continues_text = strategy.by_steps or getattr(strategy, "continues_text", False)  # a plug-in need not have it
    return f"search={option_name(choices, strategy)}" if continues_text else None


def option_name(choices: Mapping[str, str], strategy: Strategy) -> str:
    """Returns the name of the search as it was chosen, or that of its class."""
    return choices.get("search", type(strategy).__name__)


def _name_reader(strategy: Strategy, choices: Mapping[str, str]) -> str:
    """Names the setting by which a strategy reads what is measured of each token."""
    drops = getattr(strategy, "drop_percentile", None) is not None
    return "search.drop_percentile" if drops else f"search={option_name(choices, strategy)}"


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
