"""Checks that the embedded engine can run a base model, before anything is loaded or written.

OpenVINO GenAI builds its own graph from a GGUF file, for three architectures. It ignores metadata
that it does not know, such as a scaled rotary embedding, and then computes other numbers without an
error. So everything that it would ignore is refused here.
"""

from pathlib import Path

from base.errors import ConfigError
from weights.gguf import ROWS_ARE_INTERLEAVED, check_same_model, metadata_values, open_gguf
from weights.gguf_metadata import PRE_TOKENIZERS, read_tokenizer
from weights.model_folders import read_config
from weights.policy_files import PolicyFiles, has_tokenizer, is_packaged, packaged_gguf
from weights.pretrained import pretrained

_FACTORS = "rope_freqs.weight"
"""Tensor of the rotary factors of Llama 3.1 and later."""
_USE = (
    "The embedded engine runs Llama, Qwen2 and Qwen3 models with the tokenizer of SmolLM2, "
    "Llama 3, Qwen2 or Qwen3. Choose one of them, or serve this one: `engine: vllm` or `openai`"
)


def check_embedded(files: PolicyFiles) -> None:
    """Checks that the embedded engine can run a model. Reads only metadata, in seconds.

    Raises:
        ConfigError: If it cannot run it, or a file is missing or damaged.
    """
    base = files.base
    if is_packaged(base):
        return
    reason = _gguf_reason(base) if base.is_file() else _folder_reason(base)
    if reason is not None:
        raise ConfigError(f"{files.model}: {reason}. {_USE}")


def _gguf_reason(path: Path) -> str | None:
    reader = open_gguf(path)
    kind, scaled, tokenizer, pre = metadata_values(
        reader,
        "general.architecture",
        "{arch}.rope.scaling.type",
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
    )
    if kind not in ROWS_ARE_INTERLEAVED:
        return f"its architecture is {kind}"
    if scaled not in (None, "none") or _FACTORS in {t.name for t in reader.tensors}:
        return "it has a scaled rotary embedding, which OpenVINO GenAI ignores"
    if tokenizer != "gpt2" or pre not in PRE_TOKENIZERS:
        return f"its tokenizer is {tokenizer} ({pre}), which OpenVINO GenAI does not know"
    return None


def _folder_reason(folder: Path) -> str | None:
    kind = read_config(folder).get("model_type")
    if kind not in ROWS_ARE_INTERLEAVED:
        return f"its architecture is {kind}"
    config = pretrained("AutoConfig", folder)
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, which OpenVINO GenAI takes for silu"
    if config.rope_parameters["rope_type"] != "default":
        return "it has a scaled rotary embedding, which OpenVINO GenAI ignores"
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        return "it has sliding-window attention, which OpenVINO GenAI ignores"
    if has_tokenizer(folder):
        read_tokenizer(folder)
    else:
        check_same_model(config, packaged_gguf())
    return None
