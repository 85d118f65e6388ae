"""Lists the tensors in a safetensors file; the library's own reader checks the header."""

from pathlib import Path

from base.errors import ConfigError
from base.safe_files import open_named

Shape = tuple[int, ...]


def tensor_shapes(path: Path) -> dict[str, Shape]:
    """Returns the names and shapes of the tensors.

    Raises:
        ConfigError: If the package safetensors is missing, or the file is missing, truncated, not a
            regular file or not safetensors.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ConfigError("reading weights needs safetensors: pip install -e .[cpu]") from error
    try:
        with open_named(path), safe_open(str(path), "numpy") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"{path}: cannot be read as safetensors ({error}). Restore it from its source"
        ) from error
