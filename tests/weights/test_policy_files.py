"""How a `model` is resolved: folders, shards, hub names, adapters and tokenizers."""

import hashlib
import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_llama import write_tiny_folder

from branchwise.base.errors import ConfigError
from branchwise.weights.adapter_chain import copy_chain
from branchwise.weights.adapters import recorded_hashes
from branchwise.weights.hub import hub_folder
from branchwise.weights.policies import (
    load_policy,
    packaged_gguf,
    policy_digest,
    policy_files,
    tokenizer_source,
    validated_policy_files,
)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("tiny"))


def test_shards_are_hashed_as_weights_and_a_missing_one_is_reported(
    weights: Path, tmp_path: Path
) -> None:
    sharded = tmp_path / "sharded"
    model, _ = load_policy(policy_files(str(weights)))
    model.save_pretrained(str(sharded), max_shard_size="3MB")
    shards = sorted(sharded.glob("model-*.safetensors"))
    assert len(shards) > 1
    before = policy_digest(policy_files(str(sharded)), "f16")
    shards[0].unlink()
    with pytest.raises(ConfigError, match=shards[0].name):
        policy_digest(policy_files(str(sharded)), "f16")
    assert before != policy_digest(policy_files(str(weights)), "f16")


def test_weights_keep_their_own_tokenizer(weights: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(weights, own)
    _, shared = load_policy(policy_files(str(weights)))
    tokenizer = deepcopy(shared)  # the cached one is shared by all tests
    tokenizer.chat_template = "{{ messages[0].content }}!"
    tokenizer.save_pretrained(str(own))
    _, found = load_policy(policy_files(str(own)))
    asked = [{"role": "user", "content": "Who?"}]
    assert found.apply_chat_template(asked, tokenize=False) == "Who?!"
    digests = {policy_digest(policy_files(str(folder)), "f16") for folder in (weights, own)}
    assert len(digests) == 2


@pytest.mark.parametrize("name", ["special_tokens_map.json", "generation_config.json"])
def test_every_file_that_decides_prompts_is_part_of_the_digest(
    name: str, weights: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    shutil.copytree(weights, own)
    before = policy_digest(policy_files(str(own)), "f16")
    (own / name).write_text('{"eos_token": "x"}')
    assert policy_digest(policy_files(str(own)), "f16") != before


def test_a_hub_base_is_pinned_in_the_record(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "0123abc"
    shutil.copytree(weights, snapshot)
    asked: list[str] = []

    def folder(name: str, *, download: bool) -> Path:
        asked.append(name)
        return snapshot

    monkeypatch.setattr("branchwise.weights.policies.hub_folder", folder)
    base, chain = copy_chain("hub:owner/name@main", tmp_path / "trained")
    assert (base, chain) == ("hub:owner/name@0123abc", [])
    trained = tmp_path / "trained"
    (trained / "adapter").mkdir(parents=True)
    (trained / "adapter" / "adapter_model.safetensors").touch()
    (trained / "training.json").write_text(json.dumps({"base": base, "chain": chain}))
    files = policy_files(str(trained))
    assert (files.base, files.adapters) == (snapshot, (trained / "adapter",))
    assert asked[-1] == "hub:owner/name@0123abc"


def test_a_base_is_found_from_a_symlinked_folder(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "disk" / "deep").mkdir(parents=True)
    (tmp_path / "models").symlink_to(tmp_path / "disk" / "deep")
    trained = tmp_path / "models" / "dpo"
    (trained / "adapter").mkdir(parents=True)
    (trained / "adapter" / "adapter_model.safetensors").touch()
    blob, file = tmp_path / "blob", tmp_path / "linked.gguf"
    blob.touch()
    file.symlink_to(blob)
    for start in (weights, file):
        base, chain = copy_chain(str(start), trained)
        record(trained, base=base, chain=chain)
        assert policy_files(str(trained)).base.samefile(start)


def test_a_policy_of_a_local_base_is_written_without_the_packaged_model(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("branchwise.weights.policies.metadata.files", missing)
    base, chain = copy_chain(str(weights), tmp_path / "trained")
    assert ((tmp_path / "trained" / base).resolve(), chain) == (weights.resolve(), [])


def test_an_offline_hub_and_a_malformed_hub_name_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="hub:nobody/nothing from the Hugging Face hub"):
        policy_files("hub:nobody/nothing")
    with pytest.raises(ConfigError, match="write a hub model as"):
        policy_files("hub:nothing")


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("missing", ["weights", "tokenizer"])
def test_a_hub_model_is_downloaded_if_a_part_of_it_is_missing(
    missing: str, sharded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    files = {"weights": "model.safetensors", "tokenizer": "tokenizer.json"}
    if sharded:
        files["weights"] = "a.safetensors"
        index = {"weight_map": {"layer": "a.safetensors"}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for part, file in files.items():
        if part != missing:
            (tmp_path / file).touch()
    local: list[bool] = []

    def snapshot(name: str, *, local_files_only: bool, **options: Any) -> str:
        local.append(local_files_only)
        if not local_files_only:
            (tmp_path / files[missing]).touch()
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert hub_folder("hub:owner/name", download=False) == tmp_path
    for _ in range(2):
        assert hub_folder("hub:owner/name") == tmp_path
    assert local == [True, True, False, True]


def test_a_folder_without_a_tokenizer_must_have_the_packaged_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 49152}')
    assert tokenizer_source(tmp_path) == packaged_gguf()
    (tmp_path / "config.json").write_text('{"vocab_size": 151936}')
    with pytest.raises(ConfigError, match=r"lacks tokenizer\.json"):
        tokenizer_source(tmp_path)


SAVED = "adapter/adapter_model.safetensors"


@pytest.fixture
def adapted(weights: Path, tmp_path: Path) -> Path:
    """Policy folder with an adapter and a hand-written `training.json`."""
    from peft import LoraConfig, get_peft_model

    model, _ = load_policy(policy_files(str(weights)))
    lora = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False)
    get_peft_model(model, lora).save_pretrained(str(tmp_path / "policy" / "adapter"))
    record(tmp_path / "policy", base=str(weights))
    return tmp_path / "policy"


def record(folder: Path, **entries: Any) -> None:
    path = folder / "training.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | entries))


def flip_last_bit(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def peft_folder(base: Path, target: Path, config: Any) -> Any:
    """Saves a PEFT adapter of `base` as PEFT does, and returns the logits of the unmerged model."""
    from peft import get_peft_model

    model, _ = load_policy(policy_files(str(base)))
    torch.manual_seed(0)
    with_adapter = get_peft_model(model, config).eval()
    for name, parameter in with_adapter.named_parameters():
        if parameter.requires_grad and "lora_" not in name:
            parameter.data += 0.1 * torch.randn_like(parameter)
    with_adapter.peft_config["default"].base_model_name_or_path = str(base)
    with_adapter.save_pretrained(str(target))
    with torch.inference_mode():
        return with_adapter(PROBE).logits


PROBE = torch.tensor([[5, 17, 40, 3, 99]])


@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": ["q_proj", "down_proj"]},
        {"target_modules": ["q_proj"], "use_rslora": True},
        {"target_modules": ["q_proj"], "use_dora": True},
        {"target_modules": ["lm_head"]},
        {"target_modules": ["embed_tokens", "q_proj"]},
        {"target_modules": ["lm_head", "embed_tokens"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
        {"target_modules": ["q_proj"], "bias": "all"},
    ],
    ids=str,
)
def test_a_peft_folder_has_the_logits_of_the_unmerged_adapter(
    weights: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """huggingface/peft#2018: merging a LoRA of `lm_head` also changed the tied input embeddings."""
    from peft import LoraConfig

    lora = LoraConfig(r=4, lora_alpha=16, init_lora_weights=False, **settings)
    expected = peft_folder(weights, tmp_path / "adapter", lora)
    base, _ = load_policy(policy_files(str(weights)))
    merged, tokenizer = load_policy(validated_policy_files(str(tmp_path / "adapter")))
    with torch.inference_mode():
        change = (base(PROBE).logits - expected).abs().max()
        assert (merged(PROBE).logits - expected).abs().max() < 1e-3 * change
    merged.save_pretrained(str(tmp_path / "merged"))
    tokenizer.save_pretrained(str(tmp_path / "merged"))
    again, _ = load_policy(policy_files(str(tmp_path / "merged")))
    with torch.inference_mode():
        assert (again(PROBE).logits - expected).abs().max() < 1e-3 * change


def test_an_adapter_that_cannot_be_merged_is_refused_by_name(weights: Path, tmp_path: Path) -> None:
    from peft import PrefixTuningConfig

    peft_folder(
        weights,
        tmp_path / "adapter",
        PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    )
    with pytest.raises(ConfigError, match="PREFIX_TUNING"):
        validated_policy_files(str(tmp_path / "adapter"))


def test_a_peft_folder_that_names_no_base_says_where_to_write_it(adapted: Path) -> None:
    path = adapted / "adapter" / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"base_model_name_or_path": None}))
    with pytest.raises(ConfigError, match=r"base_model_name_or_path.*folder above"):
        policy_files(str(adapted / "adapter"))


def test_a_peft_folder_that_is_its_own_base_is_refused(adapted: Path) -> None:
    path = adapted / "adapter" / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"base_model_name_or_path": str(path.parent)}))
    with pytest.raises(ConfigError, match="leads back"):
        policy_files(str(adapted / "adapter"))


