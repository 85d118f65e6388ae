"""Segments of a rollout, and strict readers of the tags in them.

Protocols that continue one turn mix text of the policy with text of the environment. A passage may
contain any tag, so readers get the policy's segments and never search the joined text. They read
tag by tag: a regex over a whole pair takes hours over a megabyte of opened tags.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Literal, NamedTuple

Pairs = Mapping[str, tuple[str, str]]
"""Opening and closing string of each tag, by the tag's name."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive text of one author.

    Attributes:
        role: Author; `prefill` is the beginning that the protocol gives to the policy's turn.
        text: Its text, with the stop string that ended it.
        cut: Whether the policy's call ended at the token limit.
    """

    role: Literal["prefill", "policy", "environment"]
    text: str
    cut: bool = False


class Tag(NamedTuple):
    """One tag and its place in a text."""

    name: str
    closing: bool
    start: int
    end: int


def pairs(*names: str) -> Pairs:
    """Returns `<name>` and `</name>` for each name."""
    return {name: (f"<{name}>", f"</{name}>") for name in names}


R1_SEARCHER: Pairs = {
    **pairs("think", "answer"),
    "query": ("<|begin_of_query|>", "<|end_of_query|>"),
    "documents": ("<|begin_of_documents|>", "<|end_of_documents|>"),
}


@dataclass(frozen=True, slots=True)
class SearchTags:
    """Names of the tags in which Search-R1 and its descendants differ.

    Attributes:
        documents: Tag around inserted documents.
        evaluation: Tag around the policy's text about them; None for Search-R1, which does not
            evaluate.
    """

    documents: str = "information"
    evaluation: str | None = None

    @property
    def pairs(self) -> Pairs:
        """All tags of the protocol."""
        evaluation = (self.evaluation,) if self.evaluation else ()
        return pairs("think", "search", "answer", self.documents, *evaluation)


SEARCH_R1 = SearchTags()
EVAL_RAR = SearchTags(evaluation="evaluate")
AUTOREFINE = SearchTags("documents", "refine")


def find_tags(text: str, tags: Pairs) -> Iterator[Tag]:
    """Yields those of `tags` that occur in a text, in order."""
    kinds = {opening: (name, False) for name, (opening, _) in tags.items()}
    kinds |= {closing: (name, True) for name, (_, closing) in tags.items()}
    for match in re.finditer("|".join(map(re.escape, kinds)), text):
        yield Tag(*kinds[match[0]], match.start(), match.end())


def section(text: str, name: str) -> str | None:
    """Returns the text between exactly one `<name>` and one `</name>`, in this order, or None."""
    first_tags = list(islice(find_tags(text, pairs(name)), 3))
    if [tag.closing for tag in first_tags] != [False, True]:
        return None
    return text[first_tags[0].end : first_tags[1].start]


def outside(text: str, names: Iterable[str]) -> str | None:
    """Returns the text before, between and after consecutive sections.

    None unless each section is opened and closed exactly once, in the order of `names`.
    """
    expected = [(name, closing) for name in names for closing in (False, True)]
    tags = pairs(*(name for name, _ in expected))
    first_tags = list(islice(find_tags(text, tags), len(expected) + 1))
    if [(tag.name, tag.closing) for tag in first_tags] != expected:
        return None
    ends = [0, *(tag.end for tag in first_tags[1::2])]
    starts = [*(tag.start for tag in first_tags[::2]), len(text)]
    return "".join(text[end:start] for end, start in zip(ends, starts, strict=True))


def first_pair(text: str, tags: Pairs, names: Collection[str]) -> tuple[Tag, Tag] | None:
    """Returns the first complete pair of `names` without one of `tags` inside."""
    for opened, closed in pairwise(find_tags(text, tags)):
        is_pair = opened.name == closed.name and not opened.closing and closed.closing
        if is_pair and opened.name in names:
            return opened, closed
    return None


def policy_text(segments: Iterable[Segment], *, prefill: bool = False) -> str:
    """Joins the policy's segments, with a blank line for each insertion of the environment.

    The blank line prevents a tag from forming across two calls.

    Args:
        segments: Segments of one rollout.
        prefill: Whether to include the prefill.
    """
    roles = ("policy", "prefill") if prefill else ("policy",)
    return "".join(
        segment.text if segment.role in roles else "\n\n" if segment.role == "environment" else ""
        for segment in segments
    )


def is_block(segment: Segment, opening: str) -> bool:
    """Returns whether the environment inserted documents here, not a corrective message."""
    return segment.role == "environment" and segment.text.lstrip().startswith(opening)
