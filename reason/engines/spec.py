"""Turns the settings of an engine into an engine; what cannot work is refused before any model loads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from decoding.core import Engine, SamplingParams
from decoding.kv.eviction.policy import EvictionPolicy
from reason.config.compose import check_trusted_targets, instantiate
from reason.config.errors import ConfigError, rejected_setting
from reason.engines.base import EngineSettings, EngineUse, EvictingEngineSettings, SpeculationFactory
from reason.models.checkpoint import Checkpoint
from reason.models.tokenizer import PretrainedTokenizer

if TYPE_CHECKING:
    from reason.prompt import PromptFormat
    from reason.scorers.base import Scorer
    from reason.thinking import ThinkingFormat

_FROM_ENVIRONMENT = re.compile(r"\$\{oc\.env:[^{}]+\}")


@dataclass(frozen=True)
class EngineSpec:
    """Checked settings of one engine; `key` is the group where they are: `engine` or `small`."""

    key: str
    settings: EngineSettings

    @property
    def is_remote(self) -> bool:
        """Whether the model runs in servers, which speculate themselves and return no hidden states."""
        return self.settings.is_remote

    def adapt_to(
        self,
        checkpoint: Checkpoint,
        *,
        prompt_format: PromptFormat,
        scorer: Scorer,
        sampling: SamplingParams | None,
        continued_by: str | None,
        thinking: ThinkingFormat | None = None,
        num_top: int = 0,
        measured_for: str | None = None,
    ) -> EngineSpec:
        """Returns the spec with the settings that follow from its use; `EngineUse` describes the arguments.

        Raises: ConfigError where the engine cannot do that.
        """
        use = EngineUse(
            key=self.key,
            checkpoint=checkpoint,
            prompt_format=prompt_format,
            scorer=scorer,
            sampling=sampling,
            continued_by=continued_by,
            thinking=thinking,
            num_top=num_top,
            measured_for=measured_for,
        )
        return replace(self, settings=self.settings.adapt_to(use))

    def ping(self) -> None:
        """Checks that its servers answer, before scorers load. Raises: ConfigError."""
        with self._as_config_error():
            self.settings.ping()

    def open_engine(
        self,
        checkpoint: Checkpoint,
        *,
        tokenizer: PretrainedTokenizer,
        speculation: SpeculationFactory | None,
        eviction: EvictionPolicy | None = None,
    ) -> Engine:
        """Returns the engine for this checkpoint. Raises: ConfigError."""
        with self._as_config_error():
            if isinstance(self.settings, EvictingEngineSettings):
                return self.settings.open_engine(
                    checkpoint, tokenizer=tokenizer, speculation=speculation, eviction=eviction
                )
            return self.settings.open_engine(checkpoint, tokenizer=tokenizer, speculation=speculation)

    def validate_eviction(self, policy: EvictionPolicy) -> None:
        """Raises ValueError where branches of this engine cannot evict KV by this policy."""
        if not isinstance(self.settings, EvictingEngineSettings):
            raise ValueError("drops KV inside engine=local; leave eviction=none: servers decide what they keep")
        self.settings.validate_eviction(policy)

    @contextmanager
    def _as_config_error(self) -> Iterator[None]:
        """Turns errors into a ConfigError about the field that their message begins with; of servers, about `urls`."""
        # Any error while a model loads is about a setting. Of a client's errors only these are; others are bugs.
        expected = (ValueError, OSError) if self.is_remote else Exception
        names = {field.name for field in fields(self.settings)} if is_dataclass(self.settings) else set[str]()
        try:
            yield
        except ConfigError:
            raise
        except expected as error:
            first_word = str(error).partition(":")[0].partition(" ")[0].partition("=")[0]
            about = names & {first_word}
            key = f"{self.key}.urls" if self.is_remote and "urls" in names and not about else self.key
            raise ConfigError(rejected_setting(key, error, about)) from error


def require_from_environment(key: str, secret: object) -> None:
    """Raises ConfigError for a secret that is written out; the message does not repeat it."""
    if not _FROM_ENVIRONMENT.fullmatch(str(secret)):
        raise ConfigError(f"{key} must come from the environment, as {key}='${{oc.env:NAME}}': settings are saved")


def validate_engine(key: str, node: Mapping[str, Any]) -> EngineSpec:
    """Checks the settings at `key` as far as that needs no model and no network. Raises: ConfigError."""
    check_trusted_targets(key, node)
    if node.get("api_key") is not None:
        require_from_environment(f"{key}.api_key", node["api_key"])
    settings = instantiate(key, node)
    if not isinstance(settings, EngineSettings):
        target = node.get("_target_")
        raise ConfigError(f"{key}._target_ must be a subclass of reason.engines.base.EngineSettings, got {target!r}")
    try:
        settings.require_packages()
    except ValueError as error:
        names = {field.name for field in fields(settings)} if is_dataclass(settings) else set[str]()
        raise ConfigError(rejected_setting(key, error, names)) from error
    return EngineSpec(key, settings)
