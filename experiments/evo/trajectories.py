"""The steps of a policy on a test question, with near-duplicate searches marked."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from agent.actions import is_search
from rewards.evo_rag.steps import Similarity
from storage.records import Prediction

NEAR = 0.8
"""Cosine from which two sub-queries are near-duplicates, as in `rewards.overlap_threshold`."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step of a trajectory.

    Attributes:
        action: Kind of action.
        content: Query or answer; "" for other actions.
        titles: Titles of the retrieved passages.
        alike: Largest cosine to an earlier query; None for the first search and other actions.
    """

    action: str
    content: str
    titles: tuple[str, ...] = ()
    alike: float | None = None

    @property
    def searches(self) -> bool:
        return is_search(self.action)

    @property
    def repeats(self) -> bool:
        """Whether its query nearly repeats an earlier one."""
        return self.alike is not None and self.alike >= NEAR


def moves_of(row: Prediction, similarity: Similarity) -> Iterator[RecordedStep]:
    """Yields the steps of a trajectory, in order; queries that were taken back count as earlier
    ones.
    """
    queries: list[str] = []
    for step in json.loads(row.trajectory):
        content, alike = step["content"], None
        if is_search(step["action"]):
            alike = similarity(content, queries) if queries else None
            queries.append(content)
        titles = tuple(passage["title"] for passage in step["passages"])
        yield RecordedStep(step["action"], content, titles, alike)
