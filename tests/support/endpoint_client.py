"""Engines of a fake endpoint, and requests to it."""

from dataclasses import replace
from typing import Any

from branchwise.engines.endpoint.openai import OpenAIEngine
from branchwise.engines.endpoint.retry import RetryPolicy
from branchwise.engines.sampling import CallIdentity, SampleRequest, Sampling
from branchwise.engines.settings import ModelSettings
from branchwise.types import Message

KEY_VARIABLE = "TEST_KEY"
REQUEST = SampleRequest(
    (Message("system", "Answer."), Message("user", "Capital of France?")),
    Sampling(temperature=0.7, top_p=0.9, max_new_tokens=17, stop=("</answer>",)),
    CallIdentity("policy", "q1", "tree/0"),
)


def draws(number: int) -> list[SampleRequest]:
    """Returns requests that differ in their draw."""
    return [
        replace(REQUEST, identity=replace(REQUEST.identity, draw=draw)) for draw in range(number)
    ]


def engine(
    url: str, *, max_concurrency: int = 8, timeout_s: float = 20.0, **settings: Any
) -> OpenAIEngine:
    """Returns an engine that retries without waiting."""
    model = ModelSettings(
        **{"engine": "openai", "model": "policy", "base_url": url, "api_key_env": KEY_VARIABLE}
        | settings
    )
    return OpenAIEngine(
        model,
        max_concurrency=max_concurrency,
        timeout_s=timeout_s,
        retry=RetryPolicy(base_s=0.0),
    )
