"""A random model that generates solutions with answers, small enough for every test, and its tokenizer.

Whole phrases are single tokens, the final answers and the end among them, so that sampling from random
weights gives solutions of a few steps with an answer each.
"""

from __future__ import annotations

import string
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

END = "<end>"
ANSWERS = [f"The answer is \\boxed{{{digit}}}." for digit in range(4)]
PHRASES = ["\n\n", "Try this. ", "Then that. ", *ANSWERS]


def save_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Saves and returns a tokenizer whose tokens are the phrases, the end and single characters."""
    words = [END, *PHRASES, *string.printable, "?unknown"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(dict.fromkeys(words))}, "?unknown"))
    phrases = r"The answer is \\boxed\{\d\}\.|Try this\. |Then that\. |\n\n|[\s\S]"
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(phrases), "isolated")
    tokenizer.decoder = decoders.Fuse()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    wrapped.save_pretrained(folder)
    return wrapped


def save_writer(folder: Path) -> Path:
    """A causal model whose end, phrases and answers are about equally likely anywhere, and others unlikely."""
    tokenizer = save_tokenizer(folder)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(_make_config(len(tokenizer), tie_word_embeddings=False))
    num_likely = 1 + len(PHRASES)
    with torch.no_grad():
        model.model.norm.weight.mul_(0.5)
        model.model.embed_tokens.weight[:, 0] = 8.0  # a direction that all hidden states share
        model.lm_head.weight[:, 0] = -4.0
        model.lm_head.weight[:num_likely, 0] = 1.0
    model.save_pretrained(folder)
    return folder


def _make_config(vocabulary: int, **options: object) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=0,
        bos_token_id=None,
        pad_token_id=0,
        **options,
    )
