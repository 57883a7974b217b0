"""Holds the distance threshold of an embedder and the model that it was measured on."""

from __future__ import annotations

import logging

from decoding.validation import require_positive

log = logging.getLogger(__name__)


class MeasuredThreshold:
    """Base of embedders: a threshold suits the model that it was measured on, and with another one there is a warning.

    distance_threshold  cosine distance below which two steps have the same meaning; `scripts/bench/calibrate.py`
                        measures it for a model
    measured_on         path of that model; None: it suits all
    """

    def __init__(self, *, distance_threshold: float, measured_on: str | None = None) -> None:
        require_positive("distance_threshold", distance_threshold)
        if measured_on is not None and (not isinstance(measured_on, str) or not measured_on):
            raise ValueError(f"measured_on must be the path of a model, or null, got {measured_on!r}")
        self.distance_threshold = float(distance_threshold)
        self.measured_on = measured_on

    def find_measured_path(self, model_path: str) -> str:
        """Returns the path of the model that the threshold depends on: `model_path`, that of the steps' writer."""
        return model_path

    def warn_of_other_model(self, model_path: str) -> None:
        """Warns where the threshold was measured on another model: steps of this one lie closer together or further
        apart, so that all may have one meaning, or each its own."""
        path = self.find_measured_path(model_path)
        if self.measured_on not in (None, path):
            log.warning(
                "embedder.distance_threshold=%g was measured on %s, not on %s: which steps have the same meaning may "
                "be wrong; measure it (scripts/bench/calibrate.py), then set embedder.distance_threshold and "
                "embedder.measured_on",
                self.distance_threshold,
                self.measured_on,
                path,
            )
