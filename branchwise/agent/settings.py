"""Settings of the `agent:` block: what every protocol has. Each protocol extends them."""

from pydantic import Field

from branchwise.base import Settings


class AgentSettings(Settings):
    """Protocol and budget.

    Attributes:
        protocol: Protocol between policy and environment; it decides the other settings.
        max_steps: Most policy calls per trajectory, in search, rollouts and inference. If the
            protocol forces an answer, the last call uses the forced-answer prompt.
    """

    protocol: str
    max_steps: int = Field(default=10, ge=1, le=100)


class ConstrainedSettings(AgentSettings):
    """A protocol whose replies have a form that an engine can enforce.

    Attributes:
        structured: Whether decoding is constrained to the form, if the engine supports it.
    """

    structured: bool = True


class OneCallSettings(AgentSettings):
    """A protocol with one policy call per trajectory.

    Attributes:
        max_steps: Always 1.
    """

    max_steps: int = Field(default=1, ge=1, le=1)
