"""Speculation of `decoding` as a plugin of SGLang: two more values of `--speculative-algorithm`.

Drafters, acceptance rules and noise are those of `decoding`; this package fits them into SGLang. It must be
installed in the environment of SGLang; `entry.register` is the entry point.

REASON            coupled acceptance: the seed of a request decides its tokens, which are those of `LocalEngine`
REASON_RECURSIVE  recursive rejection: the same distribution, other tokens in every run

`models` has the reward models that SGLang lacks; `SGLANG_EXTERNAL_MODEL_PACKAGE` names it to SGLang.
`cpu_stand_ins` is a folder for the front of a server's PYTHONPATH: plain PyTorch versions of the packages that SGLang
needs and that are compiled for GPUs only.
"""

from __future__ import annotations

from pathlib import Path

CPU_STAND_INS = Path(__file__).parent / "cpu_stand_ins"
