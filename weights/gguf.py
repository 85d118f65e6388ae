"""GGUF files of the Llama architecture: rewriting them in another precision, exporting weights.

The packaged weights are Q4_1. OpenVINO gives visibly better results with the same numbers in F16 or
Q8_0. A trained policy must be exported for OpenVINO, because OpenVINO ignores PEFT adapters on a
GGUF model.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from base.atomic import atomic_path
from base.errors import ConfigError
from base.safe_files import open_named

Precision = Literal["f16", "q8_0"]

DIGEST_KEY = "branchwise.policy_digest"
"""Metadata key of an exported policy: the digest of the original weights."""

_WRITER_KEYS = ("GGUF.", "general.architecture", "general.file_type", DIGEST_KEY)


def rewrite_gguf(source: Path, target: Path, precision: Precision, digest: str = "") -> None:
    """Writes the weights in `source` to `target` in another precision; keeps the metadata.

    Raises:
        ConfigError: If `source` is not a GGUF file.
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
        model: A `LlamaForCausalLM` with plain (merged) weights.
        tokenizer_source: GGUF file to copy metadata from (architecture, tokenizer, chat template);
            its sizes must equal the model's.
        target: Output file; written under a temporary name, then renamed.
        precision: Number format of all matrices; norms stay float32.
        permute: Whether to reorder the rows of the q and k projections from transformers' rotary
            layout (half and half) to GGUF's (interleaved). False only to show that parity breaks.
        digest: Digest to store in the file under `DIGEST_KEY`.

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
    gguf = import_gguf()
    try:
        with open_named(path):  # a regular file
            return gguf.GGUFReader(str(path))
    except (MemoryError, ConfigError):
        raise
    except Exception as error:  # damaged bytes make its parser raise any error
        raise ConfigError(
            f"{path}: cannot be read as GGUF ({error}). Restore it from its source"
        ) from error


def import_gguf() -> Any:
    """Returns the package `gguf`, after removing two causes of slow loading.

    - Its reader slices an `np.memmap` some 400,000 times for a vocabulary, and every slice is
      another `np.memmap`. A plain array over the same memory takes a third of the time.
    - transformers builds the same map of tensor names for each of a model's 400 modules.

    Together they took two thirds of the time of loading the packaged model in transformers.

    Raises:
        ConfigError: If the package is missing.
    """
    try:
        import gguf
    except ImportError as error:
        raise ConfigError("reading GGUF needs `gguf`: pip install -e .[cpu]") from error

    def set_data(reader: Any, mapped: Any) -> None:
        reader.__dict__["array"] = mapped.view(np.ndarray)

    gguf.GGUFReader.data = property(lambda reader: reader.__dict__["array"], set_data)
    if not hasattr(gguf.get_tensor_name_map, "cache_info"):
        gguf.get_tensor_name_map = lru_cache(gguf.get_tensor_name_map)
    return gguf


def gguf_metadata(path: Path, *keys: str) -> tuple[Any, ...]:
    """Returns the values of metadata `keys`; None for a missing key."""
    fields = open_gguf(path).fields
    return tuple(fields[key].contents() if key in fields else None for key in keys)


def gguf_precision(path: Path) -> str:
    """Returns the quantisation of the file's matrices in GGUF's terms ("f16", "q4_1")."""
    (file_type,) = gguf_metadata(path, "general.file_type")
    from gguf import LlamaFileType

    try:
        return str(LlamaFileType(file_type).name).lower().removeprefix("mostly_")
    except ValueError:
        return "unknown"


def _llama_tensors(model: Any, permute: bool) -> Iterator[tuple[str, np.ndarray]]:
    """Yields GGUF names and float32 values (rows, columns) of all weights of `model`."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    config = model.config
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for hf_name, value in model.state_dict().items():
        if hf_name == "lm_head.weight" and config.tie_word_embeddings:
            continue  # in GGUF, a missing output matrix means "tied"
        name = names.get_name(hf_name, try_suffixes=(".weight",))
        if name is None:
            raise ConfigError(
                f"a Llama GGUF cannot store the weight {hf_name}. Merge adapters before the export"
            )
        matrix = value.detach().float().cpu().numpy()
        projection = hf_name.split(".")[-2]
        if permute and projection in heads:
            matrix = _interleave_rows(matrix, heads[projection])
        yield name, matrix


def _interleave_rows(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Reorders each head's rows from (first half, second half) to the (pair, pair, …) of llama.cpp.

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
