"""Asks a model for a verdict of one word, and reads it."""

import json
import re
import unicodedata

from branchwise.engines import (
    CallIdentity,
    Engine,
    FinishReason,
    JudgeSettings,
    SampleRequest,
    Sampling,
    Structure,
)
from branchwise.types import Message

_SYNONYMS = (
    frozenset({"yes", "true", "correct", "y", "1", "是", "对", "正确"}),
    frozenset({"no", "false", "incorrect", "n", "0", "否", "不是", "错误"}),
)
"""Words for a verdict, as models write them instead of the word that they were asked for."""
_LABEL = re.compile(
    r"(?:the )?(?:final )?(?:answer|verdict|judge?ment|response)(?: is)?\s*[:=]?\s*"
)
_ENCLOSED = re.compile(r"\\(?:boxed|text|mathbf|textbf)\{([^{}]*)\}|<(\w+)>([^<>]*)</\2>")
_WORD = re.compile(r"[\W_]*(?:\d+[.)]\s+)?([^\W_]+)\s*(.?)")
_FRACTION = re.compile(r"[.,]\d")
_AFTER_WORD = frozenset(".,;:!?\n-–—*_`\"')]}|<$。，")


async def ask_for_word(
    engine: Engine,
    settings: JudgeSettings,
    messages: tuple[Message, ...],
    identity: CallIdentity,
    words: tuple[str, str] = ("yes", "no"),
) -> bool | None:
    """Asks for one of two words; decoding is constrained to them if the engine can.

    Returns:
        Whether the reply is the first word; None if it is neither.

    Raises:
        EndpointError: If the model's endpoint failed.
    """
    can = engine.capabilities.structured_output
    request = SampleRequest(
        messages,
        Sampling(settings.temperature, settings.top_p, settings.max_new_tokens),
        identity,
        Structure("regex", "|".join(words)) if can else None,
    )
    reply = await engine.sample(request)
    return read_word(reply.text, reply.finish_reason, words)


def read_word(text: str, finish_reason: FinishReason, words: tuple[str, str]) -> bool | None:
    """Returns whether a reply says the first of two words; None if it says neither.

    The word is the whole reply, or its first word before a mark of punctuation or a line break,
    unless a later line begins with the other word:
    `**Yes**`, "Answer: no.", "Yes, it matches", `{"verdict": "yes"}`, `\\boxed{yes}`. Synonyms
    such as True and 是 count for yes, and False and 否 for no.

    Args:
        text: The reply.
        finish_reason: Why it ended; a word at the end of a reply that was cut may be incomplete.
        words: The words for true and false.
    """
    plain = _ENCLOSED.sub(lambda match: match[1] or match[3] or "", _json_value(text.strip()))
    plain = unicodedata.normalize("NFKC", plain).strip().lower()
    plain = re.sub(r"^[\W_]+", "", plain)
    label = _LABEL.match(plain)
    match = _WORD.match(plain, label.end() if label else 0)
    if match is None:
        return None
    remainder = plain[match.end(1) :]
    is_last = not remainder.strip()
    if (is_last and finish_reason == "length") or not (is_last or remainder[0] in _AFTER_WORD):
        return None
    if match[1].isdecimal() and _FRACTION.match(remainder):
        return None
    verdict = _verdict(match[1], words)
    later = (_WORD.match(line) for line in remainder.splitlines()[1:])
    contradicted = any(word and _verdict(word[1], words) is (not verdict) for word in later)
    return None if contradicted else verdict


def _verdict(word: str, words: tuple[str, str]) -> bool | None:
    for verdict, expected in zip((True, False), map(str.lower, words), strict=True):
        synonyms = next((group for group in _SYNONYMS if expected in group), {expected})
        if word in synonyms:
            return verdict
    return None


def _json_value(text: str) -> str:
    """Returns the only value of a JSON object, or the text itself."""
    if not text.startswith("{"):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    values = list(value.values()) if isinstance(value, dict) else []
    return str(values[0]) if len(values) == 1 else text
