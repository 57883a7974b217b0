"""Turns the settings of `router` and `small` into a routed engine; what cannot work is refused before a model loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from decoding.core import Engine
from reason.config.compose import as_config_error, instantiate
from reason.config.errors import ConfigError
from reason.engines.base import SpeculationFactory
from reason.engines.spec import EngineSpec, validate_engine
from reason.models.checkpoint import Checkpoint, find_model, load_tokenizer, read_vocabulary
from reason.models.tokenizer import PretrainedTokenizer, require_step_vocabulary
from reason.prompt import Prompt, PromptFormat
from reason.routing.base import Router
from reason.routing.engine import RoutedEngine
from reason.routing.handover import HandoverRouter
from reason.routing.token_bridge import TokenBridge
from reason.scorers.base import Scorer
from reason.thinking import ThinkingFormat


@dataclass(frozen=True)
class RouterSpec:
    """Checked settings of a router and of its small model.

    checkpoint   the small model's
    vocabulary   `same` or `own`: whether the two models exchange token ids or text
    small        the small model's engine settings
    """

    router: Router
    checkpoint: Checkpoint
    vocabulary: str
    small: EngineSpec

    def open_routed_engine(
        self,
        target: Engine,
        *,
        tokenizer: PretrainedTokenizer,
        prompt: Prompt,
        speculation: SpeculationFactory | None,
    ) -> RoutedEngine:
        """Loads the small model and the router's own. `tokenizer` and `prompt` are the target model's.

        Raises: ConfigError.
        """
        source = self.checkpoint.source
        with as_config_error("small"):
            small_tokenizer = load_tokenizer(source)
            require_step_vocabulary(
                self.vocabulary, source, small_tokenizer.get_vocab(), "model.path", tokenizer.get_vocab()
            )
            bridge = None
            if self.vocabulary == "own":
                bridge = TokenBridge(prompt.with_tokenizer(small_tokenizer), prompt, tokenizer.eos_token_id)
        with as_config_error("router"):
            self.router.load(tokenizer)
        small = self.small.open_engine(self.checkpoint, tokenizer=small_tokenizer, speculation=speculation)
        decode, delimiter = prompt.decode, prompt.format.delimiter
        encode = prompt.encode_continuation
        return RoutedEngine(
            small, target, self.router, decode=decode, delimiter=delimiter, bridge=bridge, encode=encode
        )


def validate_routing(
    config: Mapping[str, Any],
    scorer: Scorer,
    target: Checkpoint,
    prompt_format: PromptFormat,
    target_engine: EngineSpec,
    thinking: ThinkingFormat | None = None,
    measured_for: str | None = None,
) -> RouterSpec | None:
    """Checks the settings as far as that needs no weights; returns None for router=off.

    `target_engine` is the large model's, `measured_for` as in `EngineUse`. Raises: ConfigError naming the setting.
    """
    router: Router = instantiate("router", config["router"])
    if not router.needs_small_model:
        return None
    if router.needs_scorer and not scorer.gives_scores:
        raise ConfigError("this router reads scores and scorer=none gives none; choose scorer=prm, or router=entropy")
    if router.needs_scorer and scorer.num_top:
        raise ConfigError(
            "this router reads scores of steps, and scorer=confidence scores a path by all of its tokens; choose "
            "another scorer, or router=entropy"
        )
    with as_config_error("router"):
        router.validate(target)
    node = config["small"]
    if isinstance(router, HandoverRouter) and node["vocabulary"] == "own":
        raise ConfigError(
            "small.vocabulary=own exchanges text at the ends of steps, and this router hands over inside them; choose "
            "two models of one vocabulary, or another router"
        )
    if router.num_top:
        if not target_engine.settings.measures_tokens:
            raise ConfigError(
                "this router reads entropies, which the target model's engine does not give; choose engine=local, "
                "engine=sglang or engine.logprobs=true"
            )
        measured_for = measured_for or "the router"
    checkpoint = find_model(node["path"], key="small.path")
    vocabulary, target_vocabulary = read_vocabulary(checkpoint.source), read_vocabulary(target.source)
    with as_config_error("small"):
        require_step_vocabulary(node["vocabulary"], str(node["path"]), vocabulary, "model.path", target_vocabulary)
    small = validate_engine("small", {key: value for key, value in node.items() if key not in ("path", "vocabulary")})
    small = small.adapt_to(
        checkpoint,
        prompt_format=prompt_format,
        thinking=thinking,
        scorer=scorer,
        sampling=None,
        continued_by="router",
        measured_for=measured_for,
    )
    if router.needs_logprobs and not small.settings.gives_logprobs:
        raise ConfigError("this router reads the small model's log-probabilities; set small.logprobs=true")
    return RouterSpec(router, checkpoint, node["vocabulary"], small)
