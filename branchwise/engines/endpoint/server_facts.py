"""Facts that a server reports about itself, and its form of constraints."""

from dataclasses import dataclass
from typing import Any

from branchwise.base import terminal_safe

from .chat import StructuredForm

_FORMS: dict[str, StructuredForm] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama.cpp",
    "openai": "json_schema",
    "openai-internal": "json_schema",
    "system": "json_schema",
}
"""Form of constraints by the owner that a server gives its models; the first that fits counts."""
_SHOWN, _LONGEST_SHOWN = 10, 100


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The available models and their owners."""

    models: tuple[str, ...]
    owners: frozenset[str]

    @property
    def form(self) -> StructuredForm:
        """The form in which this server takes constraints; "none" for unknown servers."""
        return next((form for owner, form in _FORMS.items() if owner in self.owners), "none")

    @property
    def models_shown(self) -> str:
        """The first models, for a message."""
        more = ", …" if len(self.models) > _SHOWN else ""
        shown = ", ".join(terminal_safe(name[:_LONGEST_SHOWN]) for name in self.models[:_SHOWN])
        return (shown or "none") + more


def read_models(reply: Any) -> ServerFacts | None:
    """Returns the facts in a reply to `GET /models`; None if it is not a list of models."""
    listed = reply.get("data") if isinstance(reply, dict) else None
    if not isinstance(listed, list):
        return None
    models = [m for m in listed if isinstance(m, dict)]
    return ServerFacts(
        models=tuple(str(m.get("id", "")) for m in models),
        owners=frozenset(str(m.get("owned_by", "")).lower() for m in models),
    )
