"""Computes which comparisons a schedule keeps, silences or reverses, before a tree is grown.

A pair is kept if its two returns differ by a threshold (EVO-RAG section 3.4: δ = 0.2). If a
reward's weight is small, the threshold silences its comparisons: in Discovery κ is at most 0.1, so
a right answer is never preferred to a wrong one. The rewards themselves are computed on short
artificial episodes.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from branchwise.agent import Action, Step
from branchwise.rewards import EpisodeRewards, EvoRagSettings, Gold, is_wide_enough
from branchwise.types import RetrievedPassage

Effect = Literal["kept", "silenced", "turned"]

GOLD = Gold(answers=("right",), answerable=True, documents=frozenset({"gold"}))
"""Gold facts of the artificial question: one document holds the answer."""


@dataclass(frozen=True, slots=True)
class ActionComparison:
    """Two continuations of one state; the first should be preferred.

    Attributes:
        is_found: Whether the latest earlier search found the gold document; otherwise none did.
    """

    name: str
    is_found: bool
    better: tuple[Step, ...]
    worse: tuple[Step, ...]
    earliest: int = 1


@dataclass(frozen=True, slots=True)
class Compared:
    """A comparison at the 0-based policy call `t`.

    Attributes:
        gap: Return of the better continuation minus that of the worse. Below 0 the schedule prefers
            the worse.
        outcome: `kept` if the better is preferred, `silenced` by the threshold, or `turned` if the
            worse is preferred.
    """

    comparison: str
    t: int
    gap: float
    outcome: Effect


def _step(kind: str, content: str = "", *, finds: bool = False) -> Step:
    gold = RetrievedPassage(id="gold", title="", text="", score=0.0)
    return Step("reasoning", "", Action(kind, content), passages=(gold,) if finds else ())


RIGHT, WRONG = _step("answer", "right"), _step("answer", "wrong")
FINDS, MISSES = _step("search", "query", finds=True), _step("search", "query")
TAKE_BACK, REFUSE = _step("backtrack"), _step("refuse")

COMPARISONS = (
    ActionComparison("a right answer, a wrong one", True, (RIGHT,), (WRONG,)),
    ActionComparison("a search that finds, one that misses", False, (FINDS,), (MISSES,), 0),
    ActionComparison("refusing rightly, a wrong answer", False, (REFUSE,), (WRONG,)),
    ActionComparison("a right answer, refusing wrongly", True, (RIGHT,), (REFUSE,)),
    ActionComparison("a search that finds, taking back", False, (FINDS,), (TAKE_BACK,)),
    ActionComparison("finding and answering, refusing", False, (FINDS, RIGHT), (REFUSE,)),
    ActionComparison("answering, searching again first", True, (RIGHT,), (FINDS, RIGHT)),
    ActionComparison("answering, taking back and refusing", True, (RIGHT,), (TAKE_BACK, REFUSE)),
)


ASSUMED_OVERLAP = 0.5
"""Cosine of any two sub-queries of the artificial episodes."""


def simulate_suppression(
    settings: EvoRagSettings,
    max_steps: int,
    *,
    min_gap: float = 0.2,
    overlap: float = ASSUMED_OVERLAP,
) -> list[Compared]:
    """Returns all comparisons at every policy call at which both continuations are possible.

    Args:
        max_steps: Calls per episode; the last one must answer.
        min_gap: Smallest difference of returns that makes a pair.
        overlap: Cosine of any two sub-queries.
    """
    horizon = settings.horizon or max_steps
    rewards = EpisodeRewards(settings, horizon, lambda query, earlier: overlap)
    compared = []
    for comparison, t in product(COMPARISONS, range(max_steps)):
        if t >= comparison.earliest and _fit(comparison, t, max_steps):
            gap = _gap(comparison, t, rewards)
            compared.append(Compared(comparison.name, t, gap, _outcome(gap, min_gap)))
    return compared


def counts(compared: Sequence[Compared]) -> Mapping[str, Counter[Effect]]:
    """Counts how often each comparison is kept, silenced and turned over an episode's calls."""
    effects: dict[str, Counter[Effect]] = defaultdict(Counter)
    for row in compared:
        effects[row.comparison][row.outcome] += 1
    return effects


def _fit(comparison: ActionComparison, t: int, max_steps: int) -> bool:
    """Returns whether both continuations end in time; the last call can only be an answer."""
    ways = (comparison.better, comparison.worse)
    return all(
        t + i < max_steps - (step.action.kind != "answer")
        for way in ways
        for i, step in enumerate(way)
    )


def _gap(comparison: ActionComparison, t: int, rewards: EpisodeRewards) -> float:
    before = [MISSES] * t
    if comparison.is_found and t:
        before[-1] = FINDS  # the last search, so that a backtrack removes it
    better, worse = (
        rewards.episode((*before, *way), GOLD).total or 0.0
        for way in (comparison.better, comparison.worse)
    )
    return better - worse


def _outcome(gap: float, min_gap: float) -> Effect:
    if not is_wide_enough(gap, min_gap):
        return "silenced"
    return "kept" if gap > 0 else "turned"
