"""What a server tells about itself, and which form of constraint follows from it."""

import re
from dataclasses import dataclass
from typing import Any

from engines.chat import StructuredForm
from storage.inert import inert

UNKNOWN_VERSION = (0,)
"""vLLM that does not tell its version."""

_OPENAI_OWNERS = frozenset({"openai", "openai-internal", "system"})
_SHOWN, _LONGEST_SHOWN = 10, 100


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The models on offer, who owns them, and vLLM's version (null for other servers)."""

    models: tuple[str, ...]
    owners: frozenset[str]
    vllm: tuple[int, ...] | None = None

    @property
    def is_vllm(self) -> bool:
        return "vllm" in self.owners

    @property
    def form(self) -> StructuredForm:
        """How this server takes constraints; unknown kinds of server get none."""
        if self.is_vllm:
            guided = UNKNOWN_VERSION < (self.vllm or UNKNOWN_VERSION) < (0, 11)
            return "vllm-guided" if guided else "vllm"
        return "json_schema" if self.owners & _OPENAI_OWNERS else "none"

    @property
    def models_shown(self) -> str:
        """The first models, for a message."""
        more = ", …" if len(self.models) > _SHOWN else ""
        shown = ", ".join(inert(name[:_LONGEST_SHOWN]) for name in self.models[:_SHOWN])
        return (shown or "none") + more


def read_models(reply: Any) -> ServerFacts | None:
    """Facts in a reply to `GET /models`; null if it is not a list of models."""
    listed = reply.get("data") if isinstance(reply, dict) else None
    if not isinstance(listed, list):
        return None
    models = [m for m in listed if isinstance(m, dict)]
    return ServerFacts(
        models=tuple(str(m.get("id", "")) for m in models),
        owners=frozenset(str(m.get("owned_by", "")).lower() for m in models),
    )


def read_version(reply: Any) -> tuple[int, ...]:
    """(major, minor) in a reply to vLLM's `GET /version`."""
    version = str(reply.get("version", "")) if isinstance(reply, dict) else ""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2]) or UNKNOWN_VERSION
