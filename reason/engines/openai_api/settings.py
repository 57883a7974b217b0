"""The settings of an engine made of OpenAI-compatible servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reason.engines.openai_api.wire import NEUTRAL, Form
from reason.engines.sglang_client.addresses import addresses, require_counts, require_packages, require_seconds

if TYPE_CHECKING:
    from reason.engines.openai_api.engine import EndpointEngine

APIS = ("completions", "chat")
MAX_TOKENS = ("max_tokens", "max_completion_tokens")
OMITTABLE = (*NEUTRAL, "seed")
_OURS = {"model", "prompt", "messages", "n", "stream", "stream_options", "stop", "logprobs", *MAX_TOKENS, *OMITTABLE}
_LOOK_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    """Servers of one model; `conf/engine/openai.yaml` says what the settings are.

    Raises: ValueError naming the setting.
    """

    urls: Sequence[str] | str
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    api: str | None = None
    prefill: bool = False
    logprobs: bool = False
    max_tokens_field: str = "max_tokens"
    omit: Sequence[str] = ()
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    request_timeout_s: float = 600.0
    patience_s: float = 600.0
    most: int = 64
    losses: int = 6

    def __post_init__(self) -> None:
        object.__setattr__(self, "urls", addresses(self.urls, example="http://host:8000/v1", path=True))
        require_seconds({"request_timeout_s": self.request_timeout_s, "patience_s": self.patience_s})
        require_counts({"most": self.most, "losses": self.losses})
        if self.model is not None and (not isinstance(self.model, str) or not self.model):
            raise ValueError(f"model must be the name that the server knows it by, got {self.model!r}")
        if self.api_key is not None and not _is_key(self.api_key):  # not repeated: it is a secret
            raise ValueError("api_key must be printable ASCII text without spaces")
        if self.api is not None and self.api not in APIS:
            raise ValueError(f"api must be one of {', '.join(APIS)} or null, got {self.api!r}")
        for name in ("prefill", "logprobs"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if self.max_tokens_field not in MAX_TOKENS:
            raise ValueError(f"max_tokens_field must be one of {', '.join(MAX_TOKENS)}; got {self.max_tokens_field!r}")
        if isinstance(self.omit, str) or not isinstance(self.omit, Sequence) or set(self.omit) - {*OMITTABLE}:
            raise ValueError(f"omit must be a list of some of {', '.join(OMITTABLE)}; got {self.omit!r}")
        if not isinstance(self.extra_body, Mapping):
            raise ValueError(f"extra_body must hold fields and their values, got {self.extra_body!r}")
        for name in sorted(_OURS & set(self.extra_body)):
            raise ValueError(f"extra_body.{name} has a setting of its own")

    @property
    def goes_on(self) -> bool:
        """Whether a text can be gone on with, which searches over steps do."""
        return self.api == "completions" or self.prefill

    def check(self) -> None:
        """Raises: ValueError where a package is missing."""
        require_packages()

    def knock(self) -> None:
        """Raises: ConnectionError naming the first server that does not answer; ValueError where one does not take the
        key, or has not the model, with the models that it has."""
        for url in self.urls:
            self.visit(url)

    def visit(self, url: str) -> None:
        """Asks one server for its models. Raises: as `knock`."""
        offered = self._offered(url)
        if self.model is None:
            known = f"{url} offers {', '.join(offered)}" if offered else f"{url} does not say what it offers"
            raise ValueError(f"model must be set; {known}")
        if offered and self.model not in offered and not self._takes(url):
            raise ValueError(f"model={self.model} is not there; {url} offers {', '.join(offered)}")

    def _offered(self, url: str) -> list[str] | None:
        """The models that a server lists; None where it keeps no list. Raises: as `knock`."""
        import httpx2

        try:
            answer = httpx2.get(f"{url}/models", headers=self._headers(), timeout=_LOOK_S)
        except httpx2.TransportError as error:
            raise ConnectionError(f"urls: nothing answers at {url} ({error}); start a server there") from error
        if answer.status_code in (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN):
            asked = "asks for a key; take it from the environment: '${oc.env:NAME}'"
            raise ValueError(f"api_key: {url} {asked if self.api_key is None else 'refuses it'}")
        if answer.status_code >= httpx2.codes.INTERNAL_SERVER_ERROR:
            raise ConnectionError(f"urls: {url} answers {answer.status_code} at /models; see its log")
        try:
            return sorted(str(row["id"]) for row in answer.json()["data"]) if answer.is_success else None
        except (ValueError, KeyError, TypeError):
            return None

    def open(self, path: str, *, tokenizer: Any, vocab_size: int | None) -> EndpointEngine:
        """The engine. Only the tokenizer is needed, whatever `path` it is from.

        Raises: ValueError or ConnectionError where a server is not what is needed.
        """
        from reason.engines.openai_api.engine import EndpointEngine

        del path, vocab_size
        assert self.model is not None, "knock comes first"
        return EndpointEngine(
            tuple(self.urls),
            form=Form(
                model=self.model,
                chat=self.api == "chat",
                prefill=self.prefill,
                logprobs=self.logprobs,
                max_tokens_field=self.max_tokens_field,
                omit=tuple(self.omit),
                extra_body=dict(self.extra_body),
            ),
            tokenizer=tokenizer,
            key=self.api_key,
            request_timeout_s=self.request_timeout_s,
            patience_s=self.patience_s,
            most=self.most,
            losses=self.losses,
        )

    def _takes(self, url: str) -> bool:
        """Whether a server takes a name that is not in its list, as some do that stand in front of others."""
        import httpx2

        chat = self.api == "chat"
        asked = {"messages": [{"role": "user", "content": "?"}]} if chat else {"prompt": "?"}
        body = {"model": self.model, **asked, self.max_tokens_field: 1, **self.extra_body}
        path = "/chat/completions" if chat else "/completions"
        try:
            answer = httpx2.post(url + path, json=body, headers=self._headers(), timeout=self.request_timeout_s)
        except httpx2.TransportError:
            return False
        return answer.is_success

    def _headers(self) -> dict[str, str]:
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}


def _is_key(value: object) -> bool:
    return isinstance(value, str) and bool(value) and value.isascii() and value.isprintable() and " " not in value
