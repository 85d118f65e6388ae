"""EVO-RAG's seven step rewards (section 3.2), and their weighted sum over an episode.

Each is a small pure function of the steps before (`StepContext`), the step itself, and the gold
(`Gold`). t is the 0-based index of the policy call, BACKTRACK included, and is never reset;
p(t) = t / T.

If the paper's own text would teach the wrong behaviour, the default differs, and a setting gives
the paper's version (`EvoRagSettings`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from branchwise.agent import Step, live_searches
from branchwise.types import Question

from ..answers import NormalForm, exact_match, f1, normalise
from ..outcome import Outcome
from ..settings import REWARDS, EvoRagSettings
from .schedule import weights

EARLY = 0.3
"""p(t) below which a search costs nothing (the retrieval action penalty)."""

Similarity = Callable[[str, Sequence[str]], float]
"""(query, other queries) → the largest cosine of their embeddings, in [-1, 1]."""

Rewards = Mapping[str, float | None]
"""Value by name, of all seven; None if unknown, so that every sum leaves it out."""


@dataclass(frozen=True, slots=True)
class Gold:
    """The gold data of a question.

    `documents` are the ids of the gold documents D*; None if they are not known.
    """

    answers: tuple[str, ...]
    answerable: bool
    documents: frozenset[str] | None

    @classmethod
    def of(cls, question: Question) -> "Gold":
        documents = frozenset(question.supporting_ids) or None
        return cls(question.answers, question.answerable, documents)


@dataclass(frozen=True, slots=True)
class StepContext:
    """The context of a step.

    Attributes:
        t: Number of policy calls before it.
        queries: Queries of all earlier searches, taken back or not.
        retrieved: Ids of all passages that these searches found.
        context: Ids of the passages that no BACKTRACK has taken away.
    """

    t: int
    queries: tuple[str, ...]
    retrieved: frozenset[str]
    context: frozenset[str]

    @classmethod
    def of(cls, steps: Sequence[Step]) -> "StepContext":
        searches = [step for step in steps if step.action.kind == "search"]
        return cls(
            t=len(steps),
            queries=tuple(step.action.content for step in searches),
            retrieved=frozenset(p.id for step in searches for p in step.passages),
            context=frozenset(p.id for live in live_searches(steps) for p in live.passages),
        )


def retrieval_bonus(
    step: Step,
    before: StepContext,
    gold: Gold,
    *,
    novel: bool = True,
    unanswerable_missed: bool = False,
) -> float | None:
    """r_ret: +1 if a SEARCH brings a gold document, −1 if it brings none, 0 for other actions.

    With `novel` (ours), only a gold document that no earlier search brought earns +1, and a known
    one 0. In the paper a repeated hit earns +1 each time; with β = 2 that is more than a right
    answer. None for a SEARCH if no gold document is known, and on unanswerable questions (a source
    may know half of their documents): −1 would make any answer there better than a search followed
    by a refusal. With `unanswerable_missed` (the paper) it is −1 there.
    """
    if step.action.kind != "search":
        return 0.0
    if not gold.answerable:
        return -1.0 if unanswerable_missed else None
    if gold.documents is None:
        return None
    hits = gold.documents & {passage.id for passage in step.passages}
    if not hits:
        return -1.0
    return 1.0 if not novel or hits - before.retrieved else 0.0


def sub_query_overlap(
    step: Step, before: StepContext, similarity: Similarity, *, negative_earns: bool = False
) -> float:
    """r_dup = −max_{j<t} cos(q_t, q_j) for a SEARCH after the first; in [−1, 0].

    Queries that were taken back count. A negative cosine counts as 0; with `negative_earns` the
    paper's formula pays for it, up to 1.
    """
    if step.action.kind != "search" or not before.queries:
        return 0.0
    cosine = similarity(step.action.content, before.queries)
    return -cosine if negative_earns else -max(0.0, cosine)


def retrieval_action(step: Step, p: float, overlap: float, *, threshold: float = 0.8) -> float:
    """r_act: −1 for a late SEARCH (p ≥ 0.3) that overlaps with an earlier one, else 0.

    Args:
        p: Progress of the episode, t / T.
        overlap: r_dup of the same step.
        threshold: Smallest cosine of overlapping queries; 0 is the paper's 1[r_dup < 0], which
            penalises nearly every late search.
    """
    if step.action.kind != "search" or p < EARLY or overlap >= 0.0:
        return 0.0
    return -1.0 if -overlap >= threshold else 0.0


def refusal_reward(
    step: Step, before: StepContext, *, sufficient: bool | None, early_wrong: bool = True
) -> float | None:
    """r_ref: for REFUSE +1 if the evidence is insufficient, −1 otherwise; 0 for other actions.

    With `early_wrong` (ours) a REFUSE before any SEARCH is always −1: otherwise refusing at once
    would beat searching if searches rarely hit.

    Args:
        sufficient: Whether the evidence in context suffices to answer; None if unknown.
    """
    if step.action.kind != "refuse":
        return 0.0
    if early_wrong and not before.queries:
        return -1.0
    return None if sufficient is None else -1.0 if sufficient else 1.0


def sufficient_by_gold(before: StepContext, gold: Gold) -> bool | None:
    """Returns whether all gold documents are in context, which replaces a verifier.

    None for an answerable question whose gold documents are not known.
    """
    if not gold.answerable:
        return False
    return None if gold.documents is None else gold.documents <= before.context


def answer_correctness(step: Step, gold: Gold, form: NormalForm = normalise) -> float:
    """r_ans = ½ (EM + F1) of an ANSWER, in [0, 1]; 0 for other actions.

    An answer to an unanswerable question is always wrong, even if the source names one (MuSiQue
    does).
    """
    if step.action.kind != "answer" or not gold.answerable:
        return 0.0
    answer = step.action.content
    return 0.5 * (exact_match(answer, gold.answers, form) + f1(answer, gold.answers, form))


@dataclass(frozen=True)
class EpisodeRewards:
    """The seven rewards under a recipe's settings and its budget.

    Attributes:
        horizon: T_max of the progress p = t / T_max, in policy calls.
        similarity: Similarity of sub-queries.
        verified: Whether a verifier judges refusals, so that a refusal without a verdict lacks a
            reward; otherwise the gold documents decide.
    """

    settings: EvoRagSettings
    horizon: int
    similarity: Similarity
    verified: bool = False

    def raw(self, steps: Sequence[Step], gold: Gold, verdict: bool | None = None) -> Rewards:
        """Returns the raw rewards of the last of `steps`, unweighted.

        Args:
            steps: Trajectory up to and including the step to judge.
            verdict: Verdict on whether the evidence suffices; None without one.
        """
        settings, step, before = self.settings, steps[-1], StepContext.of(steps[:-1])
        overlap = sub_query_overlap(
            step, before, self.similarity, negative_earns=settings.negative_cosine == "earns"
        )
        sufficient = verdict if self.verified else sufficient_by_gold(before, gold)
        return {
            "retrieval": retrieval_bonus(
                step,
                before,
                gold,
                novel=settings.retrieval_bonus == "novel",
                unanswerable_missed=settings.unanswerable_search == "missed",
            ),
            "action": retrieval_action(
                step, before.t / self.horizon, overlap, threshold=settings.overlap_threshold
            ),
            "overlap": overlap,
            "backtrack": -1.0 if step.action.kind == "backtrack" else 0.0,  # r_bt
            "refusal": refusal_reward(
                step, before, sufficient=sufficient, early_wrong=settings.early_refusal == "wrong"
            ),
            "step": settings.step_value,  # r_step: the same for every step
            "answer": answer_correctness(step, gold, settings.form),
        }

    def weighted(self, raw: Rewards, t: int) -> dict[str, float | None]:
        """Returns w_k(t) · r_k of a step; t is its 0-based index."""
        scale = weights(self.settings, t / self.horizon)
        return {name: None if r is None else scale[name] * r for name, r in raw.items()}

    def episode(self, steps: Sequence[Step], gold: Gold, verdict: bool | None = None) -> Outcome:
        """Returns Σ_t w_t · r_t of a whole trajectory and of each reward; None adds nothing.

        Args:
            verdict: Verdict of the verifier on the last step.
        """
        total = 0.0
        parts: dict[str, float] = dict.fromkeys(REWARDS, 0.0)
        for end in range(1, len(steps) + 1):
            # Only a refusal has a verdict, and it ends the episode.
            raw = self.raw(steps[:end], gold, verdict if end == len(steps) else None)
            weighted = self.weighted(raw, end - 1)
            total += sum(value or 0.0 for value in weighted.values())
            parts = {name: parts[name] + (weighted[name] or 0.0) for name in REWARDS}
        return Outcome(total, parts)
