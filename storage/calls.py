"""What the ledger keeps: the rows of its tables, and its totals."""

from dataclasses import astuple, dataclass, fields
from operator import attrgetter
from typing import Literal

QuestionStatus = Literal["owed", "done", "failed"]


@dataclass(frozen=True, slots=True)
class Call:
    """One model call: a row of `calls`. Prompts are kept by digest only.

    Attributes:
        key: `engines.sampling.call_key`, which holds everything that decides the result.
        role: who was asked ("policy", "judge", "verifier").
        model: the name that the server reported.
        policy_digest: digest of the engine that was asked.
        question_id, path, draw: whom the call served, where in its work, which draw.
        prompt_digest: hash of the messages that were sent.
        text: the reply.
        cost_usd: US dollars; null where no price is set.
        latency_s, attempts: how long it took in seconds, and how many tries.
        error: why there is no reply; null for a call that succeeded.
        at: when it ended (ISO 8601, UTC).
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
    cost_usd: float | None
    latency_s: float
    attempts: int
    error: str | None
    at: str


@dataclass(frozen=True, slots=True)
class QuestionRow:
    """Where a question stands: a row of `questions`.

    Attributes:
        question_id: the question.
        status: "owed", "done" or "failed".
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

    Attributes:
        calls: number of calls.
        input_tokens, cached_tokens, output_tokens: sums of tokens; cached ones are input too.
        cost_usd: US dollars of the priced calls.
        unpriced: calls whose cost is unknown.
    """

    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    unpriced: int = 0

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: "Totals") -> "Totals":
        return Totals(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def plus(self, call: Call) -> "Totals":
        """The totals with one call more."""
        return Totals(
            self.calls + 1,
            self.input_tokens + call.input_tokens,
            self.cached_tokens + call.cached_tokens,
            self.output_tokens + call.output_tokens,
            self.cost_usd + (call.cost_usd or 0.0),
            self.unpriced + (call.cost_usd is None),
        )


CALL_COLUMNS = tuple(field.name for field in fields(Call))
QUESTION_COLUMNS = tuple(field.name for field in fields(QuestionRow))
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
    output_tokens INTEGER NOT NULL, cost_usd REAL, latency_s REAL NOT NULL,
    attempts INTEGER NOT NULL, error TEXT, at TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS calls_by_question ON calls (question_id);
CREATE TABLE IF NOT EXISTS questions (
    question_id TEXT PRIMARY KEY,
    status TEXT NOT NULL CHECK (status IN ('owed', 'done', 'failed')),
    detail TEXT, part TEXT
);
CREATE TABLE IF NOT EXISTS engines (policy_digest TEXT PRIMARY KEY, capabilities TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

# A stored reply is never overwritten: what was used once is what every replay sees. An error is.
PUT_CALL = (
    f"INSERT INTO calls ({', '.join(CALL_COLUMNS)}) VALUES ({', '.join('?' * len(CALL_COLUMNS))}) "
    "ON CONFLICT (key) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in CALL_COLUMNS[1:])
    + " WHERE calls.error IS NOT NULL"
)
GET_CALL = f"SELECT {', '.join(CALL_COLUMNS)} FROM calls WHERE key = ? AND error IS NULL"
GET_KEYS = "SELECT key FROM calls WHERE question_id = ? AND error IS NULL"
PUT_ENGINE = (
    "INSERT INTO engines (policy_digest, capabilities) VALUES (?, ?) "
    "ON CONFLICT (policy_digest) DO UPDATE SET capabilities = excluded.capabilities"
)
GET_ENGINE = "SELECT capabilities FROM engines WHERE policy_digest = ?"
PUT_FACT = "INSERT OR IGNORE INTO facts (name, value) VALUES (?, ?)"
GET_FACT = "SELECT value FROM facts WHERE name = ?"
IS_USED = (
    "SELECT EXISTS (SELECT 1 FROM calls) OR EXISTS (SELECT 1 FROM questions)"
    " OR EXISTS (SELECT 1 FROM engines)"
)
COUNT_MODELS = (
    "SELECT model, count(*) FROM calls WHERE policy_digest = ? AND error IS NULL GROUP BY model"
)
SUM_CALLS = (
    "SELECT count(*), coalesce(sum(input_tokens), 0), coalesce(sum(cached_tokens), 0), "
    "coalesce(sum(output_tokens), 0), total(cost_usd), count(*) - count(cost_usd) "
    "FROM calls WHERE error IS NULL"
)
SUM_GENERATED = (
    "SELECT question_id, sum(output_tokens) FROM calls "
    "WHERE error IS NULL AND substr(path, 1, instr(path, '/') - 1) = ? GROUP BY question_id"
)
PUT_QUESTION = (
    "INSERT INTO questions (question_id, status, detail, part) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (question_id) DO UPDATE SET status = excluded.status, "
    "detail = excluded.detail, part = excluded.part"
)
OWE_QUESTION = "INSERT OR IGNORE INTO questions (question_id, status) VALUES (?, 'owed')"
