"""Reciprocal-rank fusion, worked by hand."""

import pytest

from branchwise.retrieval.interface import FusionRetriever, fuse
from branchwise.types import RetrievedPassage


def ranking(ids: str) -> list[RetrievedPassage]:
    return [RetrievedPassage(id=i, title=i, text=i, score=1 / (n + 1)) for n, i in enumerate(ids)]


class Fixed:
    def __init__(self, ids: str) -> None:
        self.digest = ids

    async def search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        return ranking(self.digest)[:top_k]


def test_fused_scores_match_a_calculation_by_hand() -> None:
    # k = 60. b: 1/62 + 1/61; a: 1/61 + 1/63; d: 1/62; c: 1/63.
    fused = fuse([ranking("abc"), ranking("bda")], 60)
    assert [passage.id for passage in fused] == ["b", "a", "d", "c"]
    expected = [1 / 62 + 1 / 61, 1 / 61 + 1 / 63, 1 / 62, 1 / 63]
    assert [passage.score for passage in fused] == pytest.approx(expected, rel=1e-12)


def test_k_weighs_one_first_rank_against_two_later_ranks() -> None:
    # a is first once; b is third twice: 1/(k+1) against 2/(k+3), equal at k = 1.
    rankings = [ranking("acb"), ranking("deb")]
    assert fuse(rankings, 60)[0].id == "b"
    assert fuse(rankings, 1)[0].id == "a"  # a tie, and a comes first by id
    assert fuse(rankings, 1)[0].score == fuse(rankings, 1)[1].score


async def test_fusion_cuts_at_top_k_and_digests_its_parts() -> None:
    fusion = FusionRetriever([Fixed("abc"), Fixed("bda")])
    (best,) = await fusion.search("q", 1)
    assert best.id == "b"
    assert best.score == pytest.approx(1 / 62 + 1 / 61, rel=1e-12)  # k is 60, as in the paper
    assert fusion.digest != FusionRetriever([Fixed("abc"), Fixed("bdc")]).digest
