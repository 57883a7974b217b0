"""Settings that all engines made of servers have in common: addresses, time limits, retries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

from decoding.validation import require_count, require_positive
from reason.config.errors import ConfigError
from reason.engines.base import EngineSettings, EngineUse

if TYPE_CHECKING:  # it imports httpx2, which is installed only where servers are used
    from reason.engines.http.reply import ReplyLimits

_MAX_REPLY_MB, _MAX_URL = 1024, 2048


@dataclass(frozen=True, kw_only=True)
class ServerSettings(EngineSettings):
    """Where the servers are and how their failures are handled. A knob is a field here and a line in the yaml.

    urls                   one address or several; the servers all serve the model
    request_timeout_s      seconds from sending a request to the first token of its reply, where that is streamed
    token_timeout_s        seconds that each requested token adds, for the whole reply; a server that needs longer
                           counts as hanging
    idle_timeout_s         longest silence in the middle of a reply: after its headers, of a stream between two tokens
    stream_from_tokens     requests for as many tokens or more are streamed: what has come stays when a server is lost.
                           None streams none of them
    max_reply_mb           size of the largest reply, compressed and not; log-probabilities of 128k tokens have 13. Of a
                           stream, what comes between two tokens
    unavailable_timeout_s  how long a request waits while no server answers, or all are full, and nothing gets through
    max_in_flight          requests that one server has at once; more wait here
    max_retries            lost responses at which a request fails
    cooldown_s             pause after a failure of a server; it doubles with each further one, up to 16 times that, as
                           long as another server works
    min_backoff_s          upper bound of the random pause after the first error, where the server asks for none
    max_backoff_s          upper bound of that pause after many errors

    Attributes of the class, not knobs:
    url_example         an address, for errors
    url_has_path        whether addresses may have a path
    pauses_only_server  whether a server that lost a response is excluded for `cooldown_s` even if it is the only one

    Raises: ValueError naming the setting.
    """

    is_remote: ClassVar[bool] = True
    url_example: ClassVar[str] = "http://host:30000"
    url_has_path: ClassVar[bool] = False
    pauses_only_server: ClassVar[bool] = True

    urls: Sequence[str] | str
    request_timeout_s: float = 600.0
    token_timeout_s: float = 0.25
    idle_timeout_s: float = 60.0
    stream_from_tokens: int | None = 1024
    max_reply_mb: int = 16
    unavailable_timeout_s: float = 120.0
    max_in_flight: int = 256
    max_retries: int = 3
    cooldown_s: float = 5.0
    min_backoff_s: float = 0.1
    max_backoff_s: float = 2.0

    def __post_init__(self) -> None:
        urls = parse_urls(self.urls, example=self.url_example, has_path=self.url_has_path)
        object.__setattr__(self, "urls", urls)
        for name in ("request_timeout_s", "idle_timeout_s", "unavailable_timeout_s"):
            require_positive(name, getattr(self, name))
        require_positive("token_timeout_s", self.token_timeout_s)
        if self.stream_from_tokens is not None:
            require_count("stream_from_tokens", self.stream_from_tokens, at_least=1)
        for name in ("cooldown_s", "min_backoff_s", "max_backoff_s"):
            require_positive(name, getattr(self, name))
        require_count("max_reply_mb", self.max_reply_mb, at_least=1, at_most=_MAX_REPLY_MB)
        require_count("max_in_flight", self.max_in_flight, at_least=1)
        require_count("max_retries", self.max_retries, at_least=1)

    @property
    def reply_limits(self) -> ReplyLimits:
        """The limits of every reply."""
        from reason.engines.http.reply import ReplyLimits

        return ReplyLimits(self.request_timeout_s, self.idle_timeout_s, self.max_reply_mb * 2**20)

    def find_time_limit(self, max_tokens: int) -> float:
        """Returns the seconds that the reply to a request for so many tokens may take.

        >>> ServerSettings(urls="http://h:1").find_time_limit(32768)
        8792.0
        """
        return self.request_timeout_s + max_tokens * self.token_timeout_s

    def streams(self, max_tokens: int) -> bool:
        """Returns whether a request for so many tokens is streamed."""
        return self.stream_from_tokens is not None and max_tokens >= self.stream_from_tokens

    def require_packages(self) -> None:
        """See `EngineSettings`."""
        try:
            import httpx2  # noqa: F401
            import tenacity  # noqa: F401
        except ImportError as error:
            raise ValueError(f"{error.name} is not installed; pip install 'reason-search[sglang]'") from error

    def require_room_for(self, use: EngineUse) -> None:
        """Raises ConfigError where the longest reply, with what is measured of every token, is too large."""
        from reason.engines.http.top_logprobs import BYTES_PER_VALUE

        if use.sampling is None or not use.num_top:
            return
        needed_mb = -(-use.sampling.max_tokens * use.num_top * BYTES_PER_VALUE // 2**20)
        if needed_mb > self.max_reply_mb:
            raise ConfigError(
                f"{use.key}.max_reply_mb={self.max_reply_mb} is too small for the log-probabilities of {use.num_top} "
                f"likely tokens at each of {use.sampling.max_tokens}, which {use.measured_for} reads; "
                f"set {use.key}.max_reply_mb={needed_mb}"
            )

    def ping(self) -> None:
        """Checks all servers. Raises: as `ping_server`."""
        for url in self.urls:
            self.ping_server(url)

    def ping_server(self, url: str) -> None:
        """Checks that the server at `url` answers and is usable.

        Raises: ConnectionError if it does not answer; ValueError naming the setting that it contradicts.
        """
        raise NotImplementedError


def parse_urls(urls: object, *, example: str, has_path: bool) -> tuple[str, ...]:
    """Returns one or more addresses without trailing slashes; `has_path` allows a path in them.

    >>> parse_urls("http://localhost:8000/v1/", example="http://host:8000/v1", has_path=True)
    ('http://localhost:8000/v1',)

    Raises: ValueError.
    """
    given = [urls] if isinstance(urls, str) else urls
    if not isinstance(given, Sequence) or not given:
        raise ValueError(f"urls must be one or more addresses, got {urls!r}")
    parsed = tuple(_parse_url(url, example, has_path) for url in given)
    if len(set(parsed)) < len(parsed):
        raise ValueError(f"urls must differ, got {', '.join(parsed)}")
    return parsed


def _parse_url(url: object, example: str, has_path: bool) -> str:
    expected = f"urls must be addresses like {example}"
    if not isinstance(url, str):
        raise ValueError(f"{expected}, got {url!r}")
    try:
        parts = urlsplit(url)
        is_complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")  # as the look-up of its address does; UnicodeError is a ValueError
    except ValueError:  # a port that is no number, a name that cannot be one of a host
        raise ValueError(f"{expected}, got {url!r}") from None
    if parts.username is not None or parts.password is not None:  # the message must not repeat a secret
        raise ValueError(f"{expected}, without a name or a password in them")
    if not is_complete or not url.isprintable() or " " in url or len(url) > _MAX_URL:
        raise ValueError(f"{expected}, got {url!r:.200}")
    if (parts.path.strip("/") and not has_path) or parts.query or parts.fragment:
        raise ValueError(f"{expected}, got {url!r}")
    return url.rstrip("/")
