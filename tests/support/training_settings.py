"""Settings of one training, in float32."""

from typing import Any

from branchwise.training.settings import TrainingSettings


def training_settings(block: str, **changes: Any) -> TrainingSettings:
    """Returns training settings with changes to a block ("sft", "dpo", …) and to shared ones."""
    shared = {name: changes.pop(name) for name in TrainingSettings.model_fields & changes.keys()}
    return TrainingSettings.model_validate({"precision": "float32", **shared, block: changes})