def test_an_adapter_that_differs_from_its_recorded_digest_is_refused(adapted: Path) -> None:
    load_policy(policy_files(str(adapted)))
    digest = hashlib.sha256((adapted / SAVED).read_bytes()).hexdigest()
    record(adapted, digests={"adapter": digest})
    load_policy(policy_files(str(adapted)))
    flip_last_bit(adapted / SAVED)
    for load in (validated_policy_files, lambda model: load_policy(policy_files(model))):
        with pytest.raises(ConfigError, match=rf"{SAVED}: is damaged .* copy, or retrain"):
            load(str(adapted))


def test_chain_adapters_are_compared_with_their_recorded_digests(
    adapted: Path, tmp_path: Path
) -> None:
    digest = hashlib.sha256((adapted / SAVED).read_bytes()).hexdigest()
    above = tmp_path / "above"
    shutil.copytree(adapted, above)
    base, chain = copy_chain(str(adapted), above)
    record(above, base=base, chain=chain, digests={"chain/0": digest})
    load_policy(policy_files(str(above)))
    flip_last_bit(above / "chain" / "0" / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match=r"chain/0/adapter_model.safetensors: is damaged"):
        validated_policy_files(str(above))
    record(above, digests={})
    validated_policy_files(str(above))


def test_an_adapter_whose_start_was_trained_again_is_refused(
    adapted: Path, weights: Path, tmp_path: Path
) -> None:
    start = tmp_path / "start"
    shutil.copytree(weights, start)
    digest = policy_digest(policy_files(str(start)), "f16")
    record(adapted, base="../start", digests={"start": digest})
    validated_policy_files(str(adapted))
    flip_last_bit(start / "model.safetensors")
    with pytest.raises(ConfigError, match=r"does not fit .*start, because its start was replaced"):
        validated_policy_files(str(adapted))


