"""Problems made from a seed: what the bundled models were trained on, and need no network."""

from reason.tasks.synthetic.task import Synthetic

__all__ = ["Synthetic"]
