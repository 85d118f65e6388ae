"""Hypothesis strategies for rollouts of the outcome systems, with tags in any order."""

from typing import Literal

from hypothesis import strategies as st

from branchwise.agent.segments import Segment

CORRECTION = "\nMy action is wrong. Let me try again.\n"
PIECES = [
    *("<think>", "</think>", "<answer>", "</answer>", "<search>", "</search>", "<evaluate>"),
    *("</evaluate>", "<information>", "</information>", "<|begin_of_query|>", "<|end_of_query|>"),
    *("<|begin_of_documents|>", "<|end_of_documents|>", "<relevance>", "</relevance>"),
    *("<analysis>", "</analysis>", "[2,4]", "[9]", "[", "1871", "yes", "the", " ", "\n", "<", ">"),
]
ANY = st.text(alphabet=st.characters(exclude_categories=()), max_size=12)
TEXT = st.lists(st.one_of(st.sampled_from(PIECES), ANY), max_size=12).map("".join)
GOLDS = st.lists(st.one_of(st.sampled_from(["1871", "yes", "The The", "a b"]), ANY), max_size=3)
POLICY = st.builds(Segment, st.just("policy"), TEXT, st.booleans())
OPENING = {"r1": "\n\n<|begin_of_documents|>", "eval-rar": "\n\n<information>"}


def blocks(system: Literal["r1", "eval-rar"]) -> st.SearchStrategy[Segment]:
    return TEXT.map(lambda text: Segment("environment", OPENING[system] + text))


def segments_of(system: Literal["r1", "eval-rar"]) -> st.SearchStrategy[list[Segment]]:
    prefill = st.builds(Segment, st.just("prefill"), TEXT)
    message = st.just(Segment("environment", CORRECTION))
    return st.lists(st.one_of(POLICY, POLICY, blocks(system), message, prefill), max_size=6)


def rewritten(segments: list[Segment], text: str, opening: str) -> list[Segment]:
    """Returns the rollout with its documents replaced by `text`."""
    return [
        Segment("environment", opening + text) if segment.text.startswith(opening) else segment
        for segment in segments
    ]
