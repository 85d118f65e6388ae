"""GGUF metadata of a folder in the format of transformers: sizes, tokenizer and chat template."""

import re
from pathlib import Path
from typing import Any, Final

from branchwise.base import LOG_BYTES, ConfigError, as_object, parse_json, read_named

NORMALIZER_KEY = "branchwise.normalizer"
"""Metadata key of our own: the Unicode normal form of the tokenizer. GGUF has no key for it."""
NFC: Final = "NFC"

SPLITS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": "llama-bpe",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": "qwen2",
}
PRE_TOKENIZERS = ("smollm", *SPLITS.values())
"""Ways to split a text before merges that OpenVINO GenAI knows, by GGUF's `tokenizer.ggml.pre`.

For any other name, it uses a default without a warning.
"""
_DIGITS = re.compile(r"[Ġ\d]\d")


def add_folder_metadata(writer: Any, config: Any, folder: Path) -> None:
    """Writes the metadata of a model of transformers into a `gguf.GGUFWriter`.

    Args:
        writer: Writer, made for the model's architecture.
        config: Configuration of the model, with default rotary embeddings.
        folder: Folder with its `tokenizer.json`.

    Raises:
        ConfigError: If GGUF cannot represent the tokenizer.
    """
    from gguf import SpecialVocab

    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_width = getattr(config, "head_dim", None)
    width = int(head_width or config.hidden_size // config.num_attention_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_vocab_size(config.vocab_size)
    tokenizer = read_tokenizer(folder)
    tokens, types = _vocabulary(tokenizer, config.vocab_size, folder)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer(tokenizer))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if tokenizer["normalizer"]:
        writer.add_string(NORMALIZER_KEY, NFC)
    special = SpecialVocab(folder, load_merges=True, n_vocab=config.vocab_size)
    special.add_to_gguf(writer, quiet=True)


def read_tokenizer(folder: Path) -> dict[str, Any]:
    """Returns the content of a `tokenizer.json` that GGUF and OpenVINO GenAI can represent.

    Raises:
        ConfigError: If it cannot be read, or they cannot represent it.
    """
    path = folder / "tokenizer.json"
    try:
        tokenizer = as_object(parse_json(read_named(path, LOG_BYTES)))
        normal = (tokenizer["normalizer"] or {"type": NFC})["type"]
        if pre_tokenizer(tokenizer) is not None and normal == NFC:
            return tokenizer
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error!r}). Restore it") from error
    raise ConfigError(
        f"{path}: OpenVINO GenAI cannot split text like this tokenizer. It can split it like "
        "SmolLM2, Llama 3, Qwen2 and Qwen3"
    )


def pre_tokenizer(tokenizer: dict[str, Any]) -> str | None:
    """Returns the name in `PRE_TOKENIZERS` for the content of a `tokenizer.json`, or None."""
    if tokenizer["model"]["type"] != "BPE":
        return None
    first = tokenizer["pre_tokenizer"] or {}
    parts = first.get("pretokenizers", [first])
    kinds = [part.get("type") for part in parts]
    if kinds == ["Split", "ByteLevel"]:
        return SPLITS.get(parts[0]["pattern"].get("Regex"))
    if kinds == ["Digits", "ByteLevel"] and parts[0]["individual_digits"]:
        return "smollm"
    # If no merge crosses a digit, a split into digits does not change the tokens.
    if kinds == ["ByteLevel"] and not any(map(_DIGITS.search, tokenizer["model"]["vocab"])):
        return "smollm"
    return None


def _vocabulary(tokenizer: dict[str, Any], size: int, folder: Path) -> tuple[list[str], list[int]]:
    """Returns the tokens by id and their types; ids that no token has are filled up."""
    from gguf import TokenType

    tokens = [f"[PAD{i}]" for i in range(size)]
    types = [int(TokenType.UNUSED)] * size
    vocabulary = [(token, i, TokenType.NORMAL) for token, i in tokenizer["model"]["vocab"].items()]
    added = [
        (t["content"], t["id"], TokenType.CONTROL if t["special"] else TokenType.USER_DEFINED)
        for t in tokenizer["added_tokens"]
    ]
    for token, i, kind in vocabulary + added:
        if i >= size:
            raise ConfigError(
                f"{folder}: token {token!r} has the id {i}, but the model has {size} tokens"
            )
        tokens[i], types[i] = token, int(kind)
    return tokens, types
