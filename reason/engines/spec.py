"""From settings to an engine, in this process or made of servers: what cannot work is refused before anything loads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from decoding.core import Engine
from reason.config.compose import complaints, make, only_ours
from reason.config.errors import ConfigError, refused
from reason.engines.openai_api.settings import Endpoints
from reason.models.byte_tokenizer import BYTES
from reason.models.checkpoint import Checkpoint

if TYPE_CHECKING:
    from decoding.round import Speculation
    from reason.engines.sglang_client.settings import Servers

_SERVED = (
    "reason.engines.sglang_client.",
    "reason.engines.openai_api.",
)  # made at once; the others load a model when they are
_FROM_ENVIRONMENT = re.compile(r"\$\{oc\.env:[^{}]+\}")


@dataclass(frozen=True)
class EnginePlan:
    """Checked settings, those at `key`. `servers` is None where the model runs in this process."""

    key: str
    node: Mapping[str, Any]
    servers: Servers | Endpoints | None

    def fit(self, checkpoint: Checkpoint, **use: Any) -> EnginePlan:
        """This plan with what follows from the use it is put to; `openai_api.compatibility` says what `use` is.

        Raises: ConfigError where that cannot be done.
        """
        from reason.engines.openai_api.compatibility import fitted

        if isinstance(self.servers, Endpoints):
            return replace(self, servers=fitted(self.servers, key=self.key, checkpoint=checkpoint, **use))
        if checkpoint.source == BYTES:
            path = "model.path=bytes (model=served)" if self.key == "engine" else f"{self.key}.path=bytes"
            raise ConfigError(f"{path} has no weights and no tokenizer; it goes with {self.key}=openai")
        return self

    def knock(self) -> None:
        """Raises: ConfigError if a server is not there, which is worth knowing before scorers load."""
        if self.servers is not None:
            with self._naming(self.servers):
                self.servers.knock()

    def open(
        self, checkpoint: Checkpoint, *, tokenizer: Any, speculation: Callable[[Any, str], Speculation] | None
    ) -> Engine:
        """The engine for this checkpoint; servers guess for themselves. Raises: ConfigError."""
        source = checkpoint.source
        if self.servers is None:
            engine: Engine = make(self.key, self.node, path=source, tokenizer=tokenizer, speculation=speculation)
            return engine
        with self._naming(self.servers):
            return self.servers.open(source, tokenizer=tokenizer, vocab_size=checkpoint.vocab_size)

    @contextmanager
    def _naming(self, servers: Servers | Endpoints) -> Iterator[None]:
        """Turns what a server is refused for into a ConfigError about the setting it begins with, else about `urls`."""
        try:
            yield
        except (ValueError, OSError) as error:
            named = str(error).partition(":")[0].partition(" ")[0].partition("=")[0]
            about = {field.name for field in fields(servers)} & {named}
            raise ConfigError(refused(self.key if about else f"{self.key}.urls", error, about)) from error


def require_from_environment(key: str, secret: object) -> None:
    """Raises: ConfigError for a secret that is written out, which it does not repeat."""
    if not _FROM_ENVIRONMENT.fullmatch(str(secret)):
        raise ConfigError(f"{key} must come from the environment, as {key}='${{oc.env:NAME}}': settings are saved")


def check(key: str, node: Mapping[str, Any]) -> EnginePlan:
    """Everything that can be known without a model or a network. Raises: ConfigError naming the setting."""
    only_ours(key, node)
    if node.get("api_key") is not None:
        require_from_environment(f"{key}.api_key", node["api_key"])
    if not str(node.get("_target_", "")).startswith(_SERVED):
        return EnginePlan(key, node, None)
    servers: Servers | Endpoints = make(key, node)
    with complaints(key):
        servers.check()
    return EnginePlan(key, node, servers)
