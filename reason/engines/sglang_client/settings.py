"""The settings of an engine made of servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reason.engines.sglang_client.addresses import addresses, require_counts, require_packages, require_seconds

if TYPE_CHECKING:
    from reason.engines.sglang_client.client import Client
    from reason.engines.sglang_client.engine import RemoteEngine


@dataclass(frozen=True, kw_only=True)
class Servers:
    """SGLang servers of one model.

    urls               of servers that all serve the model, or of a router in front of them
    request_timeout_s  a server that takes longer over one request hangs
    patience_s         how long to wait while no server answers
    most               requests that one server has at once; the others wait here
    losses             servers that one request may lose before it is held to be the reason

    Raises: ValueError naming the setting.
    """

    urls: Sequence[str] | str
    request_timeout_s: float = 600.0
    patience_s: float = 120.0
    most: int = 256
    losses: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "urls", addresses(self.urls, example="http://host:30000", path=False))
        require_seconds({"request_timeout_s": self.request_timeout_s, "patience_s": self.patience_s})
        require_counts({"most": self.most, "losses": self.losses})

    def check(self) -> None:
        """Raises: ValueError where a package is missing."""
        require_packages()

    def knock(self) -> None:
        """Raises: ConnectionError naming the first server that does not answer."""
        import httpx2

        for url in self.urls:
            try:
                httpx2.get(f"{url}/health", timeout=5.0)
            except httpx2.TransportError as error:
                start = "python scripts/serve_models.py"
                raise ConnectionError(
                    f"urls: nothing answers at {url} ({error}); start a server there: {start}"
                ) from error

    def open(self, path: str, *, tokenizer: Any, vocab_size: int | None) -> RemoteEngine:
        """The engine for the model whose checkpoint is at `path`; only its tokenizer and its end tokens are read.

        Raises: ValueError or ConnectionError where a server is not what is needed.
        """
        from decoding.stopping import StopRule
        from reason.engines.sglang_client.engine import RemoteEngine
        from reason.models.checkpoint import eos_ids

        def decode(tokens: Sequence[int]) -> str:
            return str(tokenizer.decode(list(tokens), skip_special_tokens=False))

        return RemoteEngine(
            self.client(),
            stop_rule=StopRule(decode, eos_ids(path, tokenizer)),
            vocab_size=vocab_size or max(tokenizer.get_vocab().values()) + 1,
            tokenizer=tokenizer,
        )

    def client(self) -> Client:
        """What asks these servers."""
        from reason.engines.sglang_client.client import Client

        return Client(
            tuple(self.urls),
            request_timeout_s=self.request_timeout_s,
            patience_s=self.patience_s,
            most=self.most,
            losses=self.losses,
        )
