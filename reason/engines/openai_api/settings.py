"""Settings of `engine=openai`: OpenAI-compatible servers of one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self, cast

from decoding.validation import require_choice, require_switch
from reason.engines.base import EngineUse, SpeculationFactory
from reason.engines.http.settings import ServerSettings
from reason.engines.openai_api.request_format import NEUTRAL, RequestFormat
from reason.models.checkpoint import Checkpoint
from reason.models.tokenizer import PretrainedTokenizer

if TYPE_CHECKING:
    from reason.engines.openai_api.engine import OpenAIEngine

APIS = ("completions", "chat")
MAX_TOKENS_FIELDS = ("max_tokens", "max_completion_tokens")
OMITTABLE = (*NEUTRAL, "seed")
_FIELDS_WITH_SETTINGS = {
    *("model", "prompt", "messages", "n", "stream", "stream_options", "stop", "logprobs"),
    *(*MAX_TOKENS_FIELDS, *OMITTABLE),
}
_LOOK_UP_TIMEOUT_S = 10.0
_MAX_NAMES, _MAX_NAME = 20, 100  # of the models in a message, and the length of one


@dataclass(frozen=True, kw_only=True)
class OpenAISettings(ServerSettings):
    """OpenAI-compatible servers; `conf/engine/openai.yaml` describes the fields beyond those of `ServerSettings`.

    Raises: ValueError naming the setting.
    """

    needs_checkpoint: ClassVar[bool] = False
    constrains_json: ClassVar[bool] = True
    url_example: ClassVar[str] = "http://host:8000/v1"
    url_has_path: ClassVar[bool] = True
    pauses_only_server: ClassVar[bool] = False  # its other requests may be fine, and there is nowhere else to send to

    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    api: str | None = None
    prefill: bool = False
    logprobs: bool = False
    thought_tags: Sequence[str] | None = None
    drops_thoughts: bool | None = None
    max_tokens_field: str = "max_tokens"
    think_tokens_field: str | None = None
    omit: Sequence[str] = ()
    extra_body: Mapping[str, object] = field(default_factory=dict)
    unavailable_timeout_s: float = 600.0
    max_in_flight: int = 64
    max_retries: int = 6
    min_backoff_s: float = 0.5
    max_backoff_s: float = 20.0  # vendors count requests by the minute

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is not None and (not isinstance(self.model, str) or not self.model):
            raise ValueError(f"model must be the name that the server knows it by, got {self.model!r}")
        if self.api_key is not None and not _is_key(self.api_key):  # the message must not repeat a secret
            raise ValueError("api_key must be printable ASCII text without spaces")
        if self.api is not None and self.api not in APIS:
            raise ValueError(f"api must be one of {', '.join(APIS)} or null, got {self.api!r}")
        require_switch("prefill", self.prefill)
        require_switch("logprobs", self.logprobs)
        tags = self.thought_tags
        if tags is not None and not _are_tags(tags):
            raise ValueError(f"thought_tags must be two texts, [opening, closing], or null; got {tags!r}")
        if self.drops_thoughts is not None:
            require_switch("drops_thoughts", self.drops_thoughts)
        require_choice("max_tokens_field", self.max_tokens_field, MAX_TOKENS_FIELDS)
        field_of_budget = self.think_tokens_field
        if field_of_budget is not None and not _is_dotted_name(field_of_budget):
            raise ValueError(
                "think_tokens_field must be the name of a field, with dots where it is inside others "
                f"(reasoning.max_tokens), or null; got {field_of_budget!r}"
            )
        if isinstance(self.omit, str) or not isinstance(self.omit, Sequence) or set(self.omit) - {*OMITTABLE}:
            raise ValueError(f"omit must be a list of some of {', '.join(OMITTABLE)}; got {self.omit!r}")
        if not isinstance(self.extra_body, Mapping):
            raise ValueError(f"extra_body must hold fields and their values, got {self.extra_body!r}")
        for name in sorted((_FIELDS_WITH_SETTINGS - set(self.omit)) & set(self.extra_body)):
            raise ValueError(f"extra_body.{name} has a setting of its own")

    @property
    def gives_logprobs(self) -> bool:
        return self.logprobs

    @property
    def measures_tokens(self) -> bool:
        """See `EngineSettings`."""
        return self.logprobs

    @property
    def continues_text(self) -> bool:
        """Whether requests can continue earlier output, as step searches do."""
        return self.api == "completions" or self.prefill

    @property
    def ends_thoughts(self) -> bool:
        """See `EngineSettings`."""
        return self.api == "chat" and self.think_tokens_field is not None

    @property
    def tag_pair(self) -> tuple[str, str] | None:
        """The opening and the closing text put around a thought that a server sends apart; None drops the thought."""
        return None if self.thought_tags is None else (self.thought_tags[0], self.thought_tags[1])

    @property
    def request_format(self) -> RequestFormat:
        """How requests are written; `model` must be set."""
        assert self.model is not None, "ping comes first"
        return RequestFormat(
            model=self.model,
            chat=self.api == "chat",
            prefill=self.prefill,
            logprobs=self.logprobs,
            max_tokens_field=self.max_tokens_field,
            omit=tuple(self.omit),
            extra_body=dict(self.extra_body),
        )

    def adapt_to(self, use: EngineUse) -> Self:
        """See `EngineSettings`."""
        from reason.engines.openai_api.compatibility import adapt_settings

        adapted = adapt_settings(self, use)
        assert isinstance(adapted, type(self))
        return adapted

    def ping_server(self, url: str) -> None:
        """Checks that the server answers, takes the key and has the model.

        Raises: ConnectionError if it does not answer; ValueError about the key, or with the models that it has.
        """
        offered = self._query_models(url)
        if self.model is None:
            known = _describe_models(url, offered) if offered else f"{url} does not say what it offers"
            raise ValueError(f"model must be set; {known}")
        if offered and self.model not in offered and not self._accepts_model(url):
            raise ValueError(f"model={self.model} is not there; {_describe_models(url, offered)}")

    def open_engine(
        self, checkpoint: Checkpoint, *, tokenizer: PretrainedTokenizer, speculation: SpeculationFactory | None = None
    ) -> OpenAIEngine:
        """Returns the engine; of the model only the tokenizer is needed.

        Raises: ValueError or ConnectionError where a server does not answer or cannot be used.
        """
        from reason.engines.openai_api.engine import OpenAIEngine

        return OpenAIEngine(self, tokenizer=tokenizer)

    def _query_models(self, url: str) -> list[str] | None:
        """Returns the models that a server lists; None where it has no list. Raises: as `ping_server`."""
        from reason.engines.http.blocking import fetch_blocking
        from reason.engines.http.errors import ResponseLost, ServerUnreachable

        try:
            reply = fetch_blocking("GET", url, "/models", total_s=_LOOK_UP_TIMEOUT_S, api_key=self.api_key)
        except ServerUnreachable as error:
            raise ConnectionError(f"urls: nothing answers at {url} ({error}); start a server there") from error
        except ResponseLost as error:
            raise ConnectionError(f"urls: {error}") from error
        if reply.status in (401, 403):
            problem = "asks for a key; take it from the environment: '${oc.env:NAME}'"
            raise ValueError(f"api_key: {url} {problem if self.api_key is None else 'refuses it'}")
        if reply.status >= 500:
            raise ConnectionError(f"urls: {url} answers {reply.status} at /models; see its log")
        try:
            rows = cast(Mapping[str, Sequence[Mapping[str, object]]], reply.parse_json())["data"]
            names = sorted(str(row["id"]) for row in rows) if reply.has_content else None
        except (ResponseLost, ValueError, LookupError, TypeError, AttributeError):
            return None
        return names

    def _accepts_model(self, url: str) -> bool:
        """Returns whether a server takes a name that is not in its list, as some gateways do; generates one token."""
        from reason.engines.http.blocking import fetch_blocking
        from reason.engines.http.errors import TransientError

        body, path = self.request_format.build_probe(), self.request_format.path
        try:
            reply = fetch_blocking("POST", url, path, body, total_s=self.request_timeout_s, api_key=self.api_key)
        except TransientError:
            return False
        return reply.has_content


def _describe_models(url: str, names: Sequence[str]) -> str:
    """Returns what a server offers, for a message: its names are its text."""
    from reason.engines.http.masking import to_one_line

    shown = [to_one_line(name, _MAX_NAME) for name in names[:_MAX_NAMES]]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"{url} offers {', '.join(shown)}{more}"


def _are_tags(tags: object) -> bool:
    if not isinstance(tags, list | tuple) or len(tags) != 2:
        return False
    return all(isinstance(tag, str) and tag.strip() for tag in tags)


def _is_dotted_name(name: object) -> bool:
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))


def _is_key(value: object) -> bool:
    return isinstance(value, str) and bool(value) and value.isascii() and value.isprintable() and " " not in value
