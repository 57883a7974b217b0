"""Converts questions to token ids and ids to text: raw text or the model's own chat template, once per problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from decoding.core import Tokens
from decoding.validation import require_text, shorten

SLOT = "{question}"
TOOL_FORMATS = ("hermes", "llama")
"""How models write tool calls: `<tool_call>{...}</tool_call>`, or a bare JSON object with `name` and `parameters`."""


class Tokenizer(Protocol):
    """The methods of a tokenizer that prompts use; every Hugging Face tokenizer has them."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str: ...
    def apply_chat_template(
        self, conversation: list[dict[str, Any]], *, tokenize: bool, add_generation_prompt: bool, **options: object
    ) -> str: ...


@dataclass(frozen=True, kw_only=True)
class PromptFormat:
    """The prompt format of one model; the model's yaml holds its values.

    raw           plain text with `{question}` in it, for models without a chat template; null for the template
    system        the system message, null for none
    user          the user message, with `{question}` in it
    answer_start  prefix of the model's answer (a think tag); the model continues it
    options       further arguments of the chat template (`enable_thinking`)
    delimiter     the text that ends a step
    tool_calls    how the model writes calls of tools in its chat template (`TOOL_FORMATS`); null: it calls none

    Raises: ValueError naming the setting.
    """

    raw: str | None = None
    system: str | None = None
    user: str = SLOT
    answer_start: str = ""
    options: Mapping[str, object] = field(default_factory=dict)
    delimiter: str = "\n\n"
    tool_calls: str | None = None

    def __post_init__(self) -> None:
        for name in ("raw", "system", "user", "answer_start", "delimiter"):
            text, or_null = getattr(self, name), name in ("raw", "system")
            if not isinstance(text, str) and not (or_null and text is None):
                raise ValueError(f"model.prompt.{name} must be a text{' or null' * or_null}, got {shorten(text)}")
            if text is not None and SLOT not in text and name in ("raw", "user"):
                raise ValueError(f"model.prompt.{name} must contain {SLOT}, got {text!r}")
            require_text(f"model.prompt.{name}", text)
        if not self.delimiter:
            raise ValueError("model.prompt.delimiter must not be empty")
        if self.tool_calls is not None and self.tool_calls not in TOOL_FORMATS:
            raise ValueError(
                f"model.prompt.tool_calls must be one of {', '.join(TOOL_FORMATS)} or null, got {self.tool_calls!r}"
            )

    def build_conversation(
        self, messages: Sequence[Mapping[str, object]], *, as_question: bool = True
    ) -> list[dict[str, object]]:
        """Returns the chat template's input for these messages, the last of which is the question or a tool's result.

        Every question is inserted into `user`, unless they are not `as_question`, so that each turn of a conversation
        begins with the tokens of the turn before, and finds them in the prefix cache. `system` and the system messages
        become one, in this order.

        >>> form = PromptFormat(system="Be brief.", user="Q: {question}")
        >>> form.build_conversation([{"role": "user", "content": "1+1?"}])
        [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'Q: 1+1?'}]
        """
        given = [str(message["content"]) for message in messages if message["role"] == "system"]
        rules = given if self.system is None else [self.system, *given]
        system: list[dict[str, object]] = [{"role": "system", "content": "\n\n".join(rules)}] if rules else []
        turns = [dict(message) for message in messages if message["role"] != "system"]
        if as_question:
            for turn in turns:
                if turn["role"] == "user":
                    turn["content"] = self.user.replace(SLOT, str(turn["content"]))
        return [*system, *turns]


