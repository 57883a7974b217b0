"""What the plugin replaces and calls of SGLang's workers with a draft model, checked beside `hooks.HOOKS`."""

from __future__ import annotations

from decoding.sglang_plugin.hooks import HOOKS, REGISTRATION_HOOKS, Hook

_EAGLE = "sglang.srt.speculative.eagle_worker_v2"
_COMMON = "sglang.srt.speculative.eagle_worker_common"
DRAFT_HOOKS = (
    Hook(_EAGLE, "organize_draft_results", ("score_list", "token_list", "parents_list", "num_draft_token")),
    Hook(
        _EAGLE,
        "build_eagle_verify_input",
        (
            *("batch", "draft_input", "parent_list", "top_scores_index", "draft_tokens", "draft_probs"),
            *("topk", "num_steps", "num_draft_tokens"),
        ),
        ("build_tree_kernel_efficient",),
    ),
    Hook(_EAGLE, "EagleDraftWorker.draft", ("batch",), ("build_eagle_verify_input", "draft_forward")),
    Hook(_EAGLE, "EagleDraftWorker.draft_forward", ("forward_batch",), ("organize_draft_results",)),
    Hook(
        _EAGLE,
        "EAGLEWorkerV2.forward_batch_generation",
        ("batch",),
        ("draft", "verify", "_draft_extend_for_decode", "spec_info"),
    ),
    Hook(_EAGLE, "EAGLEWorkerV2.verify", ("batch",), ("run_eagle_verify",)),
    Hook("sglang.srt.speculative.standalone_worker_v2", "StandaloneWorkerV2.__init__", uses=("StandaloneDraftWorker",)),
    Hook(_COMMON, "run_eagle_verify", ("batch",), ("eagle_sample", "_finalize_accept_tree_path")),
    Hook(_COMMON, "eagle_sample", ("verify_input", "batch", "logits_output", "grammar_mask", "watermark_state")),
)
ALL_HOOKS = (*REGISTRATION_HOOKS, *HOOKS, *DRAFT_HOOKS)
