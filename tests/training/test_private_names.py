"""Private names of TRL and transformers that the trainers use and a release may change."""

import inspect
import re
from importlib.metadata import version
from typing import Any

import pytest

pytestmark = pytest.mark.model  # importing TRL takes seconds


def problem_of(owner: Any, name: str, parameters: str) -> str | None:
    """Returns how a function differs from the one that we override or call."""
    found = getattr(owner, name, None)
    if not callable(found):
        return f"{owner.__name__}.{name} is gone"
    has = " ".join(inspect.signature(found).parameters)
    if has != parameters:
        return f"{owner.__name__}.{name} takes ({has}), not ({parameters})"
    return None


def test_private_names_of_trl_and_transformers_still_exist() -> None:
    from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
    from transformers.integrations import sdpa_attention
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.utils import chat_template_utils
    from trl import DPOTrainer

    loss = "self model inputs return_outputs num_items_in_batch"
    functions = [
        # training/preference/trainer.py
        (DPOTrainer, "_prepare_dataset", "self dataset processing_class args dataset_name"),
        (DPOTrainer, "_get_train_sampler", "self train_dataset"),
        (DPOTrainer, "compute_loss", loss),
        # training/sft_trainer.py
        (Trainer, "_get_train_sampler", "self train_dataset"),
        (Trainer, "_track_num_input_tokens", "self inputs"),
        (Trainer, "compute_loss", loss),
        # weights/chat_template.py
        (chat_template_utils, "_compile_jinja_template", "chat_template"),
        # branchwise/modeling/tree_attention.py
        (
            sdpa_attention,
            "sdpa_attention_forward",
            "module query key value attention_mask dropout scaling is_causal "
            "position_bias cache kwargs",
        ),
        (sdpa_attention, "repeat_kv", "hidden_states n_rep"),
        (PreTrainedModel, "set_attn_implementation", "self attn_implementation allow_all_kernels"),
        (AttentionMaskInterface, "register", "key value"),
    ]
    attributes = [
        # training/preference/trainer.py; the loss must read the first and write the rest.
        (DPOTrainer, r"self\.precompute_ref_logps = "),
        (DPOTrainer, r"if self\.precompute_ref_logps:"),
        (DPOTrainer, r"self\._total_train_tokens \+= num_tokens_in_batch"),
        *(
            (DPOTrainer, rf'self\._metrics\[mode\]\["{of}/{side}"\]\.append')
            for of in ("logps", "rewards")
            for side in ("chosen", "rejected")
        ),
        # training/packing.py: keys that we add reach the backbone.
        (DPOTrainer, r"model\(\*\*model_kwargs, labels=labels, fused_lm_head=True\)"),
        (DPOTrainer, r"outputs\.log_probs"),
        # training/arguments.py
        (TrainingArguments, r"self\._n_gpu = "),
        # branchwise/modeling/tree_attention.py
        (PreTrainedModel, r"_supports_flex_attn\b"),
        (PretrainedConfig, r"def _attn_implementation\("),
    ]
    problems = [problem_of(*function) for function in functions] + [
        f"{owner.__name__} has no `{pattern}`"
        for owner, pattern in attributes
        if not re.search(pattern, inspect.getsource(owner))
    ]
    found = "\n".join(filter(None, problems))
    assert not found, (
        f"trl {version('trl')} and transformers {version('transformers')} differ from what the "
        f"trainers override:\n{found}\nAdapt the file that this test names above the entry, or "
        "pin the version in pyproject.toml."
    )
