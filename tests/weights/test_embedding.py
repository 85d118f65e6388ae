"""Embeddings of steps: equal to the model's own states, computed once, and cached."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_llama import write_tiny_folder
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel, MistralConfig, MistralModel

from branchwise.base.errors import ConfigError
from branchwise.modeling.embedding import Backbone, FrozenEncoder, Prefix, Tokens, Vector, base_of
from branchwise.training.examples import StepExample, tokenise
from branchwise.types import Message
from branchwise.weights.policies import PACKAGED, packaged_gguf, tokenizer_of

# Siblings of two states of one instruction, one a prefix of another; and one long sequence.
SEQUENCES: list[Tokens] = [
    (1, 2, 3, 4, 5, 6, 7),
    (1, 2, 3, 4, 5, 6),
    (1, 2, 3, 4, 8),
    (1, 2, 9, 5, 6, 7, 8, 9),
    (1, 2, 9, 4),
    tuple(range(10, 60)),
]
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def llama() -> Any:
    return LlamaModel(LlamaConfig(**SIZES, num_key_value_heads=2))


def bert() -> Any:
    return BertModel(BertConfig(**SIZES))


def mistral() -> Any:
    return MistralModel(MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=4))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(("model", "trees"), [(llama, True), (bert, False), (mistral, False)])
@pytest.mark.parametrize("batch_tokens", [1, 20, 1000])
def test_batched_last_states_equal_those_of_single_sequences(
    model: Any, trees: bool, batch_tokens: int
) -> None:
    torch.manual_seed(0)
    plain = model()
    backbone = Backbone(plain)
    assert backbone.reads_trees is trees, "only full causal attention can read trees"
    found: dict[Tokens, Vector] = {}
    for read in backbone.last_states(SEQUENCES, batch_tokens):
        found |= read
    for sequence in SEQUENCES:
        with torch.no_grad():
            alone = plain(input_ids=torch.tensor([sequence])).last_hidden_state[0, -1]
        np.testing.assert_allclose(found[sequence], alone.numpy(), atol=1e-5)
        assert found[sequence].dtype == np.float32


def test_shared_prefixes_of_siblings_are_encoded_once() -> None:
    plain, read = llama(), list[int]()
    backbone = Backbone(plain)
    plain.layers[0].register_forward_pre_hook(lambda module, args: read.append(args[0].shape[1]))
    list(backbone.last_states(SEQUENCES, 1000))
    # 1 2 | 3 4 | 5 6 7 | 8 and 9 | 5 6 7 8 9 | 4 and the long one
    assert read == [2 + 2 + 3 + 1 + 1 + 5 + 1 + 50]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Tokens]:
    """The sequences that backbones have read."""
    sequences_read, last_states = list[Tokens](), Backbone.last_states

    def counting(
        backbone: Backbone, sequences: Sequence[Tokens], batch_tokens: int
    ) -> Iterator[Mapping[Tokens, Vector]]:
        for batch in last_states(backbone, sequences, batch_tokens):
            sequences_read.extend(batch)
            yield batch

    monkeypatch.setattr(Backbone, "last_states", counting)
    return sequences_read


def test_each_distinct_step_is_encoded_once_and_then_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[Tokens]
) -> None:
    folder, sequences = str(write_tiny_folder(tmp_path / "tiny")), [*SEQUENCES, SEQUENCES[2]]
    first = FrozenEncoder(folder).embed_cached(sequences)
    assert first.shape == (7, 64)
    assert np.array_equal(first[6], first[2])
    assert sorted(read) == sorted(SEQUENCES)
    with monkeypatch.context() as patch:
        patch.setattr(Backbone, "load", lambda files: pytest.fail("loads a model for cached steps"))
        again = FrozenEncoder(folder).embed_cached(sequences[::-1])
    assert np.array_equal(again[::-1], first)
    np.testing.assert_allclose(
        FrozenEncoder(folder).embed_cached(sequences[:2]), first[:2], atol=1e-5
    )
    other = write_tiny_folder(tmp_path / "other")
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    FrozenEncoder(str(other)).embed_cached(SEQUENCES)
    assert len(read) == 2 * len(SEQUENCES) + 2, "other weights have no cached vectors"


def test_damaged_vectors_are_recomputed_and_logged(
    tmp_path: Path, cache: Path, read: list[Tokens]
) -> None:
    folder, logged = str(write_tiny_folder(tmp_path / "tiny")), list[str]()
    first = FrozenEncoder(folder).embed_cached(SEQUENCES)
    [path] = (cache / "embeddings").glob("*/vectors.npy")
    path.write_bytes(path.read_bytes()[:-256] + bytes(256))
    again = FrozenEncoder(folder, log=logged.append).embed_cached(SEQUENCES)
    assert len(read) == 2 * len(SEQUENCES)
    assert np.array_equal(again, first)
    assert "damaged" in logged[0]


def test_the_tokens_of_a_step_equal_those_of_policy_training() -> None:
    tokenizer = tokenizer_of(packaged_gguf())
    messages = (Message("system", "Answer."), Message("user", "Question: Where is Ōsaka?"))
    texts = ("<search>Ōsaka</search>", "<refuse/>")
    examples = tokenise([StepExample(messages, t, "q", "reasoning") for t in texts], tokenizer)
    tokens = FrozenEncoder(PACKAGED).tokens([Prefix(messages, text) for text in texts])
    assert tokens == [one.whole for one in examples]


def test_an_encoder_without_a_chat_template_gets_the_plain_texts(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = {word: n for n, word in enumerate(["[UNK]", "[CLS]", "[SEP]", "Where", "search", "a"])}
    tokenizer = Tokenizer(models.WordLevel(words, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    bert().save_pretrained(str(tmp_path / "bert"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(str(tmp_path / "bert"))
    encoder = FrozenEncoder(str(tmp_path / "bert"))
    [tokens] = encoder.tokens([Prefix((Message("user", "Where a"),), "search a")])
    assert tokens == (1, 3, 5, 4, 5, 2)
    assert encoder.embed([tokens]).shape == (1, 64)
    with pytest.raises(ConfigError, match=r"at most 512 tokens.*max_length to 512"):
        encoder.embed([(1,) * 513])


def test_base_of_returns_the_model_below_the_adapters(tmp_path: Path) -> None:
    assert base_of("models/smollm2-135m-atlas") == PACKAGED
    folder = write_tiny_folder(tmp_path / "tiny")
    assert base_of(str(folder)) == str(folder)
