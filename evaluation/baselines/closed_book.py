"""Closed-book baseline: one turn without passages, from the model's own knowledge."""

from evaluation.baselines import Baseline, Material


def baseline(material: Material) -> Baseline:
    """Begins with the question alone."""
    return Baseline()
