"""A model folder without weights whose token ids are bytes, and 256 the end: what the hostile servers speak."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

END = 256


def write_byte_model(folder: Path) -> None:
    """Writes configuration and tokenizer of a model of bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE(vocab=byte_vocabulary(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    model = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": END + 1,
        "eos_token_id": END,
        "max_position_embeddings": 4096,
    }
    (folder / "config.json").write_text(json.dumps(model))


def byte_vocabulary() -> dict[str, int]:
    """Returns the id of each letter with which tokenizers write a byte: printable ones as they are, others above 255.

    >>> byte_vocabulary()["A"], byte_vocabulary()["Ġ"], len(byte_vocabulary())
    (65, 32, 256)
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
