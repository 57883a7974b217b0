"""From settings to a routed engine: what cannot work is refused before a model loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from decoding.core import Engine
from reason.config.compose import complaints, make
from reason.config.errors import ConfigError
from reason.engines import spec as engines
from reason.engines.openai_api.settings import Endpoints
from reason.engines.spec import EnginePlan
from reason.models.checkpoint import Checkpoint, find_model, load_tokenizer, read_vocabulary
from reason.models.vocabulary import check_steps
from reason.prompt import Prompt, PromptFormat
from reason.routing.base import Router
from reason.routing.engine import Arbitrage
from reason.routing.entropy import Entropy
from reason.routing.fixed import Off
from reason.routing.token_bridge import Translation
from reason.scorers.base import Scorer
from reason.scorers.none import NoScorer

if TYPE_CHECKING:
    from decoding.round import Speculation


@dataclass(frozen=True)
class RouterPlan:
    """Checked settings: a router, and the small model's checkpoint, vocabulary and engine settings."""

    router: Router
    checkpoint: Checkpoint
    vocabulary: str
    draft: EnginePlan

    def engine(
        self,
        target: Engine,
        *,
        tokenizer: Any,
        prompt: Prompt,
        speculation: Callable[[Any, str], Speculation] | None,
    ) -> Arbitrage:
        """The two engines as one; loads the small model. Raises: ConfigError."""
        source = self.checkpoint.source
        with complaints("draft"):
            own = load_tokenizer(source)
            check_steps(self.vocabulary, source, own.get_vocab(), "model.path", tokenizer.get_vocab())
            translation = None
            if self.vocabulary == "own":
                translation = Translation(Prompt(prompt.form, own), prompt, tokenizer.eos_token_id)
        with complaints("router"):
            self.router.load(tokenizer)
        draft = self.draft.open(self.checkpoint, tokenizer=own, speculation=speculation)
        decode, delimiter = prompt.decode, prompt.form.delimiter
        return Arbitrage(draft, target, self.router, decode=decode, delimiter=delimiter, translation=translation)


def check(config: Mapping[str, Any], scorer: Scorer, writer: Checkpoint, form: PromptFormat) -> RouterPlan | None:
    """Everything that can be known without a model; None where one model writes everything.

    Raises: ConfigError naming the setting.
    """
    router: Router | Off = make("router", config["router"])
    if isinstance(router, Off):
        return None
    if router.needs_scorer and isinstance(scorer, NoScorer):
        raise ConfigError("this router reads scores and scorer=none gives none; choose scorer=prm, or router=entropy")
    with complaints("router"):
        router.check(writer)
    node = config["draft"]
    checkpoint = find_model(node["path"], key="draft.path")
    ours, writers = read_vocabulary(checkpoint.source), read_vocabulary(writer.source)
    with complaints("draft"):
        check_steps(node["vocabulary"], str(node["path"]), ours, "model.path", writers)
    draft = engines.check("draft", {key: value for key, value in node.items() if key not in ("path", "vocabulary")})
    draft = draft.fit(checkpoint, form=form, scorer=scorer, sampling=None, goes_on="router")
    if isinstance(router, Entropy) and isinstance(draft.servers, Endpoints) and not draft.servers.logprobs:
        raise ConfigError("router=entropy reads the small model's log-probabilities; set draft.logprobs=true")
    return RouterPlan(router, checkpoint, node["vocabulary"], draft)
