"""A policy as an evaluation runs it: its model, its protocol and its temperature."""

from dataclasses import dataclass
from functools import cached_property

from branchwise.agent import AgentProtocol, AgentSettings, protocol_of
from branchwise.engines import ModelSettings, Sampling


@dataclass(frozen=True)
class PolicyUnderTest:
    """A policy that answers questions: of an evaluation, of a rating, or for a baseline.

    Attributes:
        temperature: Sampling temperature, instead of the model's own; 0 is greedy.
    """

    model: ModelSettings
    agent: AgentSettings
    temperature: float

    @cached_property
    def protocol(self) -> AgentProtocol:
        """The protocol of `agent`."""
        return protocol_of(self.agent)

    @property
    def sampling(self) -> Sampling:
        """Sampling settings of its answers."""
        return Sampling.of(self.model, self.temperature)
