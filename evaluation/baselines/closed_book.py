"""Closed-book: one turn of reading without a passage; what the model knows by itself."""

from evaluation.baselines import Baseline, Material


def baseline(material: Material) -> Baseline:
    """Begins with the question alone."""
    return Baseline()
