"""Architectures of the open reward models, for `SGLANG_EXTERNAL_MODEL_PACKAGE=decoding.sglang_plugin.models`."""
