"""Packed batches give the log-probabilities and gradients of whole sequences."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from tiny_models import KINDS, random_model
from transformers import MistralConfig, MistralForCausalLM

from branchwise.base.errors import ConfigError
from branchwise.modeling import tree_attention
from branchwise.modeling.token_tree import prefix_tree
from branchwise.modeling.tree_attention import TREE_SDPA, subtrees
from branchwise.training.packing import (
    StepTokens,
    enable_packed_forward,
    packed_batch,
    padded_batch,
)

Batch = Callable[[Sequence[StepTokens], int], dict[str, Any]]

# Two states of one instruction and one without it; siblings of several lengths, one a prefix of
# another, one repeated.
ROWS = [
    StepTokens((1, 2, 3, 4), (5, 6, 7)),
    StepTokens((1, 2, 3, 4), (5, 6)),
    StepTokens((1, 2, 3, 4), (8,)),
    StepTokens((1, 2, 9), (5, 6, 7, 8, 9)),
    StepTokens((1, 2, 3, 4), (5, 6, 7)),
    StepTokens((1, 2, 9), (4, 4)),
    StepTokens((50,), (3, 4)),
]


@pytest.fixture(autouse=True)
def eager_mode() -> Iterator[None]:
    """Runs FlexAttention uncompiled: equal results without the time to compile."""
    with torch.compiler.set_stance("force_eager"):
        yield


def tiny(attention: str, kind: str = "llama") -> Any:
    """Returns a random model with a random LoRA; two query heads share a small key-value head."""
    plain = random_model(kind, num_hidden_layers=3)
    enable_packed_forward(plain)
    assert plain.config._attn_implementation in (attention, TREE_SDPA, "flex_attention")
    tree_attention._register_tree_sdpa()  # on a GPU, FlexAttention was selected instead
    plain.set_attn_implementation(attention)
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    return get_peft_model(plain, lora)


def step_logps(model: Any, batch: dict[str, Any]) -> Any:
    """Returns the log-probability of each step, (rows,), from a causal model's logits."""
    said = batch.pop("completion_mask")[:, 1:]
    batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
    scores = model(**batch, use_cache=False).logits[:, :-1].log_softmax(-1)
    found = scores.gather(2, batch["input_ids"][:, 1:, None])[..., 0]
    return (found * said.to(found.device)).sum(1)


