"""Dense retrieval: exact order with ties, presets in the key, and the packaged encoder."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from dense_extra import needs_dense
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.base.errors import ConfigError
from branchwise.retrieval import encoder as encoder_module
from branchwise.retrieval.encoder import Encoder, Encoding, encoding_of, require_dense_extra
from branchwise.retrieval.index import open_retriever
from branchwise.retrieval.settings import DenseSettings, VectorSettings
from branchwise.types import Passage

CORPUS = [
    Passage(id="cat", title="Cats", text="A small feline that purrs."),
    Passage(id="bank", title="Banking", text="Loans, interest and central banks."),
    Passage(id="star", title="Stars", text="Hydrogen fusion makes suns shine."),
]


@needs_dense
@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.sampled_from([-1, 0, 1, 2]), min_size=1, max_size=40), top_k=st.integers(1, 9)
)
def test_nearest_orders_ties_by_row(rows: list[int], top_k: int) -> None:
    from branchwise.retrieval.dense import nearest

    vectors = np.array([[row, 1] for row in rows], dtype=np.float32)
    found, scores = nearest(vectors, np.array([1, 0], dtype=np.float32), top_k)
    positive = [i for i, row in enumerate(rows) if row > 0]
    expected = sorted(positive, key=lambda i: (-rows[i], i))[:top_k]
    assert found.tolist() == expected
    assert scores.tolist() == [rows[i] for i in expected]


@needs_dense
def test_every_setting_of_the_encoding_is_part_of_its_identity() -> None:
    variants = [
        DenseSettings(),
        DenseSettings(pooling="cls"),
        DenseSettings(query_prefix="q: "),
        DenseSettings(passage_prefix="p: "),
        DenseSettings(normalise=False),
        DenseSettings(preset="bge"),
        DenseSettings(preset="e5"),
        DenseSettings(model="some/encoder"),
    ]
    assert len({Encoder(variant).identity for variant in variants}) == len(variants)


def test_an_override_wins_over_the_preset_even_when_empty() -> None:
    assert encoding_of(DenseSettings(preset="e5")).query_prefix == "query: "
    assert encoding_of(DenseSettings(preset="e5", query_prefix="")).query_prefix == ""
    assert encoding_of(DenseSettings(preset="bge")).pooling == "cls"
    assert not encoding_of(DenseSettings(preset="bge", normalise=False)).normalise


BGE_QUERY = "Represent this sentence for searching relevant passages: cats"


@pytest.mark.parametrize(
    ("preset", "query", "passage", "pooling"),
    [
        ("minilm", "cats", "A cat purrs.", "mean"),
        ("bge", BGE_QUERY, "A cat purrs.", "cls"),
        ("e5", "query: cats", "passage: A cat purrs.", "mean"),
    ],
)
def test_presets_follow_the_model_cards(
    preset: Literal["minilm", "bge", "e5"],
    query: str,
    passage: str,
    pooling: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[Encoding] = []
    encoded: list[str] = []

    class Model:
        def encode(self, texts: list[str], **_: object) -> np.ndarray:
            encoded.extend(texts)
            return np.zeros((len(texts), 2))

    def load(_: str, encoding: Encoding) -> Model:
        loaded.append(encoding)
        return Model()

    monkeypatch.setattr(encoder_module, "require_dense_extra", lambda: None)
    monkeypatch.setattr(encoder_module, "_load", load)
    encoder = Encoder(DenseSettings(preset=preset, model="some/encoder"))
    encoder.encode_queries(["cats"])
    encoder.encode_passages(["A cat purrs."])
    assert encoded == [query, passage]
    assert [(encoding.pooling, encoding.normalise) for encoding in loaded] == [(pooling, True)]


def test_a_missing_dense_extra_is_reported_with_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoder_module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="make setup EXTRAS=dense"):
        require_dense_extra()
    with pytest.raises(ConfigError, match=r"pip install 'branchwise\[dense\]'"):
        open_retriever(VectorSettings(kind="dense"), CORPUS)


@needs_dense
@pytest.mark.model
async def test_the_packaged_encoder_finds_passages_that_share_no_word(tmp_path: Path) -> None:
    for kind in ("dense", "fusion"):
        opened = open_retriever(VectorSettings.model_validate({"kind": kind}), CORPUS, tmp_path)
        for query, expected in (
            ("kitten", "cat"),
            ("mortgage lender", "bank"),
            ("the sun", "star"),
        ):
            assert (await opened.search(query, 1))[0].id == expected


@needs_dense
@pytest.mark.model
def test_the_packaged_encoder_matches_sentence_transformers() -> None:
    """Our pooling and normalisation give the vectors of the model's own configuration."""
    from sentence_transformers import SentenceTransformer

    texts = ["A small feline that purrs.", "Hydrogen fusion."]
    theirs = SentenceTransformer(str(encoder_module.packaged_model())).encode(texts)
    ours = Encoder(DenseSettings()).encode_passages(texts)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
