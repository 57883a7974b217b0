"""Speculation of `decoding` as a plugin of SGLang: adds two values of `--speculative-algorithm`.

Drafters, acceptance rules and noise are those of `decoding`; this package adapts them to SGLang. It must be installed
in the environment of SGLang; `entry.register` is the entry point.

REASON            coupled acceptance: the seed of a request decides its tokens, which are those of `LocalEngine`
REASON_RECURSIVE  recursive rejection: the same distribution, other tokens in every run

`models` has the reward models that SGLang lacks; SGLang loads it through `SGLANG_EXTERNAL_MODEL_PACKAGE`.
`cpu_stand_ins` is a folder for the front of a server's PYTHONPATH: PyTorch versions of packages that SGLang needs and
that are compiled for GPUs only.
"""

from __future__ import annotations

from pathlib import Path

COUPLED_ALGORITHM = "REASON"
RECURSIVE_ALGORITHM = "REASON_RECURSIVE"
OUR_ALGORITHMS = (COUPLED_ALGORITHM, RECURSIVE_ALGORITHM)
COUNTS_BEGIN = "rounds by draft nodes of each request:"
"""How a server's log reports its rounds when its cache is flushed; a JSON object follows."""
CPU_STAND_INS = Path(__file__).parent / "cpu_stand_ins"
