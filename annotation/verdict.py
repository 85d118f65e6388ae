"""Reads a judge's reply: a score in [0, 1], or the reason that it cannot be read.

Two forms are valid: one JSON object `{"critique": …, "score": …}` (plain or in a code fence), or a
text whose last sentence, and no other, is "So the score is <number>." Nothing is repaired or
rescaled: "85/100", "seven", 1.5 and two scores are all rejected.
"""

import json
import re
from typing import Any, NoReturn

from branchwise.base import JudgeError
from branchwise.engines import FinishReason

SCORES = tuple(round(0.05 * step, 2) for step in range(21))
"""Choices of a judge under the schema, so a score is never out of range."""

VERDICT_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "critique": {"type": "string"},
            "score": {"type": "number", "enum": list(SCORES)},
        },
        "required": ["critique", "score"],
        "additionalProperties": False,
    }
)
_WORD = r'[^"\\\s]{1,20}'
VERDICT_REGEX = (
    rf'\{{"critique": "{_WORD}( {_WORD}){{0,20}}( {_WORD}){{0,20}}", '
    r'"score": (0(\.[0-9]{1,2})?|1(\.0)?)\}'
)
"""The same form for engines that take a regex, with a critique of at most 41 words.

The limit counts words, not characters, because grammar engines are slow for wide bounds
(`engines.embedded.structure`).
"""

_ANNOUNCED = re.compile(r"\bso the score is\b", re.IGNORECASE)
_LAST_SENTENCE = re.compile(
    r"\bso the score is:?\s+(?P<mark>\*\*|\[)?(?P<number>\S+?)(?(mark)(?:\*\*|\]))\.?\Z",
    re.IGNORECASE,
)
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,9}(?:\.[0-9]{1,9})?|\.[0-9]{1,9})")


def read_score(text: str, finish_reason: FinishReason) -> float:
    """Returns the score in [0, 1] of a judge's whole reply.

    Raises:
        JudgeError: If there is not exactly one readable score in range.
    """
    if finish_reason == "length":
        raise JudgeError("cut at the token limit")
    if finish_reason == "content_filter":
        raise JudgeError("the judge refused")
    reply = text.strip()
    document = reply if reply.startswith("{") else _fenced(reply)
    if document is not None:
        return _in_range(_json_score(document))
    if finish_reason != "stop":
        # "So the score is 0" may be the beginning of 0.85; a closed JSON object is whole.
        raise JudgeError("the reply may be incomplete (unknown finish reason)")
    return _in_range(_sentence_score(reply.rstrip("*_`")))


def _fenced(reply: str) -> str | None:
    """Returns the content of a code fence that is the whole reply, or None.

    Does not use a regex: one with white space on both sides of a text takes hours over a megabyte
    of empty lines.
    """
    opening, newline, body = reply.partition("\n")
    if not newline or opening.rstrip() not in ("```", "```json") or not body.endswith("```"):
        return None
    return body.removesuffix("```")


def _json_score(text: str) -> float:
    try:
        verdict = json.loads(
            text, strict=False, parse_constant=_no_constant, object_pairs_hook=_without_repeats
        )
    except (ValueError, RecursionError):
        raise JudgeError("not valid JSON") from None
    if not isinstance(verdict, dict) or "score" not in verdict:
        raise JudgeError("no score")
    if not verdict.keys() <= {"critique", "score"}:
        raise JudgeError("unexpected keys next to the score")
    score = verdict["score"]
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise JudgeError("the score is not a number")
    return score


def _sentence_score(text: str) -> float:
    announced = len(_ANNOUNCED.findall(text))
    if announced == 0:
        raise JudgeError("no score")
    if announced > 1:
        raise JudgeError("more than one score")
    last = _LAST_SENTENCE.search(text)
    if last is None:
        raise JudgeError("the score is not the end of the reply")
    if not _DECIMAL.fullmatch(last["number"]):
        raise JudgeError("the score is not a number")
    return float(last["number"])


def _in_range(score: float) -> float:
    if not 0 <= score <= 1:
        raise JudgeError("the score is outside 0 to 1")
    return abs(float(score))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a key is repeated")
    return unique
