"""Records of tables and messages; a table has a column for each field of its record."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field

from branchwise.base import BranchwiseError, digest_of

SCHEMA_VERSION = 2
"""Version of every parquet table; every change of a contract increments it."""

Small = Annotated[int, "int16"]
Large = Annotated[int, "int64"]
"""Integers whose column is not an int32, with Arrow's name for the type."""

Role = Literal["system", "user", "assistant"]
"""Speaker of a chat message."""

NO_PARENT = -1
"""`parent_id` of a root node."""


class Record(BaseModel):
    """Base of all records: immutable, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Passage(Record):
    """A titled passage of the corpus; `id` is unique within the corpus."""

    id: str
    title: str
    text: str


class RetrievedPassage(Record):
    """A passage as a search returned it; `score` is the retriever's own, higher is better."""

    id: str
    title: str
    text: str
    score: float


class Paragraph(Record):
    """A paragraph that came with a question (distractors included)."""

    title: str
    text: str
    is_supporting: bool = False
    id: str | None = None


QuestionKey = tuple[str, str]
"""Source and id of a question."""


class Question(Record):
    """A question with its gold answers.

    `answerable` is false if no passage of the corpus holds the fact; such questions may lack
    answers. `supporting_ids` are the gold documents D* by passage id (`sources.gold` adds them if
    the source has only titles or paragraphs). `extra` keeps all other data of the source. None of
    the gold fields may enter a policy's prompt.
    """

    id: str
    source: str
    question: str
    answers: tuple[str, ...]
    type: str | None = None
    hops: Small | None = None
    answerable: bool = True
    supporting_titles: tuple[str, ...] = ()
    supporting_ids: tuple[str, ...] = ()
    paragraphs: tuple[Paragraph, ...] = ()
    split: str | None = None
    licence: str | None = None
    extra: dict[str, Any] = Field(default_factory=dict)


class Component(Record):
    """One named part of a reward (Arrow maps break Hugging Face datasets, so a list of these)."""

    name: str
    value: float | None


class Rollout(Record):
    """One simulated completion of a partial trajectory (ReasonRAG eq. 1).

    `steps` counts policy calls from the root, in [1, max_steps]; `em` is 0 or 1, `f1` in [0, 1];
    both are None if the rollout ended without an answer. `tokens` are output tokens generated.
    `trajectory` is the digest of all actions from the root, so that rollouts with the same actions
    count as one outcome.
    """

    draw: int
    answer: str | None
    em: float | None
    f1: float | None
    steps: Small
    forced: bool
    tokens: int
    stop_reason: str
    trajectory: str = ""


class PassageRef(Record):
    """A retrieved passage by reference; the text is in the corpus."""

    id: str
    title: str
    score: float


class TreeNode(Record):
    """One node of a search tree: a row of `trees` (columns of docs/tables.md, minus provenance).

    `cut` is whether the call that led here ended at the token limit; `token_ids` are the tokens
    that it sampled, for protocols that continue one turn (None otherwise). `reasoning` is what the
    model thought before it replied; no prompt and no training contains it. `passages` of a root are
    the passages shown before the first call.
    """

    tree_id: str
    question_id: str
    source: str
    cycle: Small = 0
    seed: Large
    node_id: int
    parent_id: int
    depth: Small
    stage: str
    action: str
    text: str
    content: str
    passages: tuple[PassageRef, ...] = ()
    terminal: bool = False
    forced: bool = False
    cut: bool = False
    token_ids: tuple[int, ...] | None = None
    reasoning: str | None = None
    visits: int = 0
    value: float | None = None
    judge_score: float | None = None
    judge_text: str | None = None
    rollouts: tuple[Rollout, ...] = ()
    n_outcomes: int = 0
    iteration: int = 0
    verdict: bool | None = None
    em: float | None = None
    f1: float | None = None
    reward: float | None = None
    components: tuple[Component, ...] = ()
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    prompt_hash: str = ""
    policy_digest: str = ""


class FreshRollouts(Record):
    """A node's fresh rollouts, which no label uses: a row of `survival`.

    They are drawn after the trees were grown, from the node's state by the trees' own policy, to
    check the order of labels against them. A final answer counts as its own only rollout.
    `temperature` is the sampling temperature (at 0, greedy, one rollout represents all).
    """

    tree_id: str
    question_id: str
    source: str
    cycle: Small = 0
    seed: Large
    node_id: int
    temperature: float
    rollouts: tuple[Rollout, ...]
    policy_digest: str = ""


