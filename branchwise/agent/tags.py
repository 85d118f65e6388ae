"""Tags in a policy's text, and fences around text that it reads."""

import re
from functools import cache
from itertools import islice

from branchwise.engines import Structure

from .state import Action

MAX_CONTENT_CHARS = 300
"""Longest tag content that structured decoding allows."""
CONTENT = f"[^<>\\n]{{1,{MAX_CONTENT_CHARS}}}"
"""Regular expression for the content of a tag in structured decoding."""


@cache
def _tag_pattern(allowed: tuple[str, ...]) -> re.Pattern[str]:
    kinds = dict.fromkeys(("query", "evidence", "answer", *allowed))
    return re.compile(f"<(/?)({'|'.join(map(re.escape, kinds))})>")


def parse_tag(text: str, allowed: tuple[str, ...]) -> Action:
    """Reads exactly one well-formed tag of an allowed kind; its content must not be empty."""
    # Read tag by tag: a regex for a whole pair takes hours over a megabyte of opened tags.
    tags = list(islice(_tag_pattern(allowed).finditer(text), 3))
    if [tag[1] for tag in tags] != ["", "/"] or tags[0][2] != tags[1][2]:
        return Action.invalid("not one tag, opened and closed")
    kind, content = tags[0][2], text[tags[0].end() : tags[1].start()].strip()
    if kind not in allowed:
        return Action.invalid(f"<{kind}> is not allowed here")
    if not content:
        return Action.invalid(f"<{kind}> is empty")
    return Action(kind, content)


def tag_structure(allowed: tuple[str, ...]) -> Structure:
    """Returns a constraint that makes every completion one of the allowed tags."""
    return Structure("regex", "|".join(f"<{kind}>{CONTENT}</{kind}>" for kind in allowed))


def fenced(title: str, text: str) -> str:
    """Returns a passage that cannot close its fence or imitate a tag of the protocol.

    Angle brackets become look-alikes and the passage stays on one line, so its text cannot look
    like a line of the prompt. Everything else stays verbatim, because answers are copied from here.
    """
    return f"<passage>{without_tags(title)}: {without_tags(text)}</passage>"


def without_tags(text: str) -> str:
    """Returns the text on one line, without angle brackets that could imitate a tag."""
    return " ".join(text.split()).replace("<", "‹").replace(">", "›")


def content_of(reply: str) -> str:
    """Returns the content as the published code defines it: inside the first tag; "" without one.

    An answer is preferred to a query (`search` in EVO-RAG), and a query to evidence.
    """
    for tag in ("answer", "query", "search", "evidence"):
        _, _, after_tag = reply.partition(f"<{tag}>")
        content, closing, _ = after_tag.partition(f"</{tag}>")
        if closing:
            return content.strip()
    return ""
