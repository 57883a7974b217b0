"""Starts the SGLang servers of a run on this machine: what is started, checks beforehand, and the processes."""
