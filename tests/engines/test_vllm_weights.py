"""Weights for a vLLM server: the last adapter as it is, everything below it merged."""

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from damage import HARMS, Harm
from tiny_llama import write_tiny_folder

from branchwise.base.errors import ConfigError
from branchwise.engines.settings import ModelSettings, RequestSettings
from branchwise.engines.vllm.command import Served
from branchwise.engines.vllm.served_weights import prepare_weights, served_digest
from branchwise.weights.policies import load_policy, policy_files


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the adapter `dpo` on the adapter `warm-start` on merged weights."""
    import torch
    from peft import LoraConfig, get_peft_model

    folder = tmp_path_factory.mktemp("chain")
    model, tokenizer = load_policy(policy_files(str(write_tiny_folder(folder / "base"))))
    tokenizer.save_pretrained(str(folder / "base"))
    torch.manual_seed(0)
    for name, below in (("warm-start", []), ("dpo", ["../warm-start/adapter"])):
        lora = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
        adapted = get_peft_model(model, lora)
        adapted.save_pretrained(folder / name / "adapter")
        record = {"base": "../base", "chain": below}
        (folder / name / "training.json").write_text(json.dumps(record))
        model = adapted.merge_and_unload()
    return folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))


@dataclass(frozen=True)
class Saved:
    """Stand-in for a model or tokenizer of transformers; saves one file."""

    name: str

    def save_pretrained(self, folder: str) -> None:
        (Path(folder) / self.name).write_text("{}")


def prepare(folder: Path) -> Served:
    return prepare_weights(ModelSettings(engine="vllm", model=str(folder)))


def logits(weights: str) -> Any:
    import torch

    model, _ = load_policy(policy_files(weights))
    with torch.inference_mode():
        return model(input_ids=torch.arange(12)[None]).logits


def test_all_but_the_last_adapter_is_merged_once(
    chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    served = prepare(chain / "dpo")
    assert served.adapter == chain / "dpo" / "adapter"
    assert served.rank == 8, "the smallest maximum rank of vLLM that fits rank 4"
    assert served.base_name == f"{served.name}-base"
    assert (Path(served.weights) / "tokenizer.json").is_file(), (
        "vLLM needs a tokenizer with the weights"
    )
    below, whole = logits(str(chain / "warm-start")), logits(str(chain / "dpo"))
    assert torch.equal(logits(served.weights), below)
    assert not torch.allclose(below, whole, atol=1e-3)

    monkeypatch.setattr(
        "branchwise.engines.vllm.served_weights.load_policy", lambda *_: pytest.fail("not cached")
    )
    assert prepare(chain / "dpo") == served


def test_with_a_training_rank_the_whole_policy_is_merged(chain: Path) -> None:
    import torch

    settings = ModelSettings(engine="vllm", model=str(chain / "dpo"))
    served = prepare_weights(settings, rank=12)
    assert (served.adapter, served.rank) == (None, 16)
    assert torch.equal(logits(served.weights), logits(str(chain / "dpo")))
    with pytest.raises(ConfigError, match="LoRA rank 600 exceeds vLLM's limit of 512"):
        prepare_weights(settings, rank=600)


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_merged_weights_that_changed_on_disk_are_rebuilt(
    chain: Path, tmp_path: Path, harm: Harm, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged, said = list[int](), list[str]()

    def load(files: Any) -> Any:
        merged.append(len(files.adapters))
        return Saved("model.safetensors"), Saved("config.json")

    monkeypatch.setattr("branchwise.engines.vllm.served_weights.load_policy", load)
    settings = ModelSettings(engine="vllm", model=str(chain / "dpo"))
    served = prepare_weights(settings, said.append)
    names = sorted(path.name for path in Path(served.weights).iterdir())
    for n, name in enumerate(names):
        harm(Path(served.weights) / name, Random(n))
        assert prepare_weights(settings, said.append) == served
        assert sorted(path.name for path in Path(served.weights).iterdir()) == names
        assert (Path(served.weights) / "model.safetensors").read_text() == "{}"
        assert "rebuilt" in said.pop()
    assert (merged, said) == ([1] * (1 + len(names)), [])


@pytest.mark.parametrize(
    "beyond",
    [{"use_dora": True}, {"rank_pattern": {"q_proj": 8}}, {"target_modules": ["lm_head"]}],
)
def test_an_adapter_that_vllm_cannot_apply_is_merged(
    chain: Path, beyond: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    merged: list[int] = []

    def load(files: Any) -> Any:
        merged.append(len(files.adapters))
        return Saved("model.safetensors"), Saved("config.json")

    monkeypatch.setattr("branchwise.engines.vllm.served_weights.load_policy", load)
    config = chain / "dpo" / "adapter" / "adapter_config.json"
    plain = config.read_text()
    config.write_text(json.dumps(json.loads(plain) | beyond))
    try:
        assert prepare(chain / "dpo").adapter is None
    finally:
        config.write_text(plain)
    assert merged == [2]


def test_request_settings_are_part_of_the_digest() -> None:
    usual = ModelSettings(engine="vllm", model="owner/name")
    request = RequestSettings(extra={"repetition_penalty": 1.5})
    other = usual.model_copy(update={"request": request})
    assert served_digest(usual) != served_digest(other)
