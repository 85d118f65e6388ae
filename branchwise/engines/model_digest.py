"""The digest of a model, by which its calls and rows are told from those of other models."""

from branchwise.weights import policy_digest, policy_files

from .endpoint.client import endpoint_digest
from .settings import ModelSettings
from .vllm.served_weights import served_digest


def model_digest(settings: ModelSettings) -> str:
    """Returns the `policy_digest` of rows that a model draws; neither connects nor converts.

    Raises:
        ConfigError: If the model's files are missing or unusable, or its address is.
    """
    if settings.engine == "openvino":
        return policy_digest(policy_files(settings.model), settings.precision + settings.reply_rule)
    return served_digest(settings) if settings.engine == "vllm" else endpoint_digest(settings)