def gradients(model: Any, batch: Batch) -> dict[str, Any]:
    """Returns the gradients of a loss that weights every row differently."""
    model.zero_grad()
    logps = step_logps(model, batch(ROWS, 0))
    (logps * torch.linspace(-1, 2, len(ROWS), device=logps.device)).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("attention", ["sdpa", TREE_SDPA, "eager", "flex_attention"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_log_probabilities_equal_those_of_the_whole_sequences(
    attention: str, kind: str
) -> None:
    with torch.no_grad():
        whole = step_logps(tiny("sdpa", kind), padded_batch(ROWS, 0))
        packed = step_logps(tiny(attention, kind), packed_batch(ROWS, 0))
    torch.testing.assert_close(packed, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("most_scores", [0, 2**20])
def test_bfloat16_on_a_cpu_matches_float32_within_rounding(
    most_scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiplied = Mock(wraps=tree_attention._multiplied)
    monkeypatch.setattr(tree_attention, "_multiplied", multiplied)
    monkeypatch.setattr(tree_attention, "_MOST_SCORES", most_scores)
    with torch.no_grad():
        whole = step_logps(tiny("sdpa"), padded_batch(ROWS, 0))
        with torch.autocast("cpu", torch.bfloat16):
            packed = step_logps(tiny(TREE_SDPA), packed_batch(ROWS, 0))
    assert multiplied.called == bool(most_scores)
    torch.testing.assert_close(packed.float(), whole, rtol=1e-2, atol=0.05)


@pytest.mark.parametrize("attention", ["sdpa", TREE_SDPA, "eager"])
def test_packed_gradients_equal_those_of_the_whole_sequences(attention: str) -> None:
    model = tiny(attention)
    whole, packed = gradients(model, padded_batch), gradients(model, packed_batch)
    assert len(whole) == 2 * 3 * 7, "both matrices of every linear layer learn"
    assert all(gradient.abs().max() > 0 for gradient in whole.values())
    for name, gradient in whole.items():
        torch.testing.assert_close(packed[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple), min_size=1),
    st.integers(1, 12),
)
def test_subtrees_cover_all_tokens_that_the_whole_tree_attends_to(
    sequences: list[tuple[int, ...]], small: int
) -> None:
    ends = prefix_tree(sequences).ends
    parts = list(subtrees(ends, 0, len(ends), small=small))
    assert [at for part in parts for at in range(part.start, part.stop)] == list(range(len(ends)))
    for part in parts:
        spans = (*part.past, part[:2])
        reach = {at for span in spans for at in range(*span)}
        for token in range(part.start, part.stop):
            assert reach >= {at for at in range(token + 1) if token < ends[at]}
            assert reach.issuperset(range(*part[:2]))
        if part.stop - part.start > small:
            assert len(set(ends[part.start : part.stop])) == 1, "a large part is a single chain"


def test_tree_attention_runs_per_subtree(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[tuple[int, int]] = []
    real = torch.nn.functional.scaled_dot_product_attention

    def watched(query: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        lengths.append((query.shape[2], key.shape[2]))
        return real(query, key, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    monkeypatch.setattr(tree_attention.subtrees, "__defaults__", ((), 3))
    with torch.no_grad():
        step_logps(tiny(TREE_SDPA), packed_batch(ROWS, 0))
    # Numbers of queries and keys, for 1 2; 3 4 5 6; 9; after it 4, and 5 6 7 8; then 50 3.
    assert lengths == [(2, 2), (4, 6), (1, 3), (1, 4), (4, 7), (2, 2)] * 3, "in each layer"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_compiled_flex_attention_matches_sdpa_on_a_gpu(precision: Any) -> None:
    many = [StepTokens((*range(1, 60), n), tuple(range(n, n + 20))) for n in range(20)]
    sdpa, flex = tiny("sdpa").cuda(), tiny("flex_attention").cuda()
    error = 1e-3 if precision == torch.float32 else 0.3  # nats per step of 20 tokens
    with torch.compiler.set_stance("default"), torch.autocast("cuda", precision):
        for rows in (ROWS, many):
            whole = step_logps(sdpa, padded_batch(rows, 0))
            packed = step_logps(flex, packed_batch(rows, 0))
            torch.testing.assert_close(packed, whole, rtol=1e-2, atol=error)
        if precision == torch.float32:
            whole, packed = gradients(sdpa, padded_batch), gradients(flex, packed_batch)
            for name, gradient in whole.items():
                torch.testing.assert_close(packed[name], gradient, rtol=1e-2, atol=1e-3, msg=name)


def test_siblings_do_not_attend_to_each_other() -> None:
    model = tiny("sdpa")
    other = [*ROWS[:2], StepTokens((1, 2, 3, 4), (77, 78, 79, 80)), *ROWS[3:]]
    with torch.no_grad():
        before = step_logps(model, packed_batch(ROWS, 0))
        after = step_logps(model, packed_batch(other, 0))
    changed = (before - after).abs() > 1e-5
    assert changed.tolist() == [row is not mine for row, mine in zip(other, ROWS, strict=True)]


def test_a_shared_prompt_is_encoded_once() -> None:
    read: list[int] = []
    model = tiny("sdpa")
    layer = model.get_base_model().model.layers[0]
    layer.register_forward_pre_hook(lambda module, args: read.append(args[0].shape[1]))
    with torch.no_grad():
        step_logps(model, packed_batch(ROWS, 0))
    # 1 2 | 3 4 | 5 6 and 9 | 5 6 7 8 | 4 and 50 | 3. A step's last token predicts no other.
    assert read == [2 + 2 + 2 + 1 + 4 + 1 + 1 + 1]


def test_a_sliding_window_model_is_refused_with_a_hint() -> None:
    sliding = MistralForCausalLM(
        MistralConfig(
            vocab_size=9,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            sliding_window=4,
        )
    )
    with pytest.raises(ConfigError, match=r"mistral.*set training\.packed: false"):
        enable_packed_forward(sliding)
