"""Sends the numbers of a run to trackers of experiments, beside the folder that every run has."""
