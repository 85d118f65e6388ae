"""Loads models and tokenizers, and lists tensors, from untrusted files.

No code from a model folder ever runs, neither its Python code nor pickles.
"""

from pathlib import Path
from typing import Any

from branchwise.base import ConfigError, open_named

from .gguf import import_gguf
from .model_folders import reject_code


def pretrained(kind: str, source: Path, **options: Any) -> Any:
    """Returns `transformers.<kind>.from_pretrained` for a folder or a GGUF file.

    Args:
        kind: Class name: "AutoTokenizer", "AutoModelForCausalLM", …
        source: Model folder, or a GGUF file.
        options: Further options of `from_pretrained`.

    Raises:
        ConfigError: If transformers is missing, or the files cannot be loaded.
    """
    try:
        import transformers
    except ImportError as error:
        raise ConfigError(
            "loading weights needs transformers: pip install 'branchwise[cpu]'"
        ) from error
    options |= {"trust_remote_code": False, "local_files_only": True}
    folder = source
    if not source.is_dir():
        folder, options["gguf_file"] = source.parent, str(source.absolute())
        import_gguf()  # which transformers uses, too
    elif kind != "AutoTokenizer":
        options["use_safetensors"] = True
    reject_code(folder, all_files=source.is_dir())
    try:
        if not source.is_dir():
            open_named(source).close()  # a regular file
        return getattr(transformers, kind).from_pretrained(str(folder), **options)
    except (MemoryError, ConfigError):
        raise
    except Exception as error:  # untrusted bytes make parsers raise any error
        first_line = str(error).strip().partition("\n")[0][:300]
        raise ConfigError(
            f"{source}: cannot be loaded ({type(error).__name__}: {first_line}). Restore it from "
            "its source"
        ) from error


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Returns the names and shapes of the tensors of a safetensors file.

    Raises:
        ConfigError: If the package safetensors is missing, or the file is missing, truncated, not a
            regular file or not safetensors.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ConfigError(
            "reading weights needs safetensors: pip install 'branchwise[cpu]'"
        ) from error
    try:
        with open_named(path), safe_open(str(path), "numpy") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"{path}: cannot be read as safetensors ({error}). Restore it from its source"
        ) from error
