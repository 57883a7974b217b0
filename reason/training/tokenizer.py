"""Trains the tokenizers of the bundled models: each word and the blank line between steps is one token.

So is each digit, and for the thinker each number that its puzzles need: what it adds are then two tokens, not six.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from reason.tasks.puzzles import forms
from reason.tasks.synthetic.draw import draw_exercise
from reason.tasks.synthetic.exercise import ExactWriter
from reason.tasks.synthetic.families import FAMILIES

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

EOS = "<|endoftext|>"
PAD = "<|pad|>"
# One alternation: chained rules would split the blank line again.
_PIECES = r"\n\n|\n| ?\d| ?\p{L}+|[^\s\p{L}\d]|\s"
# A space belongs to the sign before a number, not to the number: each number then is one token wherever it stands.
_THINKER_PIECES = r"\n\n|\n|\d{1,3}| ?\p{L}+|[^\s\p{L}\d] ?|\s"
# As the vocabularies of published models cut texts.
_TEXT_PIECES = r"\d| ?\p{L}+| ?[^\s\p{L}\d]+|\s+"
_THINKER_NUMBERS = range(150)


def render_prompt(question: str) -> str:
    """Returns the prompt that the bundled models were trained on."""
    return f"Question: {question}\nSolution:\n"


def build_tokenizer(num_problems: int = 12_000, min_frequency: int = 20) -> PreTrainedTokenizerFast:
    """Returns a byte-level BPE tokenizer trained on training-split problems; deterministic."""
    tokenizer = _train_pieces(_PIECES, _texts(num_problems), [EOS, PAD], min_frequency)
    return _wrap_pieces(tokenizer, eos=EOS)


def build_thinker_tokenizer(num_problems: int = 3_000, min_frequency: int = 20) -> PreTrainedTokenizerFast:
    """Returns the tokenizer of the bundled thinker: the tags are single tokens, and it has a chat template."""
    from tokenizers import AddedToken

    from reason.training.thoughts import thought_texts  # it reads examples, which read the prompt of this module

    specials = [EOS, PAD, forms.TURN_START, forms.TURN_END]
    numbers = [" ".join(map(str, _THINKER_NUMBERS))] * min_frequency
    texts = chain(numbers, thought_texts(num_problems))
    tokenizer = _train_pieces(_THINKER_PIECES, texts, specials, min_frequency)
    # not special: they stay in decoded text
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in (forms.OPENING, forms.CLOSING)])
    wrapped = _wrap_pieces(tokenizer, eos=forms.TURN_END)
    wrapped.chat_template = forms.CHAT_TEMPLATE
    return wrapped


def build_text_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Returns a byte-level BPE tokenizer of at most `vocab_size` tokens trained on texts; each digit is a token."""
    return _wrap_pieces(_train_pieces(_TEXT_PIECES, texts, [EOS, PAD], 2, vocab_size), eos=EOS)


def _wrap_pieces(tokenizer: Tokenizer, *, eos: str) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, pad_token=PAD, padding_side="left")


def _train_pieces(
    pieces: str, texts: Iterable[str], specials: list[str], min_frequency: int, vocab_size: int = 1024
) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=specials,
        min_frequency=min_frequency,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _texts(count: int) -> Iterator[str]:
    rng = random.Random(0)
    weights = dict.fromkeys(FAMILIES, 1.0)
    for _ in range(count):
        exercise = draw_exercise(rng, "train", weights=weights)
        yield render_prompt(exercise.question) + exercise.write_solution(ExactWriter(), rng)
