"""The servers of a run on this machine: which they are, whether they can be, and their life together."""
