"""Our speculation inside SGLang: two more `--speculative-algorithm`, once this package is installed beside it.

Drafters, acceptance rules and noise are those of `decoding`; only what fits them into SGLang is here. `register` (in
`entry`) is the entry point.

REASON            coupled acceptance: a request's seed decides its tokens, and they are those of `LocalEngine`
REASON_RECURSIVE  recursive rejection: the right distribution, other tokens every time

`models` has the reward models that SGLang lacks; it is told of them by `SGLANG_EXTERNAL_MODEL_PACKAGE`.
"""
