"""Environment variables of libraries; they have an effect only before the first import."""

import os

_ENVIRONMENT = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
_NO_BARS = {"TQDM_DISABLE": "1"}


def set_library_environment(*, progress_bars: bool) -> None:
    """Turns off telemetry and bars of Hugging Face libraries; keeps variables that the user set.

    Also keeps JAX, which bm25s imports if it is installed, from taking most of a GPU's memory.

    Args:
        progress_bars: Whether other code of this process may draw bars with tqdm.
    """
    for name, value in (_ENVIRONMENT if progress_bars else _ENVIRONMENT | _NO_BARS).items():
        os.environ.setdefault(name, value)
