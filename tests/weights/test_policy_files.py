"""What a `model` names: folders, shards, hub names; and whose tokenizer goes with the weights."""

import json
import shutil
from pathlib import Path

import pytest
from tiny_llama import write_tiny_folder

from base.errors import ConfigError
from weights.adapter_chain import copy_chain
from weights.policy_files import load_policy, policy_digest, policy_files


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("tiny"))


def test_shards_are_weights_and_a_missing_one_is_told(weights: Path, tmp_path: Path) -> None:
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
    _, tokenizer = load_policy(policy_files(str(weights)))
    tokenizer.chat_template = "{{ messages[0].content }}!"
    tokenizer.save_pretrained(str(own))
    _, found = load_policy(policy_files(str(own)))
    asked = [{"role": "user", "content": "Who?"}]
    assert found.apply_chat_template(asked, tokenize=False) == "Who?!"
    digests = {policy_digest(policy_files(str(folder)), "f16") for folder in (weights, own)}
    assert len(digests) == 2


def test_a_hub_base_is_pinned_in_the_record(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "0123abc"
    shutil.copytree(weights, snapshot)
    asked: list[str] = []

    def folder(name: str, *, download: bool) -> Path:
        asked.append(name)
        return snapshot

    monkeypatch.setattr("weights.policy_files.hub_folder", folder)
    base, chain = copy_chain("hub:owner/name@main", tmp_path / "trained")
    assert (base, chain) == ("hub:owner/name@0123abc", [])
    trained = tmp_path / "trained"
    (trained / "adapter").mkdir(parents=True)
    (trained / "adapter" / "adapter_model.safetensors").touch()
    (trained / "training.json").write_text(json.dumps({"base": base, "chain": chain}))
    files = policy_files(str(trained))
    assert (files.base, files.adapters) == (snapshot, (trained / "adapter",))
    assert asked[-1] == "hub:owner/name@0123abc"


def test_a_hub_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="hub:nobody/nothing from the Hugging Face hub"):
        policy_files("hub:nobody/nothing")
    with pytest.raises(ConfigError, match="write a hub model as"):
        policy_files("hub:nothing")
