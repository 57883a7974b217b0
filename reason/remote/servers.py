"""The settings of an engine made of servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from decoding.core import is_count

if TYPE_CHECKING:
    from reason.remote.client import Client
    from reason.remote.engine import RemoteEngine


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
        urls = [self.urls] if isinstance(self.urls, str) else self.urls
        if not isinstance(urls, Sequence) or not urls:
            raise ValueError(f"urls must be one or more addresses, got {self.urls!r}")
        object.__setattr__(self, "urls", tuple(map(_address, urls)))
        if len(set(self.urls)) < len(self.urls):
            raise ValueError(f"urls must differ, got {', '.join(self.urls)}")
        for name in ("request_timeout_s", "patience_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{name} must be a number of seconds > 0, got {value!r}")
        for name in ("most", "losses"):
            if not is_count(getattr(self, name), at_least=1):
                raise ValueError(f"{name} must be an int >= 1, got {getattr(self, name)!r}")

    def check(self) -> None:
        """Raises: ValueError where a package is missing."""
        try:
            import httpx2  # noqa: F401
            import tenacity  # noqa: F401
        except ImportError as error:
            raise ValueError(f"{error.name} is not installed; pip install 'reason-search[sglang]'") from error

    def knock(self) -> None:
        """Raises: ConnectionError naming the first server that does not answer."""
        import httpx2

        for url in self.urls:
            try:
                httpx2.get(f"{url}/health", timeout=5.0)
            except httpx2.TransportError as error:
                start = "python scripts/serve_models.py"
                raise ConnectionError(f"nothing answers at {url} ({error}); start a server there: {start}") from error

    def open(self, path: str, *, tokenizer: Any, vocab_size: int | None) -> RemoteEngine:
        """The engine for the model whose checkpoint is at `path`; only its tokenizer and its end tokens are read.

        Raises: ValueError or ConnectionError where a server is not what is needed.
        """
        from decoding.stopping import StopRule
        from reason.checkpoint import eos_ids
        from reason.remote.engine import RemoteEngine

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
        from reason.remote.client import Client

        return Client(
            tuple(self.urls),
            request_timeout_s=self.request_timeout_s,
            patience_s=self.patience_s,
            most=self.most,
            losses=self.losses,
        )


def _address(url: object) -> str:
    """The address without a trailing slash.

    >>> _address("http://localhost:30000/")
    'http://localhost:30000'
    """
    wanted = "urls must be addresses like http://host:30000"
    if not isinstance(url, str):
        raise ValueError(f"{wanted}, got {url!r}")
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        whole = False
    if not whole or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(f"{wanted}, got {url!r}")
    return url.rstrip("/")
