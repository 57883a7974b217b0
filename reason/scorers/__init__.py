"""Scores for steps: process reward models, a policy's own confidence, or none at all."""
