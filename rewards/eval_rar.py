"""Rewards of Eval-RAR, Search-R1 and AutoRefine, which share a loop of searches in one turn.

Source: Eval-RAR eq. 2 to 5. Its eq. 3 concatenates all evaluations. Here each block of documents
admits one evaluation, and each evaluation is searched for the gold separately. Otherwise guesses
before any search would earn a reward, and a gold could straddle two evaluations.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from statistics import fmean
from typing import Literal, NamedTuple, cast

from pydantic import Field

from agent.protocol import AgentProtocol
from agent.protocols import PROTOCOLS
from agent.search_loop import SearchLoop
from agent.segments import SearchTags, Segment, first_pair, is_block, tags
from agent.state import INVALID, State
from rewards.answers import contains, exact_match, f1, normalise
from rewards.outcome import Outcome, Verdicts
from rewards.outcome_scheme import OutcomeScheme
from rewards.settings import SchemeSettings
from storage.records import Question

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


@dataclass(frozen=True, slots=True)
class EvalRarOutcome:
    """Reward and verdicts of one rollout.

    Attributes:
        components: `em` or `f1`, and `evaluation` or `refinement`; None earns nothing.
        total: First component, or the second one if the first is 0.
        answer: Text of the answer; None without one.
        searches: Blocks of documents that the environment inserted.
        evaluated: Blocks that admit an evaluation.
        copied: Mean over the admitted evaluations of longest token run shared with an inserted
            block / tokens, in [0, 1]; None without any.
        forged: Opening document tags that the policy wrote.
    """

    components: dict[str, float | None]
    total: float
    answer: str | None
    searches: int
    evaluated: int
    copied: float | None
    forged: int


def eval_rar_outcome(
    segments: Sequence[Segment],
    golds: Sequence[str],
    settings: EvalRarSettings,
    search_tags: SearchTags,
) -> EvalRarOutcome:
    """Computes the reward of one rollout.

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
    found = list(_evaluations(segments, search_tags))
    counted = [one for one in found if one.is_admitted or settings.evaluations == "all"]
    answer = _answer(segments, search_tags)
    is_refining = settings.reward == "autorefine"
    right = (f1 if is_refining else exact_match)(answer, golds) if answer else 0.0
    evaluation = None
    if settings.reward != "em":
        is_found = any(contains(one.text, golds) for one in counted)
        evaluation = settings.r_eval if is_found else 0.0
    return EvalRarOutcome(
        components={
            "f1" if is_refining else "em": right,
            "refinement" if is_refining else "evaluation": evaluation,
        },
        total=right if right > 0.0 else evaluation or 0.0,
        answer=answer,
        searches=len(blocks),
        evaluated=sum(one.is_admitted for one in found),
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
    known, name = search_tags.pairs, search_tags.evaluation
    blocks, is_awaited = 0, False
    for segment in segments:
        if is_block(segment, known[search_tags.documents][0]):
            blocks, is_awaited = blocks + 1, True
        if segment.role != "policy" or name is None:
            continue
        # The environment drops text after the action of a call.
        action = first_pair(segment.text, known, ACTIONS)
        text = segment.text[: action[0].start] if action else segment.text
        for tag, after in pairwise([*tags(text, known), None]):
            if tag is None or tag[:2] != (name, False):
                continue
            if after is not None and after[:2] == (name, True):
                yield _Evaluation(text[tag.end : after.start], blocks, is_awaited)
            # An unclosed evaluation still counts as the one of its block.
            is_awaited = False


def _answer(segments: Sequence[Segment], search_tags: SearchTags) -> str | None:
    """Returns the answer that ended the rollout: the action of its last call."""
    last = next((one for one in reversed(segments) if one.role == "policy"), None)
    action = last and first_pair(last.text, search_tags.pairs, ACTIONS)
    if last is None or last.cut or not action or action[0].name != "answer":
        return None
    return last.text[action[0].end : action[1].start].strip() or None


def _copied_share(evaluations: Iterable[_Evaluation], blocks: Sequence[str]) -> float | None:
    read = [normalise(block).split() for block in blocks]
    shares = []
    for one in evaluations:
        if tokens := normalise(one.text).split():
            runs = (
                SequenceMatcher(None, tokens, block, autojunk=False).find_longest_match().size
                for block in read[: one.blocks]
            )
            shares.append(max(runs, default=0) / len(tokens))
    return fmean(shares) if shares else None


def eval_rar_verdicts(question: Question, protocol: AgentProtocol, state: State) -> Verdicts:
    """Checks a finished trajectory against the rules, under the default settings."""
    search_tags = cast(SearchLoop, protocol).search_tags
    segments, golds = protocol.segments(state), question.answers
    outcome = eval_rar_outcome(segments, golds, EvalRarSettings(), search_tags)
    invalid = [step for step in state.steps if step.action.kind == INVALID]
    is_evaluating = search_tags.evaluation is not None and outcome.searches > 0
    return Verdicts(
        not invalid,
        retrievals=outcome.searches,
        corrections=sum(bool(step.inserted) for step in invalid),
        evaluated=outcome.evaluated / outcome.searches if is_evaluating else None,
        copied=outcome.copied,
        forged=outcome.forged,
        turn_tokens=state.steps[-1].total_tokens,
    )


class EvalRar(OutcomeScheme):
    """Rewards of the protocols that share Search-R1's loop."""

    title = "Eval-RAR"
    protocols = tuple(
        name for name, protocol in PROTOCOLS.items() if issubclass(protocol, SearchLoop)
    )
    settings_class = EvalRarSettings
    settings: EvalRarSettings

    def outcome(self, state: State, question: Question) -> Outcome:
        protocol = PROTOCOLS[self.recipe.agent.protocol]
        assert issubclass(protocol, SearchLoop)
        found = eval_rar_outcome(
            self.segments(state), question.answers, self.settings, protocol.search_tags
        )
        return Outcome(found.total, found.components)
