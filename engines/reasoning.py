"""Separates a model's reasoning from its reply, by one rule for all engines.

Protocols that continue one turn (R1-Searcher, Search-R1, Eval-RAR, AutoRefine) write `<think>`
themselves and draw by token ids, so the rule does not apply to them.
"""

import json
import re

READER = 1
"""Version of the readers of replies, stored with each call. Raise it when a reply may be read in
another way; `annotate --reread` reads the calls of older versions again.
"""
_TAG = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>", re.IGNORECASE)


def split_reasoning(content: str) -> tuple[str, str]:
    """Returns a reply without the reasoning inside it, and the reasoning ("" if there is none).

    Reasoning is what `<think>` and `</think>` enclose (or `thinking`, `thought`, `reasoning`). The
    first tag may be missing, because some chat templates open it; then everything before the second
    is reasoning. The second is missing if the reply was cut; then everything after the first is.
    """
    reply: list[str] = []
    reasoning: list[str] = []
    start, is_open = 0, False
    for tag in _TAG.finditer(content):
        before, is_closing = content[start : tag.start()], bool(tag[1])
        if is_open == is_closing:  # the tag changes between reply and reasoning
            (reasoning if is_closing else reply).append(before)
        elif is_closing:
            reasoning, reply = [*reasoning, *reply, before], []
        else:
            reasoning.append(before)
        start, is_open = tag.end(), not is_closing
    if not start:
        return content, ""
    (reasoning if is_open else reply).append(content[start:])
    thoughts = (thought.strip() for thought in reasoning)
    return "".join(reply).strip(), "\n\n".join(thought for thought in thoughts if thought)


def raw_reply(content: str, finish_reason: str) -> str:
    """Returns a whole reply of the embedded engine in the form in which endpoints send theirs."""
    whole = {"message": {"content": content}, "finish_reason": finish_reason}
    return json.dumps(whole, ensure_ascii=False)
