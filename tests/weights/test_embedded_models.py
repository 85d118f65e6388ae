"""Refusal of models that OpenVINO GenAI would run wrongly, and the export of tokenizers."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_models import VOCABULARY, tiny_tokenizer, write_tiny_model

from branchwise.base.errors import ConfigError
from branchwise.weights.gguf import export_gguf, gguf_metadata
from branchwise.weights.policies import policy_files
from branchwise.weights.policy_gguf import check_embedded

SOUND = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2"}


@pytest.mark.parametrize(
    ("kind", "metadata", "reason"),
    [
        ("qwen3", {}, None),
        ("gemma3", {}, "its architecture is gemma3"),
        ("qwen2moe", {}, "its architecture is qwen2moe"),
        ("llama", {"llama.rope.scaling.type": "linear"}, "scaled rotary"),
        ("llama", {"tokenizer.ggml.model": "llama"}, r"its tokenizer is llama \(qwen2\)"),
        ("qwen2", {"tokenizer.ggml.pre": "deepseek-r1-qwen"}, "deepseek-r1-qwen"),
    ],
)
def test_only_supported_gguf_models_are_accepted(
    kind: str, metadata: dict[str, str], reason: str | None, tmp_path: Path
) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "model.gguf", kind)
    for key, value in (SOUND | metadata).items():
        writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    files = policy_files(str(tmp_path / "model.gguf"))
    if reason is None:
        check_embedded(files)
        return
    with pytest.raises(ConfigError, match=reason + ".*The embedded engine runs Llama, Qwen2"):
        check_embedded(files)


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"}},
        {"pre_tokenizer": {"type": "ByteLevel"}},  # digits stay together, and are merged
        {"normalizer": {"type": "Lowercase"}},
        {"model": {"type": "WordPiece", "vocab": {}}},
        {"model": None},
    ],
)
def test_a_tokenizer_that_openvino_cannot_reproduce_is_refused(
    changes: Any, tmp_path: Path
) -> None:
    write_tiny_model(tmp_path, "qwen2")
    path = tmp_path / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    if "pre_tokenizer" in changes:
        tokenizer["model"]["vocab"]["12"] = 299
    path.write_text(json.dumps(tokenizer | changes))
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        check_embedded(policy_files(str(tmp_path)))


def test_the_export_writes_the_whole_tokenizer_of_a_folder(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "m", "qwen2")
    export_gguf(model, tmp_path / "m", tmp_path / "m.gguf", "f16")
    keys = ("tokens", "token_type", "merges", "pre", "eos_token_id", "padding_token_id")
    tokens, types, merges, *others = gguf_metadata(
        tmp_path / "m.gguf", *(f"tokenizer.ggml.{key}" for key in keys)
    )
    known = tiny_tokenizer("qwen2")
    ids = range(len(known))
    assert tokens == [*known.convert_ids_to_tokens(ids), *(f"[PAD{i}]" for i in range(300, 320))]
    assert types == [3] * 3 + [1] * 297 + [5] * (VOCABULARY - 300)
    assert len(merges) == 300 - 256 - 3
    assert others == ["qwen2", 2, 0]
    small = write_tiny_model(tmp_path / "m", "qwen2", vocab_size=299)
    with pytest.raises(ConfigError, match="has the id 299, but the model has 299 tokens"):
        export_gguf(small, tmp_path / "m", tmp_path / "n.gguf", "f16")
