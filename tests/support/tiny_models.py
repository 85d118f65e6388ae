"""Random models of the supported architectures with a small tokenizer of their own."""

from pathlib import Path
from typing import Any

from branchwise.weights.gguf_header import SPLITS

KINDS = ("llama", "qwen2", "qwen3")
VOCABULARY = 320
"""Larger than the tokenizer's vocabulary, as in Qwen's models."""
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
_TEXT = (
    "The train to the capital leaves at noon, and the river runs through the country.",
    "Which currency is used in the country whose capital is on the river? I'm not sure.",
)


def write_tiny_model(folder: Path, kind: str, **changes: Any) -> Any:
    """Writes merged weights, configuration and tokenizer; returns the model."""
    model = random_model(kind, **changes)
    model.save_pretrained(str(folder))
    tiny_tokenizer(kind).save_pretrained(str(folder))
    return model


def random_model(kind: str, **changes: Any) -> Any:
    """Returns a model whose log-probabilities depend on every weight, biases included."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rope_theta": 1000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": kind != "llama",
    }
    if kind == "qwen3":
        sizes["head_dim"] = 32  # Qwen3's is not hidden_size / num_attention_heads
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**sizes, **changes}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.mul_(6.0)
            elif name.endswith("bias"):
                parameter.normal_(std=1.0)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def tiny_tokenizer(kind: str) -> Any:
    """Returns a byte-level BPE tokenizer with a few merges, split as in Qwen2 or Llama 3."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    name = "llama-bpe" if kind == "llama" else "qwen2"
    pattern = next(pattern for pattern, pre in SPLITS.items() if pre == name)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC() if name == "qwen2" else None
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE,
    )
