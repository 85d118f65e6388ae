"""Rewards of Eval-RAR, Search-R1 and AutoRefine, which share a loop of searches in one turn.

Source: Eval-RAR eq. 2 to 5. Its eq. 3 concatenates all evaluations. Here each block of documents
admits one evaluation, and each evaluation is searched for the gold separately. Otherwise guesses
before any search would earn a reward, and a gold could straddle two evaluations.
"""

from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal, NamedTuple, cast

from pydantic import Field

from branchwise.agent import (
    INVALID,
    PROTOCOLS,
    AgentProtocol,
    SearchLoop,
    SearchTags,
    Segment,
    State,
    find_tags,
    first_pair,
    is_block,
)
from branchwise.types import Question

from .answers import contains, exact_match, f1, normalise
from .outcome import Outcome, Verdicts
from .outcome_scheme import OutcomeScheme
from .scheme import register_reward
from .settings import SchemeSettings

ACTIONS = ("search", "answer")


class EvalRarSettings(SchemeSettings):
    """Reward of a rollout with searches (Eval-RAR section 4).

    Attributes:
        reward: `eval-rar` pays R_ans = EM, else R_eval (eq. 5); `em` pays R_ans alone (Search-R1,
            and table 2's ablation); `autorefine` pays F1, else `r_eval` for a refinement.
        r_eval: r_eval, the reward if an evaluation contains a gold (eq. 4).
        evaluations: `after_documents` admits one evaluation for each inserted block; `all` admits
            every evaluation of the policy (eq. 3), also those before any search.
    """

    scheme: Literal["eval-rar"] = "eval-rar"
    reward: Literal["eval-rar", "em", "autorefine"] = "eval-rar"
    r_eval: float = Field(default=0.1, ge=0, le=1)
    evaluations: Literal["after_documents", "all"] = "after_documents"


def eval_rar_outcome(
    segments: Sequence[Segment],
    golds: Sequence[str],
    settings: EvalRarSettings,
    search_tags: SearchTags,
) -> tuple[Outcome, Verdicts]:
    """Computes the reward of one rollout, and the verdicts on its searches and evaluations.

    The total is the first component, or the second one if the first is 0.

    Args:
        segments: Segments of the rollout.
        golds: Gold answers; the best counts.
        settings: Reward settings.
        search_tags: Tags of the protocol.
    """
    opening, closing = search_tags.pairs[search_tags.documents]
    blocks = [
        segment.text.replace(opening, " ").replace(closing, " ")
        for segment in segments
        if is_block(segment, opening)
    ]
    evaluations = list(_evaluations(segments, search_tags))
    counted = [e for e in evaluations if e.is_admitted or settings.evaluations == "all"]
    answer = final_answer(segments, search_tags)
    is_refining = settings.reward == "autorefine"
    right = (f1 if is_refining else exact_match)(answer, golds, settings.form) if answer else 0.0
    evaluation = None
    if settings.reward != "em":
        has_gold = any(contains(e.text, golds, settings.form) for e in counted)
        evaluation = settings.r_eval if has_gold else 0.0
    components = {
        "f1" if is_refining else "em": right,
        "refinement" if is_refining else "evaluation": evaluation,
    }
    admitted = sum(e.is_admitted for e in evaluations)
    return Outcome(right if right > 0.0 else evaluation or 0.0, components), Verdicts(
        retrievals=len(blocks),
        evaluated=admitted / len(blocks) if search_tags.evaluation and blocks else None,
        copied=_copied_share(counted, blocks),
        forged=sum(segment.text.count(opening) for segment in segments if segment.role == "policy"),
    )


class _Evaluation(NamedTuple):
    """A complete evaluation.

    Attributes:
        text: Text of the evaluation.
        blocks: Number of blocks before it.
        is_admitted: Whether it is the evaluation of the last of these blocks.
    """

    text: str
    blocks: int
    is_admitted: bool


def _evaluations(segments: Iterable[Segment], search_tags: SearchTags) -> Iterator[_Evaluation]:
    tags, name = search_tags.pairs, search_tags.evaluation
    blocks, is_awaited = 0, False
    for segment in segments:
        if is_block(segment, tags[search_tags.documents][0]):
            blocks, is_awaited = blocks + 1, True
        if segment.role != "policy" or name is None:
            continue
        # The environment drops text after the action of a call.
        action = first_pair(segment.text, tags, ACTIONS)
        text = segment.text[: action[0].start] if action else segment.text
        for tag, after in pairwise([*find_tags(text, tags), None]):
            if tag is None or tag[:2] != (name, False):
                continue
            if after is not None and after[:2] == (name, True):
                yield _Evaluation(text[tag.end : after.start], blocks, is_awaited)
            # An unclosed evaluation still counts as the one of its block.
            is_awaited = False


def final_answer(segments: Sequence[Segment], search_tags: SearchTags) -> str | None:
    """Returns the answer that ended the rollout: the action of its last call."""
    last = next((s for s in reversed(segments) if s.role == "policy"), None)
    action = last and first_pair(last.text, search_tags.pairs, ACTIONS)
    if last is None or last.cut or not action or action[0].name != "answer":
        return None
    return last.text[action[0].end : action[1].start].strip() or None


def _copied_share(evaluations: Iterable[_Evaluation], blocks: Sequence[str]) -> float | None:
    """Returns the mean over the evaluations of longest token run shared with a block / tokens.

    In [0, 1]; None without an evaluation.
    """
    block_tokens = [normalise(block).split() for block in blocks]
    shares = []
    for evaluation in evaluations:
        if tokens := normalise(evaluation.text).split():
            runs = (
                SequenceMatcher(None, tokens, block, autojunk=False).find_longest_match().size
                for block in block_tokens[: evaluation.blocks]
            )
            shares.append(max(runs, default=0) / len(tokens))
    return fmean(shares) if shares else None


@register_reward
class EvalRarRewards(OutcomeScheme):
    """Rewards of the protocols that share Search-R1's loop."""

    name = "eval-rar"
    title = "Eval-RAR"
    protocols = tuple(
        name for name, protocol in PROTOCOLS.items() if issubclass(protocol, SearchLoop)
    )
    settings_class = EvalRarSettings

    @classmethod
    def score(
        cls, question: Question, protocol: AgentProtocol, state: State, settings: Any
    ) -> tuple[Outcome, Verdicts]:
        search_tags = cast(SearchLoop, protocol).search_tags
        outcome, verdicts = eval_rar_outcome(
            protocol.segments(state), question.answers, settings, search_tags
        )
        invalid = [step for step in state.steps if step.action.kind == INVALID]
        corrections = sum(bool(step.inserted) for step in invalid)
        return outcome, verdicts._replace(format_ok=not invalid, corrections=corrections)
