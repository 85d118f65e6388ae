"""GGUF files: rewriting them in another precision, exporting weights.

The packaged weights are Q4_1. OpenVINO gives visibly better results with the same numbers in F16 or
Q8_0. A trained policy must be exported for OpenVINO, because OpenVINO ignores PEFT adapters on a
GGUF model.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from branchwise.base import ConfigError, atomic_path, open_named

from .gguf_header import add_folder_metadata

Precision = Literal["f16", "q8_0"]

ROWS_ARE_INTERLEAVED = {"llama": True, "qwen2": False, "qwen3": False}
"""Architectures that we can export, by their name in transformers, which is also GGUF's.

True if GGUF reorders the rows of the q and k projections from transformers' rotary layout (half and
half) to its own (interleaved).
"""

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
    _write(
        _architecture(reader), partial(_copy_metadata, reader), tensors, target, precision, digest
    )


def export_gguf(
    model: Any, tokenizer_source: Path, target: Path, precision: Precision, digest: str = ""
) -> None:
    """Writes a transformers model as GGUF.

    Args:
        model: A Llama, Qwen2 or Qwen3 with plain (merged) weights.
        tokenizer_source: GGUF file to copy metadata from (architecture, tokenizer, chat template);
            its sizes must equal the model's. Or the model's own folder with `tokenizer.json`.
        target: Output file; written under a temporary name, then renamed.
        precision: Number format of all matrices; norms and biases stay float32.
        digest: Digest to store in the file under `DIGEST_KEY`.

    Raises:
        ConfigError: If GGUF cannot store the model or its tokenizer, or the model is not the one
            that `tokenizer_source` describes.
    """
    import_gguf()
    config = model.config
    if config.model_type not in ROWS_ARE_INTERLEAVED:
        raise ConfigError(
            f"a model of type {config.model_type} cannot be exported as GGUF; "
            f"{', '.join(ROWS_ARE_INTERLEAVED)} can"
        )
    if tokenizer_source.is_dir():
        metadata = partial(add_folder_metadata, config=config, folder=tokenizer_source)
    else:
        check_same_model(config, tokenizer_source)
        metadata = partial(_copy_metadata, open_gguf(tokenizer_source))
    _write(config.model_type, metadata, _model_tensors(model), target, precision, digest)


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
        raise ConfigError("reading GGUF needs `gguf`: pip install 'branchwise[cpu]'") from error

    def set_data(reader: Any, mapped: Any) -> None:
        reader.__dict__["array"] = mapped.view(np.ndarray)

    gguf.GGUFReader.data = property(lambda reader: reader.__dict__["array"], set_data)
    if not hasattr(gguf.get_tensor_name_map, "cache_info"):
        gguf.get_tensor_name_map = lru_cache(gguf.get_tensor_name_map)
    return gguf


def gguf_metadata(path: Path, *keys: str) -> tuple[Any, ...]:
    """Returns the values of metadata `keys`; None for a missing key.

    Args:
        path: GGUF file.
        keys: Names; `{arch}` in a name stands for the file's architecture.
    """
    return metadata_values(open_gguf(path), *keys)


def metadata_values(reader: Any, *keys: str) -> tuple[Any, ...]:
    """Returns what `gguf_metadata` does, from an open `gguf.GGUFReader`."""
    names = [key.replace("{arch}", _architecture(reader)) for key in keys]
    return tuple(_value(reader, name) for name in names)


def gguf_precision(path: Path) -> str:
    """Returns the quantisation of the file's matrices in GGUF's terms ("f16", "q4_1")."""
    (file_type,) = gguf_metadata(path, "general.file_type")
    from gguf import LlamaFileType

    try:
        return str(LlamaFileType(file_type).name).lower().removeprefix("mostly_")
    except ValueError:
        return "unknown"


def _model_tensors(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yields GGUF names and float32 values (rows, columns) of all weights of `model`."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    config = model.config
    names = get_tensor_name_map(MODEL_ARCH[config.model_type.upper()], config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for hf_name, value in model.state_dict().items():
        if hf_name == "lm_head.weight" and config.tie_word_embeddings:
            continue  # in GGUF, a missing output matrix means "tied"
        name = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise ConfigError(
                f"a {config.model_type} GGUF cannot store the weight {hf_name}. Merge adapters "
                "before the export"
            )
        matrix = value.detach().float().cpu().numpy()
        projection = hf_name.split(".")[-2]
        if ROWS_ARE_INTERLEAVED[config.model_type] and projection in heads:
            matrix = _interleave_rows(matrix, heads[projection])
        yield name, matrix


def _interleave_rows(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Reorders each head's rows from (first half, second half) to the (pair, pair, …) of llama.cpp.

    Transformers rotates dimension i with i + d/2, GGUF's Llama rotates 2i with 2i + 1.
    """
    halves = matrix.reshape(heads, 2, matrix.shape[0] // heads // 2, *matrix.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(matrix.shape))


def check_same_model(config: Any, source: Path) -> None:
    """Checks that a GGUF file describes a model of transformers.

    Raises:
        ConfigError: If its architecture or a size differs.
    """
    reader = open_gguf(source)
    kind = _architecture(reader)
    sizes = {
        "general.architecture": config.model_type,
        f"{kind}.block_count": config.num_hidden_layers,
        f"{kind}.embedding_length": config.hidden_size,
        f"{kind}.feed_forward_length": config.intermediate_size,
        f"{kind}.attention.head_count": config.num_attention_heads,
        f"{kind}.attention.head_count_kv": config.num_key_value_heads,
        "tokens": config.vocab_size,
    }
    tokens = len(_value(reader, "tokenizer.ggml.tokens") or ())
    for key, ours in sizes.items():
        theirs = tokens if key == "tokens" else _value(reader, key)
        if theirs != ours:
            raise ConfigError(
                f"the model cannot be exported with the metadata of {source.name}: "
                f"{key} is {theirs} there and {ours} in the model"
            )


def _architecture(reader: Any) -> str:
    return str(_value(reader, "general.architecture"))


def _value(reader: Any, key: str) -> Any:
    return reader.fields[key].contents() if key in reader.fields else None


def _copy_metadata(reader: Any, writer: Any) -> None:
    for key, field in reader.fields.items():
        if not key.startswith(_WRITER_KEYS):
            subtype = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], subtype)


def _write(
    architecture: str,
    add_metadata: Callable[[Any], None],
    tensors: Iterable[tuple[str, np.ndarray]],
    target: Path,
    precision: Precision,
    digest: str,
) -> None:
    from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, quantize

    kind = GGMLQuantizationType[precision.upper()]
    with atomic_path(target) as temporary:
        writer = GGUFWriter(temporary, architecture)
        add_metadata(writer)
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
