"""Embedders, which tell steps with the same meaning from others."""
