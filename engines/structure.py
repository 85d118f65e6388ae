"""Regular expressions as OpenVINO can afford them.

Its grammar engine (xgrammar) follows `[^<>]+` for nothing but needs about 130 ms per token for
`[^<>]{1,300}`: a state for every repetition, each with a mask over the whole vocabulary. So a
wide bound is left out while the model writes, and what it would have done is done afterwards:
a text is cut where the bound is, and closed as the expression closes it.
"""

import re

WIDEST_BOUND = 20
"""Repetitions up to this many cost little (1 ms per token) and are left as they are."""

_BOUND = re.compile(r"\{(\d+),(\d+)\}")
_LITERAL_END = re.compile(r"(?:\\.|[^\\\[\](){}.*+?|^$])*$")
_ESCAPE = re.compile(r"\\(.)")


def relaxed(regex: str) -> str:
    """`regex` without its wide upper bounds: it accepts all that `regex` accepts, and longer."""

    def open_end(bound: re.Match[str]) -> str:
        low, high = int(bound[1]), int(bound[2])
        if high <= WIDEST_BOUND:
            return bound[0]
        return {0: "*", 1: "+"}.get(low, f"{{{low},}}")

    return _BOUND.sub(open_end, regex)


def within_bounds(regex: str, text: str) -> str:
    """`text` (written under `relaxed(regex)`) as the bounds of `regex` would have had it.

    A text that `regex` accepts, or that was cut before any bound was passed, stays as it is. One
    that ran over a bound is cut there and closed with the literal end of the alternative.
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
    """Returns the longest beginning of `text` that `end` completes; None if the bound was not
    reached.
    """
    #   regex  <query>[^<>]{1,300}</query>      the model wrote 340 characters under the relaxed one
    #   |<query>.......300.......|.... 40 ....   cut here, append "</query>"
    # Accept the longest prefix that the end completes, but only if one more character would satisfy
    # the relaxed regex and not the bounded one. Otherwise the text was cut for another reason.
    try:
        pattern, open_pattern = re.compile(alternative), re.compile(relaxed(alternative))
    except re.error:  # a `|` inside a group: not an expression that can be cut this way
        return None
    for cut in range(len(text) - 1, 0, -1):
        if pattern.fullmatch(text[:cut] + end):
            # One character more fits the open expression only, so it was the bound that ended it.
            longer = text[: cut + 1] + end
            over = open_pattern.fullmatch(longer) and not pattern.fullmatch(longer)
            return text[:cut] + end if over else None
    return None
