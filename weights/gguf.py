"""GGUF files of the Llama architecture: rewriting one in another precision, exporting weights.

The packaged weights are Q4_1, which OpenVINO runs visibly worse than the F16 or Q8_0 rewriting of
the same numbers. A trained policy reaches OpenVINO as an export, because OpenVINO ignores PEFT
adapters on a GGUF model.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from storage.atomic import atomic_path
from storage.errors import ConfigError
from storage.safe_files import open_named

Precision = Literal["f16", "q8_0"]

DIGEST_KEY = "branchwise.policy_digest"
"""Metadata of an exported policy: the digest of the weights that the file was made from."""

_WRITER_KEYS = ("GGUF.", "general.architecture", "general.file_type", DIGEST_KEY)


def rewrite_gguf(source: Path, target: Path, precision: Precision, digest: str = "") -> None:
    """Writes `source`'s weights to `target` in another precision; metadata are kept.

    Raises:
        ConfigError: `source` is not a GGUF file.
    """
    from gguf import dequantize

    reader = open_gguf(source)
    tensors = ((t.name, dequantize(t.data, t.tensor_type)) for t in reader.tensors)
    _write(reader, tensors, target, precision, digest)


def export_gguf(
    model: Any,
    tokenizer_source: Path,
    target: Path,
    precision: Precision,
    permute: bool = True,
    digest: str = "",
) -> None:
    """Writes a transformers Llama model as GGUF.

    Args:
        model: a `LlamaForCausalLM` with plain (merged) weights.
        tokenizer_source: the GGUF file whose metadata (architecture, tokenizer, chat template)
            are copied; its sizes must be the model's.
        target: written under a temporary name and renamed when it is whole.
        precision: Number format of all matrices; norms stay float32.
        permute: reorder the rows of the q and k projections from transformers' rotary layout
            (half and half) to GGUF's (interleaved). Off only to show that parity then breaks.
        digest: stored in the file under `DIGEST_KEY`.

    Raises:
        ConfigError: If the model is not the Llama model that `tokenizer_source` describes.
    """
    reader = open_gguf(tokenizer_source)
    _check_same_model(model, reader, tokenizer_source)
    _write(reader, _llama_tensors(model, permute), target, precision, digest)


def open_gguf(path: Path) -> Any:
    """Returns a `gguf.GGUFReader` on `path`.

    Raises:
        ConfigError: If the package `gguf` or the file is missing, or the file is damaged.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ConfigError("reading GGUF needs `gguf`: pip install -e .[cpu]") from error
    try:
        with open_named(path):  # a regular file
            return GGUFReader(str(path))
    except (MemoryError, ConfigError):
        raise
    except Exception as error:  # its parser raises whatever the bytes make it do
        raise ConfigError(f"{path} is not a readable GGUF file: {error}; copy it again") from error


def gguf_metadata(path: Path, *keys: str) -> tuple[Any, ...]:
    """Returns values of metadata `keys` (None if the file lacks one)."""
    fields = open_gguf(path).fields
    return tuple(fields[key].contents() if key in fields else None for key in keys)


def gguf_precision(path: Path) -> str:
    """Quantisation of the file's matrices as GGUF calls it, in lower case ("f16", "q4_1")."""
    (file_type,) = gguf_metadata(path, "general.file_type")
    from gguf import LlamaFileType

    try:
        return str(LlamaFileType(file_type).name).lower().removeprefix("mostly_")
    except ValueError:
        return "unknown"


def _llama_tensors(model: Any, permute: bool) -> Iterator[tuple[str, np.ndarray]]:
    """GGUF names and float32 values (rows, columns) of all weights of `model`."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    config = model.config
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for hf_name, value in model.state_dict().items():
        if hf_name == "lm_head.weight" and config.tie_word_embeddings:
            continue  # GGUF says "tied" by leaving the output matrix out
        name = names.get_name(hf_name, try_suffixes=(".weight",))
        if name is None:
            raise ConfigError(
                f"weight {hf_name} has no place in a Llama GGUF; merge adapters before the export"
            )
        matrix = value.detach().float().cpu().numpy()
        projection = hf_name.split(".")[-2]
        if permute and projection in heads:
            matrix = _interleave_rows(matrix, heads[projection])
        yield name, matrix


def _interleave_rows(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Returns the rows of each head from (first half, second half) to (pair, pair, …), as llama.cpp
    wants.

    Transformers rotates dimension i with i + d/2, GGUF's Llama rotates 2i with 2i + 1.
    """
    halves = matrix.reshape(heads, 2, matrix.shape[0] // heads // 2, *matrix.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(matrix.shape))


def _check_same_model(model: Any, reader: Any, source: Path) -> None:
    config = model.config
    sizes = {
        "llama.block_count": config.num_hidden_layers,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.vocab_size": config.vocab_size,
    }
    for key, ours in sizes.items():
        theirs = reader.fields[key].contents() if key in reader.fields else None
        if theirs != ours:
            raise ConfigError(
                f"the model cannot be exported with the metadata of {source.name}: "
                f"{key} is {theirs} there and {ours} in the model"
            )


def _write(
    reader: Any,
    tensors: Iterable[tuple[str, np.ndarray]],
    target: Path,
    precision: Precision,
    digest: str,
) -> None:
    from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, quantize

    kind = GGMLQuantizationType[precision.upper()]
    with atomic_path(target) as temporary:
        writer = GGUFWriter(temporary, reader.fields["general.architecture"].contents())
        for key, field in reader.fields.items():
            if not key.startswith(_WRITER_KEYS):
                subtype = field.types[1] if len(field.types) > 1 else None
                writer.add_key_value(key, field.contents(), field.types[0], subtype)
        writer.add_file_type(LlamaFileType[f"MOSTLY_{precision.upper()}"])
        if digest:
            writer.add_string(DIGEST_KEY, digest)
        for name, values in tensors:
            if values.ndim > 1:
                writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
            else:
                writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