class Difficulty(Record):
    """How soon a rater answers a question: a row of `select/difficulty`.

    Attributes:
        label: One of `analysis.difficulty.LABELS`.
        rollouts: Number of rollouts; the last one is the first right one, if there is one.
        first_success: Number of the first right rollout, from 1.
        config_digest: Hash of the question and of all settings that affect the rater.
    """

    question_id: str
    source: str
    label: str
    rollouts: int
    first_success: int | None
    seed: Large
    output_tokens: Large
    policy_digest: str
    config_digest: str


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message, as sent to engines and as stored in TRL's conversational format.

    Not a `Record`: a call's messages are built, hashed and sent a thousand times a second.
    """

    role: Role
    content: str


class Pair(Record):
    """A preference between two sibling actions of one state: a row of `pairs`."""

    pair_id: str
    tree_id: str
    question_id: str
    source: str
    cycle: Small = 0
    seed: Large
    question: str
    answers: tuple[str, ...]
    parent_node: int
    chosen_node: int
    rejected_node: int
    depth: Small
    stage: str
    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    chosen_action: str
    rejected_action: str
    chosen_reward: float
    rejected_reward: float
    reward_gap: float
    chosen_visits: int
    rejected_visits: int
    chosen_outcomes: int
    rejected_outcomes: int
    chosen_components: tuple[Component, ...] = ()
    rejected_components: tuple[Component, ...] = ()
    policy_model: str
    policy_digest: str
    judge_model: str | None = None
    prompt_hash: str
    label_digest: str
    config_digest: str


def pair_id(prompt: Iterable[Message], chosen: str, rejected: str) -> str:
    """Returns the hash of the prompt and both replies, so equal comparisons share an id in all
    runs.
    """
    return digest_of(*(f"{m.role}:{m.content}" for m in prompt), chosen, rejected)


class Prediction(Record):
    """One policy's answer to one question: a row of `predictions`.

    `evaluation` is the name of its table (`eval/<evaluation>.md`), `guessable` whether the question
    gives its answer away (`rewards.answers`). `backtracks` counts the searches that were taken
    back; `protocol` is the protocol by which the policy was prompted. The fields from `format_ok`
    to `turn_tokens` are verdicts of the protocol's rules (`rewards.outcome.Verdicts`).
    """

    question_id: str
    source: str
    type: str | None = None
    hops: Small | None = None
    guessable: bool
    evaluation: str = ""
    policy: str
    protocol: str
    policy_digest: str
    seed: Large
    prediction: str | None
    answers: tuple[str, ...]
    em: float | None
    f1: float | None
    cover_em: float | None
    judge: float | None = None
    judge_model: str | None = None
    steps: Small
    searches: Small
    valid_searches: Small
    backtracks: Small
    forced: bool
    refused: bool
    format_ok: bool
    format_failures: tuple[str, ...] | None = None
    relevance: float | None = None
    relevance_full: bool | None = None
    all_correct: bool | None = None
    retrievals: Small | None = None
    corrections: Small | None = None
    evaluated: float | None = None
    copied: float | None = None
    forged: int | None = None
    turn_tokens: int | None = None
    stop_reason: str
    supporting_recall: float | None
    trajectory: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    latency_s: float


class Failure(Record):
    """A question that could not be finished: a row of `failures` (`detail` is redacted)."""

    question_id: str
    stage: str
    kind: str
    attempts: int = 1
    detail: str
    at: str

    @classmethod
    def of(cls, question_id: str, stage: str, error: BranchwiseError) -> Self:
        """Returns the row of a question that an error ended, stamped with the time in UTC."""
        return cls(
            question_id=question_id,
            stage=stage,
            kind=type(error).__name__,
            attempts=error.attempts,
            detail=str(error)[:500],
            at=datetime.now(UTC).isoformat(timespec="seconds"),
        )


@dataclass(frozen=True, slots=True)
class FailedPrediction:
    """A question that failed under a policy; tables count it as wrong if it has an answer.

    Named and scored like a `Prediction`; `em`, `f1` and `cover_em` are 0, or None if the question
    is unanswerable. If there is a judge, the same applies to `judge`.
    """

    question_id: str
    source: str
    type: str | None
    seed: int
    em: float | None
    f1: float | None
    cover_em: float | None
    guessable: bool | None = None
    hops: int | None = None
    judge: float | None = None


class EventKind(Enum):
    """What was dropped or noted; the value is the text for people, with `{}` for the reason.

    Manifests store the texts, and `--json` prints them. No text starts like another one up to its
    `{}`, so each is read back as its own kind.
    """

    PAIR_DROPPED = "pair dropped: {}"
    UNSCORED = "unscored: {}"
    DUPLICATE_SIBLING = "duplicate siblings"
    INVALID_ACTION = "invalid actions"
    TOKEN_LIMIT = "stopped at mcts.max_output_tokens"
    QUESTION_FAILED = "question failed: {}"
    TOKENS_COUNTED = "tokens {}"
    WARNING = "warning: {}"
    QUESTION_READ = "questions read"
    QUESTION_MERGED = "questions merged, repeated"
    QUESTION_SKIPPED = "questions skipped"
    OTHER_SPLIT = "questions of the split {}, left out"
    UNFIT = "questions left out, {}"
    OVER_LIMIT = "questions left out by the {}"
    WITHOUT_GOLD = "questions without known gold passages"
    TITLE_RESPELLED = "supporting titles found by another spelling or by file name"
    PASSAGE_READ = "passages read"
    PASSAGE_MERGED = "passages merged: {}"
    EMPTY_PARAGRAPH = "paragraphs skipped, without text"
    EMPTY_DOCUMENT = "corpus documents skipped, without text"
    FILE_SKIPPED = "corpus files skipped, {}"
    OTHER = "{}"


class Event(NamedTuple):
    """Something that a stage dropped or noted, as a key of counts; `str` is its text for people.

    Attributes:
        reason: Cause or detail; empty if the text of the kind has no `{}`.
        source: Source of the questions, if the event belongs to one.
    """

    kind: EventKind
    reason: str = ""
    source: str = ""

    def __str__(self) -> str:
        text = self.kind.value.format(self.reason)
        return f"{self.source}: {text}" if self.source else text

    @classmethod
    def parse(cls, text: str) -> Self:
        """Returns the event of a stored text; if its kind is not known, one of kind `OTHER`.

        Only tables of trees store events, and these have no source.
        """
        forms = ((kind, re.escape(kind.value).replace(r"\{\}", "(.*)")) for kind in EventKind)
        matches = ((kind, re.fullmatch(form, text, re.DOTALL)) for kind, form in forms)
        return next(cls(kind, *match.groups()) for kind, match in matches if match)


def counts_by_text(counts: Mapping[Event, int]) -> dict[str, int]:
    """Returns counts by the text of their events, in the same order."""
    return {str(event): n for event, n in counts.items()}
