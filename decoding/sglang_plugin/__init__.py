"""Our speculation inside SGLang: `--speculative-algorithm REASON`, once this package is installed beside it.

Drafters, acceptance rules and noise are those of `decoding`; only what fits them into SGLang is here. `register` (in
`entry`) is the entry point; `worker` alone imports SGLang. With the coupled rule a request's seed decides its tokens,
the same ones that `decoding.engine.LocalEngine` would write.

REASON_ACCEPTANCE in the server's environment chooses the rule: coupled (default) or recursive_rejection.
"""
