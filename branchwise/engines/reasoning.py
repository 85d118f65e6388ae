"""Separates a model's reasoning from its reply, by one rule for all engines.

Protocols that continue one turn (R1-Searcher, Search-R1, Eval-RAR, AutoRefine) write `<think>`
themselves and draw by token ids, so the rule does not apply to them.
"""

import json
import re
from collections.abc import Iterator

READER = 2
"""Version of the readers of replies, stored with each call. Raise it when a reply may be read in
another way; `annotate --reread` reads the calls of older versions again.
"""
_ELEMENT = re.compile(r"<(/?)([a-z_][\w:-]*)>", re.IGNORECASE)
_THOUGHTS = frozenset({"think", "thinking", "thought", "reasoning"})
_OTHER_OPENINGS = re.compile(
    r"""<(?:think|thought)[ ][^<>]*>
    | <(?:seed|mm):think(?:[ ][^<>]*)?>              # Seed, MiniMax
    | \[THINK\]                                      # Magistral
    | ◁think▷                                        # Kimi
    | <\|START_THINKING\|> | <\|begin_of_thought\|>  # Cohere, Sky-T1
    | <\|channel>thought | <unused94>thought         # Gemma
    | <details[ ]type="reasoning"[^<>]*>             # Open WebUI
    | (?:<\|start\|>assistant)?<\|channel\|>(?:analysis|commentary)(?:<\|message\|>)?  # gpt-oss
    | \Aanalysis(?=.*assistantfinal)                 # gpt-oss without its special tokens
    """,
    re.VERBOSE | re.DOTALL,
)
_OTHER_CLOSINGS = re.compile(
    r"""</(?:seed|mm):think> | \[/THINK\] | ◁/think▷ | <\|END_THINKING\|> | <\|end_of_thought\|>
    | <channel\|> | <unused95> | </details>
    | (?:<\|end\|>)?(?:<\|start\|>assistant)?<\|channel\|>final(?:<\|message\|>)? | assistantfinal
    """,
    re.VERBOSE,
)
_START_OF_TURN = re.compile(
    r"\A\s*(?:<\|im_start\|>assistant|<\|start_header_id\|>assistant<\|end_header_id\|>)\s*"
)
_END_OF_TURN = re.compile(
    r"<\|(?:im_end|im_start|eot_id|end_of_text|endoftext|end|return|user|END_RESPONSE)\|>"
    r"|<end_of_turn>|<turn\|>|</s>\s*\Z"
)
_REPLY_BEGINS = re.compile(r"\s*(\n|<|$)")


def split_reasoning(content: str) -> tuple[str, str]:
    """Returns a reply without the reasoning inside it, and the reasoning ("" if there is none).

    Reasoning is what `<think>` and `</think>` enclose (or `thinking`, `thought`, `reasoning`). The
    first tag may be missing, because some chat templates open it; then everything before the second
    is reasoning. The second is missing if the reply was cut; then everything after the first is.
    Tags inside another element, such as `<query>`, are text. Other models' tags mean the same. An
    end-of-turn token that the server left in the text ends the reply.
    """
    content = _START_OF_TURN.sub("", content)
    same = _OTHER_OPENINGS.sub("<think>", content)
    if same != content:
        same = _OTHER_CLOSINGS.sub("</think>", same)
    reply, reasoning = _split(same)
    if same != content and not reasoning:
        reply = content
    end = _END_OF_TURN.search(reply)
    return (reply[: end.start()].strip() if end else reply), reasoning


def _split(content: str) -> tuple[str, str]:
    """Returns what is outside `<think>` and the like, and what is inside."""
    reply: list[str] = []
    reasoning: list[str] = []
    start, is_open = 0, False
    for closes, tag in _thought_tags(content):
        before = content[start : tag.start()]
        if is_open == closes:  # the tag changes between reply and reasoning
            (reasoning if closes else reply).append(before)
        elif closes:
            reasoning, reply = [*reasoning, *reply, before], []
        else:
            reasoning.append(before)
        start, is_open = tag.end(), not closes
    if not start:
        return content, ""
    (reasoning if is_open else reply).append(content[start:])
    thoughts = (thought.strip() for thought in reasoning)
    return "".join(reply).strip(), "\n\n".join(thought for thought in thoughts if thought)


def _thought_tags(content: str) -> Iterator[tuple[bool, re.Match[str]]]:
    """Yields whether a tag of a thought closes it, and the tag, except for tags in other elements.

    A thought may name an element without closing it; then a line break or the reply's own element
    follows the closing tag.
    """
    elements = list(_ELEMENT.finditer(content))
    last_end = {e[2].lower(): e.start() for e in elements if e[1]}
    around: set[str] = set()
    is_open = False
    for element in elements:
        name, closes = element[2].lower(), bool(element[1])
        if name not in _THOUGHTS:
            if closes:
                around.discard(name)
            elif not is_open and last_end.get(name, -1) > element.start():
                around.add(name)
            continue
        around = {name for name in around if last_end[name] > element.start()}
        begins_reply = closes and _REPLY_BEGINS.match(content, element.end())
        if is_open or not around or begins_reply:
            yield closes, element
            is_open = not closes


def raw_reply(content: str, finish_reason: str) -> str:
    """Returns a whole reply of the embedded engine in the form in which endpoints send theirs."""
    reply = {"message": {"content": content}, "finish_reason": finish_reason}
    return json.dumps(reply, ensure_ascii=False)
