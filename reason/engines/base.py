"""What the rest of the project needs to know of an engine before it is opened: the base class of all engine settings.

An engine is added with two files: a module with a subclass of `EngineSettings`, and `conf/engine/NAME.yaml` whose
`_target_` is that class. `tests/reason/engines/test_plug_in_engine.py` adds one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from decoding.core import Engine, SamplingParams
from decoding.kv.eviction.policy import EvictionPolicy
from reason.config.errors import ConfigError
from reason.models.byte_tokenizer import BYTES
from reason.models.checkpoint import Checkpoint
from reason.models.tokenizer import PretrainedTokenizer

if TYPE_CHECKING:  # `decoding.round` imports torch, which a wrong setting need not wait for
    from decoding.model.backend import Backend
    from decoding.round import Speculation
    from reason.prompt import PromptFormat
    from reason.scorers.base import Scorer
    from reason.thinking import ThinkingFormat

SpeculationFactory = Callable[[PretrainedTokenizer, str, "Backend | None"], "Speculation"]
"""Makes the speculative parts of an engine from the tokenizer, the path of the model that is drafted for, and this
model where it is loaded in this process."""


@dataclass(frozen=True, kw_only=True)
class EngineUse:
    """What an engine will be used for.

    key           where its settings are: `engine` or `small`
    sampling      sampling parameters of its requests; None where a plug-in search does not declare them
    continued_by  the setting that makes requests continue earlier output, such as `search=beam_search`; None if none
    thinking      how the model marks its thoughts; None: it writes none
    num_top       `GenerationRequest.num_top` of its requests
    measured_for  the setting that reads the uncertainty of tokens, such as `scorer=confidence`; None if none
    """

    key: str
    checkpoint: Checkpoint
    prompt_format: PromptFormat
    scorer: Scorer
    sampling: SamplingParams | None
    continued_by: str | None
    thinking: ThinkingFormat | None = None
    num_top: int = 0
    measured_for: str | None = None


class EngineSettings:
    """Settings of an engine. Subclasses are frozen dataclasses: fields are the knobs of their yaml, checked when made.

    is_remote         the model runs in servers: they speculate themselves and return no hidden states
    needs_checkpoint  needs the model's tokenizer or weights here, which `model=served` does not have
    gives_logprobs    whether its generations have log-probabilities
    measures_tokens   whether they have `top_logprobs` and `entropies` where a request asks for them
    continues_text    whether requests can continue earlier output, as step searches do
    ends_thoughts     whether the servers themselves end a thought at `model.thinking.think_tokens`
    names_tokens      whether generations say which tokens were likely, where a request asks for them
    constrains_json   whether requests may have a `json_schema`
    tells_tokens      whether requests may have `on_tokens`
    """

    is_remote: ClassVar[bool] = False
    needs_checkpoint: ClassVar[bool] = True
    constrains_json: ClassVar[bool] = False
    names_tokens: ClassVar[bool] = False
    tells_tokens: ClassVar[bool] = False

    @property
    def gives_logprobs(self) -> bool:
        return True

    @property
    def measures_tokens(self) -> bool:
        return False

    @property
    def continues_text(self) -> bool:
        return True

    @property
    def ends_thoughts(self) -> bool:
        return False

    def adapt_to(self, use: EngineUse) -> Self:
        """Returns the settings with what follows from `use`. Raises: ConfigError where the engine cannot do that."""
        if self.needs_checkpoint and use.checkpoint.source == BYTES:
            path = "model.path=bytes (model=served)" if use.key == "engine" else f"{use.key}.path=bytes"
            raise ConfigError(f"{path} has no weights and no tokenizer; it goes with {use.key}=openai")
        if use.measured_for is not None and not self.measures_tokens:
            raise ConfigError(
                f"{use.measured_for} reads the log-probabilities of the most likely tokens, which this {use.key} does "
                "not give; engine=local and engine=sglang do, and engine=openai with engine.logprobs=true"
            )
        return self

    def require_packages(self) -> None:
        """Raises ValueError naming a package or a device that is missing."""

    def ping(self) -> None:
        """Checks quickly that servers answer, before models load. Raises: ConnectionError or ValueError."""

    def open_engine(
        self, checkpoint: Checkpoint, *, tokenizer: PretrainedTokenizer, speculation: SpeculationFactory | None
    ) -> Engine:
        """Returns the engine for this checkpoint; loads the model or connects to the servers.

        Raises: ValueError, whose message begins with a field's name where that is wrong; OSError.
        """
        raise NotImplementedError


class EvictingEngineSettings(EngineSettings):
    """Settings of an engine whose branches can evict KV."""

    def validate_eviction(self, policy: EvictionPolicy) -> None:
        """Raises ValueError where they cannot evict by this policy."""

    def open_engine(
        self,
        checkpoint: Checkpoint,
        *,
        tokenizer: PretrainedTokenizer,
        speculation: SpeculationFactory | None,
        eviction: EvictionPolicy | None = None,
    ) -> Engine:
        """See `EngineSettings`; branches evict as `eviction` says, None: nothing."""
        raise NotImplementedError
