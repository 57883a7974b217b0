"""Question to token ids and ids to text: raw text or the model's own chat template, once per problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from decoding.core import Tokens

SLOT = "{question}"


class Tokenizer(Protocol):
    """The few things we ask of a tokenizer; every Hugging Face tokenizer does them."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(self, token_ids: Sequence[int], **kwargs: Any) -> str: ...
    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class PromptFormat:
    """How one model wants to be asked; a model's yaml holds its values.

    raw           plain text with `{question}` in it, for models without a chat template; null for the template
    system        the system message, null for none
    user          the user's message, with `{question}` in it
    answer_start  what the model's answer begins with, as if it had written it (a think tag)
    options       handed to the chat template (`enable_thinking`)
    delimiter     the text that ends a step

    Raises: ValueError naming the setting.
    """

    raw: str | None = None
    system: str | None = None
    user: str = SLOT
    answer_start: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    delimiter: str = "\n\n"

    def __post_init__(self) -> None:
        for name in ("raw", "user"):
            text = getattr(self, name)
            if text is not None and SLOT not in text:
                raise ValueError(f"model.prompt.{name} must contain {SLOT}, got {text!r}")
        if not self.delimiter:
            raise ValueError("model.prompt.delimiter must not be empty")

    def conversation(self, messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
        """What a chat template is given for these messages, the last of which is the question: our words around
        that, and one system message of ours and theirs.

        >>> PromptFormat(system="Be brief.", user="Q: {question}").conversation([{"role": "user", "content": "1+1?"}])
        [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'Q: 1+1?'}]
        """
        *before, question = messages
        theirs = [message["content"] for message in before if message["role"] == "system"]
        rules = theirs if self.system is None else [self.system, *theirs]
        system = [{"role": "system", "content": "\n\n".join(rules)}] if rules else []
        turns = [dict(message) for message in before if message["role"] != "system"]
        return [*system, *turns, {"role": "user", "content": self.user.replace(SLOT, question["content"])}]


class Prompt:
    """A format and the tokenizer that goes with it. Text is encoded here and nowhere else."""

    def __init__(self, form: PromptFormat, tokenizer: Tokenizer) -> None:
        self.form = form
        self._tokenizer = tokenizer
        self._anchor = tuple(tokenizer.encode("x", add_special_tokens=False))
        self._anchor_text = self._text(self._anchor)
        self._break = tuple(tokenizer.encode("\n", add_special_tokens=False))
        if form.raw is None and getattr(tokenizer, "chat_template", "") is None:
            raise ValueError("this model has no chat template; set model.prompt.raw, for instance to '{question}\\n'")

    def encode(self, question: str) -> Tokens:
        """The ids the search starts from."""
        if self.form.raw is not None:
            return self.encode_text(self.form.raw.replace(SLOT, question) + self.form.answer_start)
        return self.encode_chat([{"role": "user", "content": question}])

    def encode_text(self, text: str) -> Tokens:
        """The ids of a text the model is to go on with as it is."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=True))

    def encode_chat(self, messages: list[dict[str, str]]) -> Tokens:
        """The ids of a conversation that ends with a question, for a model with a chat template. See
        `PromptFormat.conversation`. Raises: ValueError where the template refuses it, or there is none."""
        from jinja2 import TemplateError

        form = self.form
        if form.raw is not None:
            raise ValueError("this model is asked with plain text and knows no conversations")
        conversation = form.conversation(messages)
        try:
            text = self._tokenizer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=True, **form.options
            )
        except TemplateError as error:
            raise ValueError(f"this model's chat template refuses the conversation: {error}") from error
        if not text.endswith(form.answer_start):
            text += form.answer_start
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def encode_more(self, text: str) -> Tokens:
        """The ids of a text from the middle of a solution.

        Encoded behind a line break, because some tokenizers put a space before what they encode; by itself where the
        two would become one token.
        """
        ids = tuple(self._tokenizer.encode("\n" + text, add_special_tokens=False))
        if ids[: len(self._break)] == self._break:
            return ids[len(self._break) :]
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, tokens: Tokens) -> str:
        """The text of ids from the middle of a solution; special tokens are left out.

        Decoded behind an anchor, because some tokenizers drop a space at the beginning of what they decode:
        so the texts of consecutive steps join to the text of the whole.
        """
        return self._text((*self._anchor, *tokens))[len(self._anchor_text) :]

    def _text(self, tokens: Tokens) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
