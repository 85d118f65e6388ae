"""Facts that a server reports about itself, and the form of constraints that it takes."""

from dataclasses import dataclass
from typing import Any

from engines.chat import StructuredForm
from storage.terminal_escape import inert

_OPENAI_OWNERS = frozenset({"openai", "openai-internal", "system"})
_SHOWN, _LONGEST_SHOWN = 10, 100


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The models on offer, and who owns them."""

    models: tuple[str, ...]
    owners: frozenset[str]

    @property
    def form(self) -> StructuredForm:
        """How this server takes constraints; unknown kinds of server get none."""
        if "vllm" in self.owners:
            return "vllm"
        return "json_schema" if self.owners & _OPENAI_OWNERS else "none"

    @property
    def models_shown(self) -> str:
        """The first models, for a message."""
        more = ", …" if len(self.models) > _SHOWN else ""
        shown = ", ".join(inert(name[:_LONGEST_SHOWN]) for name in self.models[:_SHOWN])
        return (shown or "none") + more


def read_models(reply: Any) -> ServerFacts | None:
    """Returns facts in a reply to `GET /models`; None if it is not a list of models."""
    listed = reply.get("data") if isinstance(reply, dict) else None
    if not isinstance(listed, list):
        return None
    models = [m for m in listed if isinstance(m, dict)]
    return ServerFacts(
        models=tuple(str(m.get("id", "")) for m in models),
        owners=frozenset(str(m.get("owned_by", "")).lower() for m in models),
    )
