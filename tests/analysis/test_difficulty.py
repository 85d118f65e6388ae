"""Difficulty labels by the first right rollout, and the proportions of curriculum stages."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from branchwise.analysis.difficulty import LABELS, difficulty_of, draw_stages
from branchwise.types import Difficulty

CASES = json.loads((Path(__file__).parent / "cases" / "difficulty.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_labels_agree_with_the_worked_cases(case: dict[str, Any]) -> None:
    assert difficulty_of(case["input"]["first_right"]) == case["expected"]


@pytest.mark.parametrize(("first", "label"), [(9, "easy"), (20, "medium"), (32, "difficult")])
def test_the_last_rollout_of_each_label(first: int, label: str) -> None:
    assert difficulty_of(first) == label


def rated(numbers: dict[str, int]) -> list[Difficulty]:
    """Returns the given number of rated questions for each `<source>/<label>`."""
    return [
        Difficulty(
            question_id=f"{bucket}-{number}",
            source=bucket.partition("/")[0],
            label=bucket.partition("/")[2],
            rollouts=1,
            first_success=1,
            seed=0,
            output_tokens=1,
            policy_digest="d",
            config_digest="c",
        )
        for bucket, count in numbers.items()
        for number in range(count)
    ]


SOURCES = ("hotpotqa", "2wiki")
counts = st.fixed_dictionaries(
    {f"{source}/{label}": st.integers(0, 60) for source in SOURCES for label in LABELS}
)


def stages(buckets: list[str]) -> st.SearchStrategy[dict[str, dict[str, int]]]:
    wanted = st.dictionaries(st.sampled_from(buckets), st.integers(1, 90), min_size=1)
    return st.dictionaries(st.sampled_from(["1", "2", "3"]), wanted, min_size=1)


wanted_stages = stages(list(LABELS)) | stages([f"{s}/{label}" for s in SOURCES for label in LABELS])


def available(numbers: dict[str, int], bucket: str) -> int:
    return sum(n for name, n in numbers.items() if bucket in (name, name.partition("/")[2]))


@given(numbers=counts, wanted=wanted_stages, seed=st.integers(0, 3))
@example(
    numbers={"2wiki/unsolved": 41, "2wiki/medium": 30},
    wanted={"1": {"unsolved": 82, "medium": 41}, "2": {"medium": 1}},
    seed=0,
)
def test_stages_keep_their_proportions(
    numbers: dict[str, int], wanted: dict[str, dict[str, int]], seed: int
) -> None:
    rows = rated(numbers)
    drawn = draw_stages(rows, wanted, seed)
    assert draw_stages(rows[::-1], wanted, seed) == drawn, "the order of the rows does not matter"
    chosen = [row for buckets in drawn.values() for bucket in buckets.values() for row in bucket]
    assert len({row.question_id for row in chosen}) == len(chosen), "a question was drawn twice"
    for stage, buckets in drawn.items():
        assert buckets.keys() == wanted[stage].keys()
        for name, bucket in buckets.items():
            assert len(bucket) <= wanted[stage][name]
            assert all(name in (row.label, f"{row.source}/{row.label}") for row in bucket)
        # All buckets of a stage have the same share of their wanted size, to within one question.
        least = max(Fraction(len(bucket) - 1, wanted[stage][n]) for n, bucket in buckets.items())
        most = min(Fraction(len(bucket) + 1, wanted[stage][n]) for n, bucket in buckets.items())
        assert least <= most
    taken = {
        name: sum(len(buckets.get(name, ())) for buckets in drawn.values())
        for buckets in wanted.values()
        for name in buckets
    }
    for stage, asked in wanted.items():
        used_up = any(taken[name] == available(numbers, name) for name in asked)
        complete = all(len(drawn[stage][name]) == number for name, number in asked.items())
        assert complete or used_up, "a stage is incomplete only if one of its buckets is used up"


def test_stages_share_a_scarce_label_in_proportion_to_their_sizes() -> None:
    wanted = {"1": {"medium": 350}, "2": {"medium": 3648, "difficult": 4500}}
    sizes = [
        {
            stage: {name: len(bucket) for name, bucket in buckets.items()}
            for stage, buckets in draw_stages(rated(numbers), wanted, 0).items()
        }
        for numbers in (
            {"h/medium": 3998, "h/difficult": 4500},
            {"h/medium": 400, "h/difficult": 4500},
            {"h/medium": 400, "h/difficult": 45},
            {"h/medium": 400},
        )
    ]
    assert sizes == [
        {"1": {"medium": 350}, "2": {"medium": 3648, "difficult": 4500}},
        {"1": {"medium": 35}, "2": {"medium": 365, "difficult": 450}},
        {"1": {"medium": 350}, "2": {"medium": 36, "difficult": 45}},
        {"1": {"medium": 350}, "2": {"medium": 0, "difficult": 0}},
    ]


def test_another_seed_draws_other_questions() -> None:
    rows, wanted = rated({"h/medium": 100}), {"1": {"medium": 20}}
    first, second = (
        {row.question_id for row in draw_stages(rows, wanted, seed)["1"]["medium"]}
        for seed in (0, 1)
    )
    assert len(first) == len(second) == 20
    assert first != second
