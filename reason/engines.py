"""From settings to an engine, in this process or made of servers: what cannot work is refused before anything loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from decoding.core import Engine
from reason.checkpoint import Checkpoint
from reason.compose import complaints, make, only_ours

if TYPE_CHECKING:
    from decoding.round import Speculation
    from reason.remote.servers import Servers

_SERVED = "reason.remote."  # settings that are made at once; the others load a model when they are


@dataclass(frozen=True)
class EnginePlan:
    """Checked settings, those at `key`. `servers` is None where the model runs in this process."""

    key: str
    node: Mapping[str, Any]
    servers: Servers | None

    def knock(self) -> None:
        """Raises: ConfigError if a server is not there, which is worth knowing before scorers load."""
        if self.servers is not None:
            with complaints(f"{self.key}.urls"):
                self.servers.knock()

    def open(
        self, checkpoint: Checkpoint, *, tokenizer: Any, speculation: Callable[[Any, str], Speculation] | None
    ) -> Engine:
        """The engine for this checkpoint; servers guess for themselves. Raises: ConfigError."""
        source = checkpoint.source
        if self.servers is None:
            engine: Engine = make(self.key, self.node, path=source, tokenizer=tokenizer, speculation=speculation)
            return engine
        with complaints(f"{self.key}.urls"):
            return self.servers.open(source, tokenizer=tokenizer, vocab_size=checkpoint.vocab_size)


def check(key: str, node: Mapping[str, Any]) -> EnginePlan:
    """Everything that can be known without a model or a network. Raises: ConfigError naming the setting."""
    only_ours(key, node)
    if not str(node.get("_target_", "")).startswith(_SERVED):
        return EnginePlan(key, node, None)
    servers: Servers = make(key, node)
    with complaints(key):
        servers.check()
    return EnginePlan(key, node, servers)
