"""Wide bounds are removed from regexes for OpenVINO and applied to its text afterwards."""

import re

from hypothesis import given
from hypothesis import strategies as st

from branchwise.engines.embedded.structure import drop_wide_bounds, truncate_to_bounds

REGEX = "<query>[^<>\\n]{1,300}</query>|<answer>[^<>\\n]{1,300}</answer>"
content = st.text(st.characters(exclude_characters="<>\n", codec="utf-8"), min_size=1, max_size=400)


@given(content, st.sampled_from(["query", "answer"]))
def test_closed_text_is_truncated_to_the_bound(body: str, tag: str) -> None:
    text = f"<{tag}>{body}</{tag}>"
    assert re.fullmatch(drop_wide_bounds(REGEX), text)
    assert truncate_to_bounds(REGEX, text) == f"<{tag}>{body[:300]}</{tag}>"


@given(content, st.integers(0, 8))
def test_text_cut_by_the_token_limit_is_closed_only_beyond_the_bound(body: str, end: int) -> None:
    text = f"<query>{body}" + "</query>"[:end]
    allowed = f"<query>{body[:300]}</query>"
    expected = allowed if len(body) > 300 or end == 8 else text
    assert truncate_to_bounds(REGEX, text) == expected


def test_narrow_and_open_repetitions_are_kept() -> None:
    assert drop_wide_bounds(r"[0-9]{1,3}\.[0-9]{2}x{5,}") == r"[0-9]{1,3}\.[0-9]{2}x{5,}"
    assert drop_wide_bounds("a{0,99}b{2,99}c{1,99}") == "a*b{2,}c+"