@pytest.mark.parametrize(
    ("changed", "is_same"),
    [
        ({"alpha": 4}, False),  # of LoHa and LoKr
        ({"layers_to_transform": [0]}, False),
        ({"init_lora_weights": "olora"}, False),
        ({"use_qalora": True}, False),
        ({"init_lora_weights": True, "use_rslora": False, "rank_pattern": {}}, True),
        ({"base_model_name_or_path": "/elsewhere", "peft_version": "9", "new": None}, True),
    ],
)
def test_the_digest_covers_what_decides_an_adapters_output(
    changed: dict[str, Any], is_same: bool, adapted: Path
) -> None:
    before = policy_digest(policy_files(str(adapted)), "f16")
    path = adapted / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    assert (policy_digest(policy_files(str(adapted)), "f16") == before) is is_same


def test_a_changed_configuration_of_a_trained_adapter_is_refused(adapted: Path) -> None:
    record(adapted, digests=recorded_hashes(adapted, "adapter"))
    validated_policy_files(str(adapted))
    path = adapted / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"lora_alpha": 99}))
    with pytest.raises(ConfigError, match=r"adapter_config.json: is damaged or was replaced"):
        validated_policy_files(str(adapted))


def test_an_adapter_with_a_random_start_is_refused(adapted: Path) -> None:
    path = adapted / "adapter" / "adapter_config.json"
    changed = {"init_lora_weights": "pissa_niter_2"}
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(ConfigError, match="cannot be merged"):
        validated_policy_files(str(adapted))


def test_a_missing_base_of_a_peft_folder_is_named(adapted: Path) -> None:
    path = adapted / "adapter" / "adapter_config.json"
    changed = {"base_model_name_or_path": "/home/someone/llama"}
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(ConfigError, match=r"base_model_name_or_path.*/home/someone/llama"):
        policy_files(str(adapted / "adapter"))
    (adapted / "adapter").rename(adapted / "mine")
    with pytest.raises(ConfigError, match=r"give the adapter in it, .*mine"):
        policy_files(str(adapted))


@pytest.mark.parametrize(
    ("rename", "says"),
    [
        (lambda name: name.replace("layers.0", "layers.99"), "lacks tensors, such as .*layers.0"),
        (lambda name: name.replace("lora_A", "lora_C"), "lacks tensors, such as .*lora_A"),
        (lambda name: None if "layers.0" in name else name, "lacks tensors, such as .*layers.0"),
    ],
)
def test_an_adapter_with_other_tensors_is_refused(
    rename: Callable[[str], str | None], says: str, adapted: Path
) -> None:
    from safetensors.torch import load_file, save_file

    tensors = {rename(name): tensor for name, tensor in load_file(adapted / SAVED).items()}
    save_file({name: tensor for name, tensor in tensors.items() if name}, adapted / SAVED)
    with pytest.raises(ConfigError, match=rf"{SAVED}: {says}"):
        load_policy(policy_files(str(adapted)))


def test_an_adapter_with_more_tensors_is_refused(adapted: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(adapted / SAVED)
    tensors |= {name.replace("q_proj", "v_proj"): t.clone() for name, t in tensors.items()}
    save_file(tensors, adapted / SAVED)
    with pytest.raises(ConfigError, match=rf"{SAVED}: has tensors that the model lacks.*v_proj"):
        load_policy(policy_files(str(adapted)))


@pytest.mark.parametrize("start", ["atlas", "atlas-evo-rag", "general"])
def test_shipped_adapters_match_their_recorded_digests(start: str) -> None:
    folder = Path(__file__).resolve().parents[2] / "models" / f"smollm2-135m-{start}"
    recorded = json.loads((folder / "training.json").read_text())["digests"]["adapter"]
    assert hashlib.sha256((folder / SAVED).read_bytes()).hexdigest() == recorded
    validated_policy_files(str(folder))
