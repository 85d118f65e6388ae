"""The rows of the ledger, their checksums, and the SQL that several modules need.

SQLite notices a damaged page only if its own structure breaks. A flipped bit in a stored reply, a
key or a count is returned without an error. So every row ends in a checksum.
"""

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from operator import attrgetter
from typing import Any, Literal

REPORTED = "reported"
"""Value of `Call.usage_basis` if the engine itself reported the counts."""


@dataclass(frozen=True, slots=True)
class Call:
    """One model call: a row of `calls`. The texts of prompts are stored as digests only.

    Attributes:
        key: Result of `engines.sampling.call_key`, which covers everything that affects the reply.
        role: Role of the model ("policy", "judge", "verifier").
        question_id, path, draw: Question, place in its work, and number of the draw.
        usage_basis: Origin of the token counts (`engines.sampling.UsageBasis`): "reported" by the
            engine, else an estimate.
        cost_usd: US dollars; None if no price is set.
        latency_s, attempts: Duration in seconds, and number of attempts.
        at: Time of its end (ISO 8601, UTC).
        reasoning: The model's reasoning, which is not part of `text`.
        raw: What the endpoint sent, as JSON, if it says more than the other columns.
        reader: Version of the reader that made `text` of it (`engines.reasoning.READER`).
        prompt_ids, token_ids, logprobs: Prompt tokens, sampled tokens and their log-probabilities
            (`packed`); None if the request did not include them.
    """

    key: str
    role: str
    model: str
    policy_digest: str
    question_id: str
    path: str
    draw: int
    prompt_digest: str
    text: str
    finish_reason: str
    stop_reason: str | None
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    usage_basis: str
    cost_usd: float | None
    latency_s: float
    attempts: int
    error: str | None
    at: str
    reasoning: str = ""
    raw: str | None = None
    reader: int = 0
    prompt_ids: bytes | None = None
    token_ids: bytes | None = None
    logprobs: bytes | None = None


def packed(kind: Literal["i", "f"], values: Sequence[float] | None) -> bytes | None:
    """Packs integers ("i") or floats ("f") into a BLOB of 4 bytes each, little-endian."""
    return None if values is None else struct.pack(f"<{len(values)}{kind}", *values)


def unpacked(kind: Literal["i", "f"], blob: bytes | None) -> tuple[Any, ...] | None:
    """Inverse of `packed`; floats are rounded to float32."""
    return None if blob is None else struct.unpack(f"<{len(blob) // 4}{kind}", blob)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the successful calls of all attempts at the run.

    Failed calls are not included, even if the endpoint charges for them.

    Attributes:
        input_tokens, cached_tokens, output_tokens: Sums of tokens; input includes cached tokens.
        unpriced: Number of calls whose cost is unknown.
        estimated: Number of calls whose tokens we counted, because the endpoint's counts were
            missing or unusable.
    """

    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    unpriced: int = 0
    estimated: int = 0

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: "Totals") -> "Totals":
        return Totals(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def plus(self, call: Call) -> "Totals":
        """Returns the totals with one more call."""
        return Totals(
            self.calls + 1,
            self.input_tokens + call.input_tokens,
            self.cached_tokens + call.cached_tokens,
            self.output_tokens + call.output_tokens,
            self.cost_usd + (call.cost_usd or 0.0),
            self.unpriced + (call.cost_usd is None),
            self.estimated + (call.usage_basis != REPORTED),
        )


CALL_COLUMNS = tuple(field.name for field in fields(Call))
SEALED: dict[str, tuple[str, ...]] = {
    "calls": CALL_COLUMNS,
    "engines": ("policy_digest", "capabilities"),
}
"""Columns of the tables whose rows end in a checksum."""
call_values = attrgetter(*CALL_COLUMNS)
"""The values of a call, in the order of `CALL_COLUMNS`."""

CREATE = """
CREATE TABLE IF NOT EXISTS calls (
    key TEXT PRIMARY KEY, role TEXT NOT NULL, model TEXT NOT NULL, policy_digest TEXT NOT NULL,
    question_id TEXT NOT NULL, path TEXT NOT NULL, draw INTEGER NOT NULL,
    prompt_digest TEXT NOT NULL, text TEXT NOT NULL, finish_reason TEXT NOT NULL,
    stop_reason TEXT, input_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, usage_basis TEXT NOT NULL, cost_usd REAL,
    latency_s REAL NOT NULL, attempts INTEGER NOT NULL, error TEXT, at TEXT NOT NULL,
    reasoning TEXT NOT NULL, raw TEXT, reader INTEGER NOT NULL,
    prompt_ids BLOB, token_ids BLOB, logprobs BLOB, checksum TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS calls_by_question ON calls (question_id);
CREATE TABLE IF NOT EXISTS engines (
    policy_digest TEXT PRIMARY KEY, capabilities TEXT NOT NULL, checksum TEXT NOT NULL
);
"""


def _put(table: str) -> str:
    """Returns the SQL that inserts a row with its checksum, or replaces the one with its key."""
    key, *other_columns = (*SEALED[table], "checksum")
    marks = ", ".join("?" * (1 + len(other_columns)))
    replaced = ", ".join(f"{column} = excluded.{column}" for column in other_columns)
    return f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT ({key}) DO UPDATE SET {replaced}"


# A stored reply is never overwritten, so all replays get the same one. A stored error may be.
PUT_CALL = _put("calls") + " WHERE calls.error IS NOT NULL"
PUT_ENGINE = _put("engines")
SUMS = (
    "count(*), coalesce(sum(input_tokens), 0), coalesce(sum(cached_tokens), 0), "
    "coalesce(sum(output_tokens), 0), total(cost_usd), count(*) - count(cost_usd), "
    f"count(*) FILTER (WHERE usage_basis <> '{REPORTED}')"
)
"""The fields of `Totals`, in SQL."""


# As in a call's key: an array of all values in order is unambiguous and quick to build. Bytes
# become an array with their hash, because no other value is an array.
_in_order = json.JSONEncoder(
    ensure_ascii=False,
    separators=(",", ":"),
    default=lambda blob: [hashlib.blake2b(blob, digest_size=8).hexdigest()],
).encode


def checksum(values: Sequence[object]) -> str:
    """Returns the checksum (16 hex digits) of a row's values, in the order of its columns.

    Takes about 5 µs. A number must have the type that its column gives back: 0.0, not 0, in a
    column of reals.
    """
    content = _in_order(values).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def sound(row: Sequence[object]) -> bool:
    """Returns whether a row matches the checksum at its end."""
    return row[-1] == checksum(row[:-1])
