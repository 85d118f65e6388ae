"""Regular expressions that OpenVINO can evaluate fast.

Its grammar engine (xgrammar) evaluates `[^<>]+` at almost no cost, but `[^<>]{1,300}` takes about
130 ms per token: one state per repetition, each with a mask over the whole vocabulary. So wide
bounds are removed during generation and applied afterwards: the text is cut at the bound, and
closed with the end of the expression.
"""

import re

WIDEST_BOUND = 20
"""Largest bound that is kept; up to this many repetitions cost little (1 ms per token)."""

_BOUND = re.compile(r"\{(\d+),(\d+)\}")
_LITERAL_END = re.compile(r"(?:\\.|[^\\\[\](){}.*+?|^$])*$")
_ESCAPE = re.compile(r"\\(.)")


def drop_wide_bounds(regex: str) -> str:
    """Returns `regex` without wide upper bounds; it accepts the same texts, and longer ones."""

    def open_end(bound: re.Match[str]) -> str:
        low, high = int(bound[1]), int(bound[2])
        if high <= WIDEST_BOUND:
            return bound[0]
        return {0: "*", 1: "+"}.get(low, f"{{{low},}}")

    return _BOUND.sub(open_end, regex)


def truncate_to_bounds(regex: str, text: str) -> str:
    """Returns `text` (generated under `drop_wide_bounds(regex)`), cut to the bounds of `regex`.

    The text stays unchanged if `regex` accepts it, or if it ended before any bound. Text beyond a
    bound is cut there and closed with the literal end of the alternative.
    """
    if re.fullmatch(regex, text):
        return text
    for alternative in regex.split("|"):
        end = _ESCAPE.sub(r"\1", _LITERAL_END.search(alternative)[0])  # type: ignore[index]
        closed = _longest_closed(alternative, text, end)
        if closed is not None:
            return closed
    return text


def _longest_closed(alternative: str, text: str, end: str) -> str | None:
    """Returns the longest prefix that `end` completes; None if the text did not reach the bound."""
    #   regex  <query>[^<>]{1,300}</query>      the model wrote 340 characters, unbounded
    #   |<query>.......300.......|.... 40 ....   cut here, append "</query>"
    # Accept the longest prefix that the end completes, but only if one more character would satisfy
    # the relaxed regex and not the bounded one. Otherwise the text ended for another reason.
    try:
        pattern, open_pattern = re.compile(alternative), re.compile(drop_wide_bounds(alternative))
    except re.error:  # a `|` inside a group: such an expression cannot be cut this way
        return None
    for cut in range(len(text) - 1, 0, -1):
        if pattern.fullmatch(text[:cut] + end):
            # If one more character fits only the open expression, the text ran over the bound.
            longer = text[: cut + 1] + end
            over = open_pattern.fullmatch(longer) and not pattern.fullmatch(longer)
            return text[:cut] + end if over else None
    return None
