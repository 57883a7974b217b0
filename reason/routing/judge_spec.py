"""Finds the model that a scorer or `early_exit` asks for verdicts; what cannot work is refused before models load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from decoding.core import Engine, SamplingParams
from reason.config.compose import as_config_error
from reason.config.errors import ConfigError
from reason.engines.spec import EngineSpec, validate_engine
from reason.models.byte_tokenizer import BYTES
from reason.models.checkpoint import Checkpoint, find_model, load_tokenizer
from reason.models.tokenizer import PretrainedTokenizer
from reason.prompt import Prompt, PromptFormat
from reason.scorers.base import Scorer
from reason.scorers.judge_model import AskingScorer, JudgeModel, VerdictWords, require_words
from reason.scorers.none import NoScorer
from reason.thinking import ThinkingFormat
from search.probes import EarlyExit


@dataclass(frozen=True)
class JudgeSpec:
    """The model of a judge: the one that solves, or the one at `small`.

    small          the checked settings of the small model's engine; None: the model that solves
    prompt_format  of the small model; that of the model that solves, unless only a server knows the small one
    thinking       likewise, how it marks its thoughts
    """

    checkpoint: Checkpoint
    small: EngineSpec | None
    prompt_format: PromptFormat
    thinking: ThinkingFormat | None

    def require_words(self, prompt: Prompt, words: VerdictWords, knob: str, setting: str) -> None:
        """Checks that the model can write the words, without loading it; `prompt` is of the one that solves.

        Raises: ConfigError. The others as in `judge_model.require_words`.
        """
        if self.small is not None:
            with as_config_error("small.path"):
                prompt = self._build_prompt(load_tokenizer(self.checkpoint.source))
        with as_config_error():
            require_words(prompt, words, knob, setting)

    def open_judge(self, target: Engine, target_spec: EngineSpec, prompt: Prompt) -> JudgeModel:
        """Returns the model to ask; loads the small one. Raises: ConfigError."""
        engine, spec = target, target_spec
        if self.small is not None:
            with as_config_error("small.path"):
                tokenizer = load_tokenizer(self.checkpoint.source)
                prompt = self._build_prompt(tokenizer)
            engine, spec = self.small.open_engine(self.checkpoint, tokenizer=tokenizer, speculation=None), self.small
        return JudgeModel(
            engine=engine,
            prompt=prompt,
            thinking=self.thinking,
            gives_logprobs=spec.settings.gives_logprobs,
            can_continue=spec.settings.continues_text,
            context_window=self.checkpoint.context_window,
        )

    def _build_prompt(self, tokenizer: PretrainedTokenizer) -> Prompt:
        return Prompt(self.prompt_format, tokenizer, () if self.thinking is None else self.thinking.tags)


def validate_judge(
    config: Mapping[str, Any],
    scorer: Scorer,
    target: Checkpoint,
    engine: EngineSpec,
    prompt_format: PromptFormat,
    thinking: ThinkingFormat | None,
    *,
    has_router: bool,
) -> JudgeSpec | None:
    """Checks the settings as far as that needs no weights; None where the scorer asks no model. Raises: ConfigError."""
    if not isinstance(scorer, AskingScorer) or scorer.model is None:
        return None
    if scorer.model == "small" and has_router:
        raise ConfigError("scorer.model=small and a router would both use small.*; leave router=off, or model=target")

    def check_engine(spec: EngineSpec, judge: JudgeSpec) -> EngineSpec:
        return spec.adapt_to(
            judge.checkpoint,
            prompt_format=judge.prompt_format,
            scorer=scorer,
            sampling=scorer.find_sampling(gives_logprobs=spec.settings.gives_logprobs),
            continued_by=None,
            thinking=judge.thinking,
        )

    return _find_judge(scorer.model, config, engine, JudgeSpec(target, None, prompt_format, thinking), check_engine)


def validate_verifier(
    config: Mapping[str, Any],
    rule: EarlyExit | None,
    target: Checkpoint,
    engine: EngineSpec,
    prompt_format: PromptFormat,
    thinking: ThinkingFormat | None,
) -> JudgeSpec | None:
    """Checks the settings of the model that reads thoughts; None where the rule asks none. Raises: ConfigError.

    Its requests are prompts of their own: the engine at `small` need not continue a text.
    """
    if rule is None or rule.verifier_model is None:
        return None

    def check_engine(spec: EngineSpec, judge: JudgeSpec) -> EngineSpec:
        return spec.adapt_to(
            judge.checkpoint,
            prompt_format=judge.prompt_format,
            scorer=NoScorer(),
            sampling=SamplingParams(temperature=0.0),
            continued_by=None,
            thinking=judge.thinking,
        )

    target_judge = JudgeSpec(target, None, prompt_format, thinking)
    return _find_judge(rule.verifier_model, config, engine, target_judge, check_engine)


def _find_judge(
    model: str,
    config: Mapping[str, Any],
    engine: EngineSpec,
    target: JudgeSpec,
    check_engine: Callable[[EngineSpec, JudgeSpec], EngineSpec],
) -> JudgeSpec:
    if model == "target":
        check_engine(engine, target)
        return target
    node = config["small"]
    checkpoint = find_model(node["path"], key="small.path")
    small = validate_engine("small", {key: value for key, value in node.items() if key not in ("path", "vocabulary")})
    judge = replace(target, checkpoint=checkpoint)
    if checkpoint.source == BYTES and target.checkpoint.source != BYTES:
        # of another family than a model that is here: its server renders conversations and takes thoughts out of them
        judge = replace(judge, prompt_format=PromptFormat(), thinking=None)
    return replace(judge, small=check_engine(small, judge))
