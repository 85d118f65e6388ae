"""RAG-ProGuide JSON, the published dataset of ReasonRAG, as pairs and back.

Every pair is one record. `instruction` is the system prompt, `input` the user's turn, `prompt` both
as "System: …" and "User: …", `chosen` and `rejected` the raw replies; `layer` counts the steps
before the compared ones, so it is `depth` − 1. The format lacks rewards, visits, ids and
provenance: an exported pair is imported without them.
"""

import gzip
import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from branchwise.agent import content_of
from branchwise.base import (
    ConfigError,
    Faults,
    atomic_path,
    describe_errors,
    digest_of,
    replace_surrogates,
    terminal_safe_json,
)
from branchwise.sources import read_rows
from branchwise.types import Message, Pair, pair_id


def read_proguide(path: Path) -> list[Pair]:
    """Returns the pairs of a published file (a JSON list, or JSONL; `.gz` too).

    Raises:
        ConfigError: If records are faulty; lists all faults with file and record.
    """
    faults, pairs = Faults(), list[Pair]()
    for place, row in read_rows(path, faults):
        try:
            record = ProGuideRecord.model_validate(row)
        except ValidationError as error:
            faults.add(place, describe_errors(error))
            continue
        if record.chosen == record.rejected:
            faults.add(
                place,
                "chosen and rejected are identical, so neither is preferred: remove the record",
            )
        else:
            pairs.append(from_proguide(record))
    faults.raise_any()
    return pairs


SOURCE = "rag-proguide"
"""`source` of imported pairs, which the format does not record."""

_PUBLISHED = {
    "query": "Query Generation",
    "evidence": "Evidence Extraction",
    "answer": "Answer Generation",
}
_OTHER = "Other"
_OURS = {published: ours for ours, published in _PUBLISHED.items()}


class ProGuideRecord(BaseModel):
    """One record of RAG-ProGuide; unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    instruction: str
    input: str
    prompt: str = ""
    chosen: str
    rejected: str
    chosen_action_type: str
    rejected_action_type: str
    chosen_content: str
    rejected_content: str
    layer: int = Field(ge=0, lt=32_767)  # `depth`, one more, is an int16


def to_proguide(pair: Pair) -> ProGuideRecord:
    """Returns a pair in the published form.

    Raises:
        ConfigError: If the pair's prompt is not one system turn and one user turn, or a side is not
            one reply. The format cannot express such a pair.
    """
    roles = tuple(message.role for message in pair.prompt)
    if roles != ("system", "user") or len(pair.chosen) != 1 or len(pair.rejected) != 1:
        raise ConfigError(
            f"pair {pair.pair_id}: a pair of RAG-ProGuide has one system turn, one user turn and "
            f"one reply per side; this prompt has turns {', '.join(roles) or '(none)'}"
        )
    messages = (*pair.prompt, *pair.chosen, *pair.rejected)
    system, user, chosen, rejected = (replace_surrogates(message.content) for message in messages)
    return ProGuideRecord(
        instruction=system,
        input=user,
        prompt=f"System: {system}\nUser: {user}",
        chosen=chosen,
        rejected=rejected,
        chosen_action_type=_PUBLISHED.get(pair.chosen_action, _OTHER),
        rejected_action_type=_PUBLISHED.get(pair.rejected_action, _OTHER),
        chosen_content=content_of(chosen),
        rejected_content=content_of(rejected),
        layer=max(pair.depth - 1, 0),
    )


def from_proguide(record: ProGuideRecord) -> Pair:
    """Returns a published record as a pair.

    Data that the format lacks is empty: rewards are 0 (only their order is known), answers and
    outcomes are missing, and every pair has its own tree. Ids are hashes of the texts; the question
    is the first line of the user's turn, without the word "Question:".
    """
    question = record.input.partition("\n")[0].removeprefix("Question:").strip()
    prompt = (
        Message(role="system", content=record.instruction),
        Message(role="user", content=record.input),
    )
    identity = pair_id(prompt, record.chosen, record.rejected)
    action = _OURS.get(record.chosen_action_type, "invalid")
    return Pair(
        pair_id=identity,
        tree_id=identity,
        question_id=digest_of(question),
        source=SOURCE,
        seed=0,
        question=question,
        answers=(),
        parent_node=0,
        chosen_node=1,
        rejected_node=2,
        depth=record.layer + 1,
        stage="grounding" if action == "evidence" else "reasoning",
        prompt=prompt,
        chosen=(Message(role="assistant", content=record.chosen),),
        rejected=(Message(role="assistant", content=record.rejected),),
        chosen_action=action,
        rejected_action=_OURS.get(record.rejected_action_type, "invalid"),
        chosen_reward=0.0,
        rejected_reward=0.0,
        reward_gap=0.0,
        chosen_visits=0,
        rejected_visits=0,
        chosen_outcomes=0,
        rejected_outcomes=0,
        policy_model="",
        policy_digest="",
        prompt_hash="",
        label_digest="",
        config_digest="",
    )


def write_proguide(path: Path, pairs: Iterable[Pair]) -> int:
    """Writes pairs as the published JSON list, or as JSONL if `path` ends in `.jsonl`.

    With `.gz` after either ending the file is compressed.

    Returns:
        Number of records.

    Raises:
        ConfigError: If a pair does not fit (see `to_proguide`); nothing is written then.
        StorageError: If the file could not be written.
    """
    open_text = partial(gzip.open if path.suffix.lower() == ".gz" else open, mode="wt")
    lines = path.name.removesuffix(".gz").endswith(".jsonl")
    count = 0
    with atomic_path(path) as temporary, open_text(temporary, encoding="utf-8") as file:
        file.write("" if lines else "[")
        for count, pair in enumerate(pairs, start=1):
            text = terminal_safe_json(
                json.dumps(to_proguide(pair).model_dump(), ensure_ascii=False)
            )
            file.write(f"{text}\n" if lines else f"{',' if count > 1 else ''}\n{text}")
        file.write("" if lines else "\n]\n")
    return count
