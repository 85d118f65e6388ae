"""A Llama with random weights and the packaged tokenizer, small enough to train in a test."""

from pathlib import Path
from typing import Any

from branchwise.weights.gguf import export_gguf, open_gguf
from branchwise.weights.policies import packaged_gguf

_SIZES = {
    "embedding_length": 64,
    "block_count": 2,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "rope.dimension_count": 16,
}


def write_tiny_folder(folder: Path) -> Path:
    """Writes merged weights of about 3 million random parameters; usable as a `start`."""
    random_llama().save_pretrained(str(folder))
    return folder


def write_tiny_gguf(path: Path) -> Path:
    """Writes such weights as GGUF; reading their vocabulary takes seconds."""
    shell = path.with_suffix(".shell.gguf")
    _write_metadata(shell)
    export_gguf(random_llama(), shell, path, "f16")
    shell.unlink()
    return path


def write_gguf_header(path: Path, name: str) -> None:
    """Writes a GGUF file of a Llama model without weights, which is enough for quick checks."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def _write_metadata(path: Path) -> None:
    """Writes the packaged model's metadata with the sizes of the small one, without weights."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    for key, field in open_gguf(packaged_gguf()).fields.items():
        if key.startswith(("GGUF.", "general.architecture", "general.file_type")):
            continue
        value = _SIZES.get(key.removeprefix("llama."), field.contents())
        subtype = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(key, value, field.types[0], subtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_llama() -> Any:
    """Returns a model of about 3 million random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=49152,
            hidden_size=_SIZES["embedding_length"],
            intermediate_size=_SIZES["feed_forward_length"],
            num_hidden_layers=_SIZES["block_count"],
            num_attention_heads=_SIZES["attention.head_count"],
            num_key_value_heads=_SIZES["attention.head_count_kv"],
            tie_word_embeddings=True,
        )
    )
    # Larger than usual, so that the random model has clear preferences that training can change.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)
    return model
