"""Whether what is asked for can be done over text; found out from the settings alone."""

from __future__ import annotations

from dataclasses import replace

from decoding.core import SamplingParams
from reason.config.errors import ConfigError
from reason.engines.openai_api.settings import Endpoints
from reason.engines.openai_api.wire import Form
from reason.models.byte_tokenizer import BYTES
from reason.models.checkpoint import Checkpoint
from reason.prompt import PromptFormat
from reason.scorers.base import Scorer
from reason.scorers.likelihood import Likelihood

_HAS_TOKENIZER = "a model whose tokenizer is here (model=hf model.path=FOLDER)"


def fitted(
    servers: Endpoints,
    *,
    key: str,
    checkpoint: Checkpoint,
    form: PromptFormat,
    scorer: Scorer,
    sampling: SamplingParams | None,
    goes_on: str | None,
) -> Endpoints:
    """The settings with `api` decided: a conversation where the server is to render it, else text.

    key       where the settings are: `engine` or `draft`
    sampling  what will be asked for; None where a plugin does not say
    goes_on   what it is that goes on with what was written, as people set it; None if nothing does

    Raises: ConfigError naming the setting.
    """
    unknown = checkpoint.source == BYTES
    api = servers.api or ("chat" if unknown and form.raw is None else "completions")
    found = replace(servers, api=api)
    if api == "chat" and (not unknown or form.raw is not None):
        raise ConfigError(f"{key}.api=chat sends conversations, which the server renders; it goes with model=served")
    if api == "completions" and unknown and form.raw is None:
        raise ConfigError(f"{key}.api=completions sends text; set model.prompt.raw, or choose {_HAS_TOKENIZER}")
    if servers.prefill and api != "chat":
        raise ConfigError(f"{key}.prefill is for {key}.api=chat; completions go on with any text")
    if not found.goes_on:
        _require_whole_answers(key, form, goes_on)
    if servers.logprobs and unknown:
        raise ConfigError(f"{key}.logprobs are of tokens, which model=served does not know; choose {_HAS_TOKENIZER}")
    if isinstance(scorer, Likelihood) and not servers.logprobs:
        remedy = f"choose {_HAS_TOKENIZER} and {key}.logprobs=true" if unknown else f"set {key}.logprobs=true"
        raise ConfigError(
            f"scorer=likelihood needs log-probabilities, which {key}=openai is told only if it asks; {remedy}, "
            "or choose scorer=none or a reward model that reads text (scorer=qwen_prm, skywork_prm, ...)"
        )
    if sampling is not None:
        try:
            Form(model="", chat=api == "chat", omit=tuple(servers.omit)).check(sampling)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    return found


def _require_whole_answers(key: str, form: PromptFormat, goes_on: str | None) -> None:
    remedies = (
        f"choose {key}.prefill=true if the server can go on with an answer (vLLM and SGLang can), or "
        f"{key}.api=completions with {_HAS_TOKENIZER}"
    )
    if goes_on is not None:
        raise ConfigError(
            f"{goes_on} goes on with what was written, and {key}.api=chat begins every answer anew; "
            f"{remedies}, or search=self_consistency or best_of_n"
        )
    if form.answer_start:
        raise ConfigError(f"model.prompt.answer_start begins the answer, and {key}.api=chat cannot; {remedies}")