class Prompt:
    """A prompt format with its tokenizer. Text is encoded here and nowhere else.

    tags  texts whose special tokens stay in decoded text, such as those around a thought; no other special token does
    """

    def __init__(self, prompt_format: PromptFormat, tokenizer: Tokenizer, tags: Sequence[str] = ()) -> None:
        self.format = prompt_format
        self._tokenizer, self._tags = tokenizer, tuple(tags)
        tag_ids = {token for tag in tags for token in tokenizer.encode(tag, add_special_tokens=False)}
        special_ids = _special_ids(tokenizer)
        self._keeps_special = not tag_ids.isdisjoint(special_ids)
        self._hidden_ids = special_ids - tag_ids
        self._anchor = tuple(tokenizer.encode("x", add_special_tokens=False))
        self._anchor_text = self._decode_all(self._anchor)
        self._break = tuple(tokenizer.encode("\n", add_special_tokens=False))
        if prompt_format.raw is None and getattr(tokenizer, "chat_template", "") is None:
            raise ValueError("this model has no chat template; set model.prompt.raw, for instance to '{question}\\n'")

    def with_tokenizer(self, tokenizer: Tokenizer) -> Prompt:
        """Returns the same prompt for the tokenizer of another model."""
        return Prompt(self.format, tokenizer, self._tags)

    def encode(self, question: str) -> Tokens:
        """Returns the ids the search starts from."""
        if self.format.raw is not None:
            return self.encode_text(self.format.raw.replace(SLOT, question) + self.format.answer_start)
        return self.encode_chat([{"role": "user", "content": question}])

    def encode_request(self, text: str) -> Tokens:
        """Returns the ids of a request that is no question: `model.prompt.user` adds nothing to it.

        A format of plain text has one form for both.
        """
        if self.format.raw is not None:
            return self.encode(text)
        return self.encode_chat([{"role": "user", "content": text}], as_question=False)

    def encode_text(self, text: str) -> Tokens:
        """Returns the ids of a text that the model continues unchanged."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=True))

    @property
    def is_rendered_by_server(self) -> bool:
        """Whether a server renders conversations, which takes fields of a request beside them."""
        return self.format.raw is None and bool(getattr(self._tokenizer, "takes_request_fields", False))

    @property
    def offers_tools(self) -> bool:
        """Whether the model's chat template, which is here, can show tools to the model."""
        template = getattr(self._tokenizer, "chat_template", None)
        return self.format.raw is None and not self.is_rendered_by_server and "tools" in str(template)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        as_question: bool = True,
        more: Mapping[str, object] | None = None,
    ) -> Tokens:
        """Returns the ids of a conversation that ends with a question, for a model with a chat template.

        `more` are further arguments of the template: `tools`, or `request_fields` where a server renders it. See
        `PromptFormat.build_conversation`. Raises: ValueError if the model has no template or the template refuses
        the conversation.
        """
        from jinja2 import TemplateError

        form = self.format
        if form.raw is not None:
            raise ValueError("this model takes plain text (model.prompt.raw) and no conversations")
        conversation = form.build_conversation(messages, as_question=as_question)
        try:
            text = self._tokenizer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=True, **form.options, **(more or {})
            )
        except TemplateError as error:
            raise ValueError(f"this model's chat template refuses the conversation: {error}") from error
        if not text.endswith(form.answer_start):
            text += form.answer_start
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))  # the template wrote the special tokens

    def encode_continuation(self, text: str) -> Tokens:
        """Returns the ids of a text from the middle of a solution.

        It is encoded after a line break, because some tokenizers prepend a space; without one where the break and the
        text would share a token.
        """
        ids = tuple(self._tokenizer.encode("\n" + text, add_special_tokens=False))
        if ids[: len(self._break)] == self._break:
            return ids[len(self._break) :]
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, tokens: Tokens) -> str:
        """Returns the text of ids from the middle of a solution, without special tokens other than those of the tags.

        It is decoded after an anchor token, because some tokenizers drop a leading space: the texts of consecutive
        steps then join to the text of the whole.
        """
        return self._decode_all((*self._anchor, *tokens))[len(self._anchor_text) :]

    def decode_last_turn(self, prompt: Tokens) -> str:
        """Returns the text behind the last hidden special token of a prompt, where the model's own turn begins.

        Tags that an earlier message mentions are not in it.
        """
        turn: list[int] = []
        for token in reversed(prompt):
            if token in self._hidden_ids:
                break
            turn.append(token)
        return self.decode(tuple(reversed(turn)))

    def _decode_all(self, tokens: Tokens) -> str:
        shown = [token for token in tokens if token not in self._hidden_ids] if self._keeps_special else list(tokens)
        return self._tokenizer.decode(
            shown, skip_special_tokens=not self._keeps_special, clean_up_tokenization_spaces=False
        )


def _special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids that decoding hides; some tokenizers mark added tokens as special without listing them."""
    added: Mapping[int, object] = getattr(tokenizer, "added_tokens_decoder", {})
    marked = {token for token, entry in added.items() if getattr(entry, "special", False)}
    return frozenset(marked.union(getattr(tokenizer, "all_special_ids", ())))
