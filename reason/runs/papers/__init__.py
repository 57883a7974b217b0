"""Compares runs with published figures: what a paper reports, and whether a run has its settings."""
