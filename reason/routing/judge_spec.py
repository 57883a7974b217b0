"""Finds the model that a judging scorer asks; what cannot work is refused before any model loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from decoding.core import Engine
from reason.config.compose import as_config_error
from reason.config.errors import ConfigError
from reason.engines.spec import EngineSpec, validate_engine
from reason.models.checkpoint import Checkpoint, find_model, load_tokenizer
from reason.prompt import Prompt, PromptFormat
from reason.scorers.base import Scorer
from reason.scorers.judge_model import AskingScorer, JudgeModel
from reason.thinking import ThinkingFormat


@dataclass(frozen=True)
class JudgeSpec:
    """The model of a judge: the one that solves, or the one at `small`, which has the same format of prompts.

    small  the checked settings of the small model's engine; None: the model that solves
    """

    checkpoint: Checkpoint
    small: EngineSpec | None

    def open_judge(
        self, target: Engine, target_spec: EngineSpec, prompt: Prompt, thinking: ThinkingFormat | None
    ) -> JudgeModel:
        """Returns the model to ask; loads the small one. Raises: ConfigError."""
        engine, spec = target, target_spec
        if self.small is not None:
            with as_config_error("small.path"):
                tokenizer = load_tokenizer(self.checkpoint.source)
                prompt = prompt.with_tokenizer(tokenizer)
            engine, spec = self.small.open_engine(self.checkpoint, tokenizer=tokenizer, speculation=None), self.small
        return JudgeModel(
            engine=engine,
            prompt=prompt,
            thinking=thinking,
            gives_logprobs=spec.settings.gives_logprobs,
            can_continue=spec.settings.continues_text,
            context_window=self.checkpoint.context_window,
        )


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

    def check_engine(spec: EngineSpec, checkpoint: Checkpoint) -> EngineSpec:
        return spec.adapt_to(
            checkpoint,
            prompt_format=prompt_format,
            scorer=scorer,
            sampling=scorer.find_sampling(gives_logprobs=spec.settings.gives_logprobs),
            continued_by=None,
            thinking=thinking,
        )

    if scorer.model == "target":
        check_engine(engine, target)
        return JudgeSpec(target, None)
    if has_router:
        raise ConfigError("scorer.model=small and a router would both use small.*; leave router=off, or model=target")
    node = config["small"]
    checkpoint = find_model(node["path"], key="small.path")
    small = validate_engine("small", {key: value for key, value in node.items() if key not in ("path", "vocabulary")})
    return JudgeSpec(checkpoint, check_engine(small, checkpoint))
