"""Tags in a policy's text, and fences around text that it reads."""

import re
from itertools import islice

from agent.state import Action
from engines.sampling import Structure

MAX_CONTENT_CHARS = 300
"""Longest tag content that structured decoding allows."""

_TAG = re.compile(r"<(/?)(query|evidence|answer)>")


def one_tag(text: str, allowed: tuple[str, ...]) -> Action:
    """Exactly one well-formed tag, of a kind that is allowed, with something in it."""
    # Tag by tag: a pattern for a whole pair takes hours over a megabyte of opened tags.
    tags = list(islice(_TAG.finditer(text), 3))
    if [tag[1] for tag in tags] != ["", "/"] or tags[0][2] != tags[1][2]:
        return Action.invalid("not one tag, opened and closed")
    kind, content = tags[0][2], text[tags[0].end() : tags[1].start()].strip()
    if kind not in allowed:
        return Action.invalid(f"<{kind}> is not allowed here")
    if not content:
        return Action.invalid(f"<{kind}> is empty")
    return Action(kind, content)


def tag_structure(allowed: tuple[str, ...]) -> Structure:
    """Returns the constraint under which every completion is one of the allowed tags."""
    body = f"[^<>\\n]{{1,{MAX_CONTENT_CHARS}}}"
    return Structure("regex", "|".join(f"<{k}>{body}</{k}>" for k in allowed))


def fenced(title: str, text: str) -> str:
    """Returns a passage that cannot close its fence, nor pose as a tag of the protocol.

    Angle brackets become look-alikes and the passage stays on one line, so no text of it can
    look like a line of ours. Everything else stays verbatim: answers are copied from here.
    """
    return f"<passage>{inert(title)}: {inert(text)}</passage>"


def inert(text: str) -> str:
    """Returns the text on one line, without angle brackets that could pose as a tag."""
    return " ".join(text.split()).replace("<", "‹").replace(">", "›")
