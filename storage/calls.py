"""The rows and totals of the ledger."""

import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from operator import attrgetter
from typing import Any, Literal

QuestionStatus = Literal["pending", "done", "failed"]
REPORTED = "reported"
"""`Call.usage_basis` of counts that the engine reported itself."""


@dataclass(frozen=True, slots=True)
class Call:
    """One model call: a row of `calls`. The texts of prompts are kept by digest only.

    Attributes:
        key: `engines.sampling.call_key`, which holds everything that decides the result.
        role: Role of the model ("policy", "judge", "verifier").
        model: the name that the server reported.
        policy_digest: Digest of the engine.
        question_id, path, draw: Question, place in its work, and number of the draw.
        prompt_digest: hash of the messages that were sent.
        text: the reply.
        usage_basis: what the token counts rest on (`engines.sampling.UsageBasis`); "reported"
            is the engine's own word, anything else an estimate.
        cost_usd: US dollars; None if no price is set.
        latency_s, attempts: how long it took in seconds, and how many tries.
        error: Error message; None for a call that succeeded.
        at: when it ended (ISO 8601, UTC).
        prompt_ids, token_ids, logprobs: The tokens of the prompt, those that were sampled and
            their log-probabilities (`packed`); None unless the request asked for them.
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
class QuestionRow:
    """State of a question: a row of `questions`.

    Attributes:
        question_id: the question.
        status: "pending", "done" or "failed".
        detail: why it failed.
        part: the part that its rows were committed in.
    """

    question_id: str
    status: QuestionStatus
    detail: str | None = None
    part: str | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the calls that succeeded, over all attempts at the run.

    Failed calls are not included, even if the endpoint charges for them.

    Attributes:
        calls: number of calls.
        input_tokens, cached_tokens, output_tokens: sums of tokens; cached ones are input too.
        cost_usd: US dollars of the priced calls.
        unpriced: calls whose cost is unknown.
        estimated: calls whose tokens the endpoint did not report usably, so that we counted them.
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
        """Returns the totals with one call more."""
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
QUESTION_COLUMNS = tuple(field.name for field in fields(QuestionRow))
ENGINE_COLUMNS = ("policy_digest", "capabilities")
SEALED: dict[str, tuple[str, ...]] = {
    "calls": CALL_COLUMNS,
    "questions": QUESTION_COLUMNS,
    "engines": ENGINE_COLUMNS,
}
"""Columns of the tables whose rows end in a checksum over them (`storage.checksums`)."""
call_values = attrgetter(*CALL_COLUMNS)
"""The values of a call, in the order of `CALL_COLUMNS`."""
question_values = attrgetter(*QUESTION_COLUMNS)
"""The values of a question's row, in the order of `QUESTION_COLUMNS`."""

CREATE = """
CREATE TABLE IF NOT EXISTS calls (
    key TEXT PRIMARY KEY, role TEXT NOT NULL, model TEXT NOT NULL, policy_digest TEXT NOT NULL,
    question_id TEXT NOT NULL, path TEXT NOT NULL, draw INTEGER NOT NULL,
    prompt_digest TEXT NOT NULL, text TEXT NOT NULL, finish_reason TEXT NOT NULL,
    stop_reason TEXT, input_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, usage_basis TEXT NOT NULL, cost_usd REAL,
    latency_s REAL NOT NULL, attempts INTEGER NOT NULL, error TEXT, at TEXT NOT NULL,
    prompt_ids BLOB, token_ids BLOB, logprobs BLOB, checksum TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS calls_by_question ON calls (question_id);
CREATE TABLE IF NOT EXISTS questions (
    question_id TEXT PRIMARY KEY,
    status TEXT NOT NULL CHECK (status IN ('pending', 'done', 'failed')),
    detail TEXT, part TEXT, checksum TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS engines (
    policy_digest TEXT PRIMARY KEY, capabilities TEXT NOT NULL, checksum TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


def _insert(table: str) -> str:
    """Inserts a row; its checksum is its last value."""
    columns = (*SEALED[table], "checksum")
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) "


def _replace(table: str) -> str:
    """Returns the SQL for a row whose key exists already."""
    key, *others = (*SEALED[table], "checksum")
    return f"ON CONFLICT ({key}) DO UPDATE SET " + ", ".join(f"{o} = excluded.{o}" for o in others)


def _select(table: str) -> str:
    """Returns the rows with their checksum last."""
    return f"SELECT {', '.join(SEALED[table])}, checksum FROM {table} "


# A stored reply is never overwritten: what was used once is what every replay sees. An error is.
PUT_CALL = _insert("calls") + _replace("calls") + " WHERE calls.error IS NOT NULL"
GET_CALL = _select("calls") + "WHERE key = ?"
GET_CALLS = _select("calls") + "WHERE question_id = ?"
PUT_ENGINE = _insert("engines") + _replace("engines")
GET_ENGINE = _select("engines") + "WHERE policy_digest = ?"
GET_QUESTIONS = _select("questions") + "ORDER BY rowid"
GET_NUMBERED = {
    table: _select(table).replace("SELECT ", "SELECT rowid, ", 1) + "ORDER BY rowid"
    for table in SEALED
}
"""Whole tables, each row with its number."""
PUT_FACT = "INSERT OR IGNORE INTO facts (name, value) VALUES (?, ?)"
GET_FACT = "SELECT value FROM facts WHERE name = ?"
IS_USED = (
    "SELECT EXISTS (SELECT 1 FROM calls) OR EXISTS (SELECT 1 FROM questions)"
    " OR EXISTS (SELECT 1 FROM engines)"
)
COUNT_MODELS = (
    "SELECT model, count(*) FROM calls WHERE policy_digest = ? AND error IS NULL GROUP BY model"
)
COUNT_ENDED = "SELECT count(*) FROM calls WHERE stop_reason = ? AND error IS NULL"
SUM_CALLS = (
    "SELECT count(*), coalesce(sum(input_tokens), 0), coalesce(sum(cached_tokens), 0), "
    "coalesce(sum(output_tokens), 0), total(cost_usd), count(*) - count(cost_usd), "
    f"count(*) FILTER (WHERE usage_basis <> '{REPORTED}') FROM calls WHERE error IS NULL"
)
COUNT_BASES = "SELECT usage_basis, count(*) FROM calls WHERE error IS NULL GROUP BY usage_basis"
SUM_GENERATED = (
    "SELECT question_id, sum(output_tokens) FROM calls "
    "WHERE error IS NULL AND substr(path, 1, instr(path, '/') - 1) = ? GROUP BY question_id"
)
PUT_QUESTION = _insert("questions") + _replace("questions")
MARK_PENDING = _insert("questions").replace("INSERT", "INSERT OR IGNORE", 1)
