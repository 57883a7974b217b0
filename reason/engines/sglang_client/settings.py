"""Settings of `engine=sglang`: SGLang servers of one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from reason.engines.base import EngineUse, SpeculationFactory
from reason.engines.http.settings import ServerSettings
from reason.models.checkpoint import Checkpoint
from reason.models.tokenizer import PretrainedTokenizer

if TYPE_CHECKING:
    from reason.engines.sglang_client.dispatcher import Dispatcher
    from reason.engines.sglang_client.engine import SGLangEngine

_LOOK_UP_TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class SGLangSettings(ServerSettings):
    """SGLang servers, or a router in front of them; `ServerSettings` has the fields."""

    url_example: ClassVar[str] = "http://host:30000"
    constrains_json: ClassVar[bool] = True

    @property
    def measures_tokens(self) -> bool:
        """See `EngineSettings`."""
        return True

    def adapt_to(self, use: EngineUse) -> Self:
        """See `EngineSettings`."""
        self.require_room_for(use)
        return super().adapt_to(use)

    def ping_server(self, url: str) -> None:
        """See `ServerSettings`."""
        from reason.engines.http.blocking import fetch_blocking
        from reason.engines.http.errors import ResponseLost, ServerUnreachable

        try:
            fetch_blocking("GET", url, "/health", total_s=_LOOK_UP_TIMEOUT_S)
        except ServerUnreachable as error:
            start = "reason serve-models"
            raise ConnectionError(f"urls: nothing answers at {url} ({error}); start a server there: {start}") from error
        except ResponseLost as error:
            raise ConnectionError(f"urls: {error}") from error

    def open_engine(
        self, checkpoint: Checkpoint, *, tokenizer: PretrainedTokenizer, speculation: SpeculationFactory | None = None
    ) -> SGLangEngine:
        """Returns the engine; of the checkpoint only the tokenizer and the end tokens are read.

        Raises: ValueError or ConnectionError where a server does not answer or does not serve this model.
        """
        from decoding.stopping import StopRule
        from reason.engines.sglang_client.engine import SGLangEngine
        from reason.models.checkpoint import eos_ids

        def decode(tokens: Sequence[int]) -> str:
            return str(tokenizer.decode(list(tokens), skip_special_tokens=False))

        return SGLangEngine(
            self.open_dispatcher(),
            stop_rule=StopRule(decode, eos_ids(checkpoint.source, tokenizer)),
            vocab_size=checkpoint.vocab_size or max(tokenizer.get_vocab().values()) + 1,
            tokenizer=tokenizer,
        )

    def open_dispatcher(self) -> Dispatcher:
        """Returns a client of these servers."""
        from reason.engines.sglang_client.dispatcher import Dispatcher

        return Dispatcher(self)
