"""Replies without a text, by cause, and what to change."""

from collections import Counter
from collections.abc import Iterator

from branchwise.engines import OVERLONG, REASONING_ONLY
from branchwise.storage import Ledger

NOTABLE_SHARE = 0.05
"""Share of a role's replies from which advice is logged."""
ADVICE = {
    "the token limit cut the reasoning": "raise {role}.max_new_tokens, or switch thinking off "
    "({role}.server, or {role}.request.extra; see docs/endpoints.md)",
    "reasoning without a reply": "set {role}.reasoning to reply if the reasoning holds the reply",
    "the token limit": "raise {role}.max_new_tokens",
    "refused": "choose another {role}.model: the endpoint's moderation, or the model, refuses",
    "far above the token limit": "the server ignores the limit; check {role}.request.rename",
    "a tool call": "choose a {role}.model that does not call tools by itself",
    "empty": "try another {role}.model",
}
"""What to change, by the cause of empty replies."""


def empty_replies(ledger: Ledger) -> Counter[tuple[str, str]]:
    """Counts replies without a text by role and cause (a key of `ADVICE`)."""
    counts = Counter[tuple[str, str]]()
    for role, finish, stop, n in ledger.empty_replies():
        counts[role, cause_of(finish, stop or "")] += n
    return counts


def empty_reply_advice(ledger: Ledger) -> Iterator[str]:
    """Yields a line for each frequent cause of empty replies."""
    replies = ledger.count_calls("role")
    for (role, cause), n in sorted(empty_replies(ledger).items()):
        if n >= NOTABLE_SHARE * replies[role]:
            advice = ADVICE[cause].format(role=role)
            yield f"{n:,} of {replies[role]:,} replies of the {role} are empty: {cause}. {advice}"


def cause_of(finish_reason: str, stop_reason: str) -> str:
    """Returns why a reply has no text, as a key of `ADVICE`."""
    if stop_reason == OVERLONG:
        return "far above the token limit"
    if stop_reason == REASONING_ONLY:
        is_cut = finish_reason == "length"
        return "the token limit cut the reasoning" if is_cut else "reasoning without a reply"
    if finish_reason == "content_filter":
        return "refused"
    if "tool" in stop_reason or "function" in stop_reason:
        return "a tool call"
    return "the token limit" if finish_reason == "length" else "empty"
