"""Trainers on a random Llama of 3 million weights: masks, resuming, references, chains, export."""

import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from killed_training import killed_at
from safetensors import safe_open
from sample_records import a_pair
from tiny_llama import write_tiny_gguf
from training_settings import training_settings

from branchwise.base.errors import ConfigError, StorageError, TrainingError
from branchwise.training import policy_export as export
from branchwise.training.curves import read_metrics
from branchwise.training.examples import StepExample
from branchwise.training.policy_export import export_policy
from branchwise.training.preference.dpo import train_dpo
from branchwise.training.preference.preference_tokens import tokenise_pairs
from branchwise.training.settings import TrainingSettings
from branchwise.training.sft import train_on_steps
from branchwise.training.training_run import TrainingReport, TrainingRun
from branchwise.types import Message, Pair
from branchwise.weights.policies import load_policy, policy_files
from branchwise.weights.policy_gguf import ensure_gguf

pytestmark = [
    pytest.mark.model,
    pytest.mark.usefixtures("one_thread", "shared_cache", "frequent_checkpoints"),
]


@pytest.fixture(scope="module")
def started(base: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warm-started model folder."""
    target = tmp_path_factory.mktemp("models") / "warm-start"
    warm_start(steps(8), supervised(base), target=target, seed=0)
    return target


def steps(n: int) -> list[StepExample]:
    return [
        StepExample(
            (Message("system", "Answer."), Message("user", f"Question: {'very ' * (i % 4)}{i}?")),
            f"<query>number {i}</query>",
            str(i),
            "reasoning",
        )
        for i in range(n)
    ]


def warm_start(
    examples: list[StepExample], training: TrainingSettings, *, target: Path, **given: Any
) -> TrainingReport:
    start = training.warm_start.base
    return train_on_steps(TrainingRun("warm-start", training, start, target, **given), examples)


def supervised(base: str, **changes: Any) -> TrainingSettings:
    fields = {"base": base, "batch_size": 4, "micro_batch": 4, "lr": 5e-3}
    return training_settings("warm_start", **{**fields, **changes})


def pairs(n: int = 8) -> list[Pair]:
    return [
        a_pair(
            pair_id=str(i),
            chosen=(Message(role="assistant", content=f"<query>place {i}</query>"),),
            rejected=(Message(role="assistant", content="<answer>no idea at all</answer>"),),
        )
        for i in range(n)
    ]


def preference(**changes: Any) -> TrainingSettings:
    fields = {"batch_size": 4, "micro_batch": 2, "epochs": 3, "lr": 5e-3}
    return training_settings("dpo", **{**fields, **changes})


def losses(target: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(target)]


def test_micro_batches_and_padding_do_not_change_the_curve(base: str, tmp_path: Path) -> None:
    for micro_batch in (1, 4):
        settings = supervised(base, micro_batch=micro_batch)
        warm_start(steps(8), settings, target=tmp_path / str(micro_batch), seed=0)
    assert losses(tmp_path / "1") == pytest.approx(losses(tmp_path / "4"), rel=1e-4)


@pytest.mark.parametrize("seed", [-(2**63), 2**63 - 1])
def test_the_smallest_and_the_largest_seed_train(seed: int, base: str, tmp_path: Path) -> None:
    started, target = tmp_path / "started", tmp_path / "dpo"
    warm_start(steps(4), supervised(base), target=started, seed=seed)
    train_dpo(TrainingRun("dpo", preference(epochs=1), str(started), target, seed), pairs(4))
    assert json.loads((target / "training.json").read_text())["seed"] == seed


def test_a_new_training_removes_the_exported_weights_of_an_earlier_one(
    base: str, tmp_path: Path
) -> None:
    warm_start(steps(4), supervised(base), target=tmp_path, seed=0)
    (tmp_path / "model.safetensors").write_bytes(b"exported")
    warm_start(steps(4), supervised(base), target=tmp_path, seed=1)
    assert not (tmp_path / "model.safetensors").exists()


def test_a_resumed_training_equals_the_uninterrupted_one(base: str, tmp_path: Path) -> None:
    settings = supervised(base, epochs=3)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    warm_start(steps(8), settings, target=whole, seed=0)
    with killed_at(3):
        warm_start(steps(8), settings, target=killed, seed=0)
    assert [line["step"] for line in read_metrics(killed)] == [1, 2, 3]
    report = warm_start(steps(8), settings, target=killed, seed=0)
    assert report.steps == 6
    seen = [(line["step"], line["loss"], line["lr"]) for line in read_metrics(killed)]
    assert seen == [(line["step"], line["loss"], line["lr"]) for line in read_metrics(whole)]
    adapter = "adapter/adapter_model.safetensors"
    assert (killed / adapter).read_bytes() == (whole / adapter).read_bytes()
    curve = (killed / "metrics.jsonl").read_text()
    shutil.rmtree(killed / "checkpoints")  # finished: no further step, even without them
    assert warm_start(steps(8), settings, target=killed, seed=0) == report
    assert (killed / "metrics.jsonl").read_text() == curve
    (killed / adapter).write_bytes((killed / adapter).read_bytes()[:-1] + b"x")
    warm_start(steps(8), settings, target=killed, seed=0)  # damaged: retrained
    assert (killed / adapter).read_bytes() == (whole / adapter).read_bytes()
    _check_foreign_checkpoints_are_refused(settings, killed)


@pytest.mark.parametrize("kind", ["warm-start", "dpo"])
def test_a_diverged_training_is_an_error_without_a_model(
    kind: str, base: str, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match="not finite"):
        if kind == "dpo":
            settings = preference(lr=1e30)
            train_dpo(TrainingRun("dpo", settings, base, tmp_path, 0), pairs(16))
        else:
            warm_start(steps(16), supervised(base, lr=1e30), target=tmp_path, seed=0)
    assert not (tmp_path / "training.json").exists() and not (tmp_path / "adapter").exists()
    assert all(math.isfinite(line["loss"]) for line in read_metrics(tmp_path))


@pytest.mark.long
def test_an_unpacked_resume_within_the_second_epoch_gives_the_uninterrupted_curve(
    base: str, tmp_path: Path
) -> None:
    def train(target: Path) -> None:
        settings = preference(packed=False, epochs=2, batch_size=2)
        train_dpo(TrainingRun("dpo", settings, base, target, 0), pairs(8))

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(whole)
    with killed_at(7):
        train(killed)
    train(killed)
    assert len(losses(whole)) == 8
    assert losses(killed) == losses(whole)
    read = [[line["tokens"] for line in read_metrics(one)] for one in (killed, whole)]
    assert read[0] == read[1] and read[0][-1] > read[0][0] > 0


def test_a_training_resumes_with_smaller_micro_batches(base: str, tmp_path: Path) -> None:
    said: list[str] = []

    def train(target: Path, micro_batch: int) -> None:
        settings = preference(epochs=2, micro_batch=micro_batch)
        train_dpo(TrainingRun("dpo", settings, base, target, 0, log=said.append), pairs(16))

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(whole, 2)
    with killed_at(7):
        train(killed, 2)
    train(killed, 1)
    assert any("resumes from" in line for line in said)
    assert losses(killed) == pytest.approx(losses(whole), rel=1e-3)


def _check_foreign_checkpoints_are_refused(settings: TrainingSettings, target: Path) -> None:
    with pytest.raises(StorageError, match="another training"):
        warm_start(steps(7), settings, target=target, seed=0, resume=True)
    (target / "training.json").unlink()  # as if killed before it was written
    newest = max((target / "checkpoints").glob("checkpoint-*"), key=lambda p: p.stat().st_mtime)
    (newest / "optimizer.pt").write_bytes(b"a pickle from elsewhere")
    with pytest.raises(StorageError, match="has changed since this run wrote it"):
        warm_start(steps(8), settings, target=target, seed=0, resume=True)
    warm_start(steps(8), settings, target=target, seed=0)
    assert len(read_metrics(target)) == 6, "without `resume`, training and curve restart"


def test_too_long_examples_are_counted_or_refused(base: str, tmp_path: Path) -> None:
    long = StepExample((Message("user", "word " * 100),), "<answer>x</answer>", "long", "reasoning")
    examples = [*steps(4), long]
    with pytest.raises(ConfigError, match=r"1 of 5 examples.*max_length 60"):
        warm_start(examples, supervised(base, max_length=60), target=tmp_path, seed=0)
    allowed = supervised(base, max_length=60, max_dropped_share=0.2)
    report = warm_start(examples, allowed, target=tmp_path, seed=0)
    assert (report.examples, report.dropped) == (4, 1)


def test_preference_training_starts_at_ln_2_and_raises_the_margin(
    started: Path, tmp_path: Path
) -> None:
    target = tmp_path / "dpo"
    data = {"table": "pairs"}
    train_dpo(TrainingRun("dpo", preference(), str(started), target, 3, data=data), pairs())
    lines = read_metrics(target)
    assert lines[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert lines[0]["kl"] == pytest.approx(0, abs=1e-4)
    assert lines[-1]["accuracy"] == 1
    assert lines[-1]["margin"] > 0.1
    before, after = margin(str(started)), margin(str(target))
    assert after > before + 1
    # The folder is complete: the adapter that it builds on was copied into it.
    chain = policy_files(str(target)).adapters
    assert chain == (target / "chain" / "0", target / "adapter")
    below = "adapter_model.safetensors"
    assert (chain[0] / below).read_bytes() == (started / "adapter" / below).read_bytes()
    # The record holds what a repetition needs: rows, seed, fingerprint and digests.
    record = json.loads((target / "training.json").read_text())
    listing = json.loads((target / "checkpoints" / "checkpoints.json").read_text())
    assert (record["seed"], record["data"]) == (3, {"table": "pairs"})
    assert record["fingerprint"] == listing["run"]
    digests = {chain[0]: record["digests"]["chain/0"], chain[1]: record["digests"]["adapter"]}
    for adapter, digest in digests.items():
        assert hashlib.sha256((adapter / below).read_bytes()).hexdigest() == digest


def test_the_packaged_policy_also_starts_at_ln_2(tmp_path: Path) -> None:
    settings = preference(batch_size=2, epochs=1)
    train_dpo(TrainingRun("dpo", settings, "packaged", tmp_path, 0), pairs(2))
    assert read_metrics(tmp_path)[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)
    adapter = tmp_path / "adapter" / "adapter_model.safetensors"
    assert adapter.stat().st_size <= 10_000_000  # the limit for a shipped adapter


def margin(model: str) -> float:
    """Returns the mean log-probability of chosen minus rejected steps, in nats."""
    import torch

    policy, tokenizer = load_policy(policy_files(model))
    total = 0.0
    with torch.inference_mode():
        for pair in tokenise_pairs(pairs(), tokenizer):
            for step, sign in ((pair.chosen, 1), (pair.rejected, -1)):
                ids = torch.tensor([[*pair.prompt, *step]])
                scores = policy(input_ids=ids).logits[0, len(pair.prompt) - 1 : -1].log_softmax(-1)
                total += sign * float(scores.gather(1, torch.tensor(step)[:, None]).sum())
    return total / len(pairs())


def test_the_loss_without_a_reference_follows_the_formula(started: Path, tmp_path: Path) -> None:
    settings = preference(reference="none", epochs=1, batch_size=8)
    train_dpo(TrainingRun("dpo", settings, str(started), tmp_path, 0), pairs())
    first = read_metrics(tmp_path)[0]
    policy_margin = margin(str(started))  # the pairs are equal, so each has the mean
    assert first["margin"] == pytest.approx(0.1 * policy_margin, rel=0.01)
    assert first["loss"] == pytest.approx(math.log1p(math.exp(-0.1 * policy_margin)), rel=0.05)
    assert first["kl"] == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("packed", [True, False])
def test_full_training_moves_all_weights_without_a_second_model(
    packed: bool, started: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def second_model(*_: Any, **__: Any) -> None:
        raise AssertionError("the reference must not be a second model")

    monkeypatch.setattr("trl.trainer.dpo_trainer.create_model_from_path", second_model)
    settings = preference(lora=None, lr=1e-3, packed=packed)
    target, again = tmp_path / "dpo", tmp_path / "again"
    report = train_dpo(TrainingRun("dpo", settings, str(started), target, 3), pairs())
    lines = read_metrics(target)
    assert lines[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert lines[0]["kl"] == pytest.approx(0, abs=1e-3)
    assert lines[-1]["kl"] != pytest.approx(0, abs=1e-2), "the reference stays the start"
    assert margin(str(target)) > margin(str(started)) + 1
    files = policy_files(str(target))
    assert (files.base, files.adapters) == (target, ())
    before, after = (load_policy(policy_files(str(one)))[0] for one in (started, target))
    unmoved = [
        name
        for (name, old), new in zip(before.named_parameters(), after.parameters(), strict=True)
        if old.equal(new)
    ]
    assert unmoved == []
    # Already trained, so no step is added. The folder can be the start of another training.
    assert train_dpo(TrainingRun("dpo", settings, str(started), target, 3), pairs()) == report
    train_dpo(TrainingRun("dpo", preference(packed=packed), str(target), again, 0), pairs())
    assert read_metrics(again)[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)


def test_a_resumed_full_training_equals_the_uninterrupted_one(
    started: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = preference(lora=None, lr=1e-3)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train_dpo(TrainingRun("dpo", settings, str(started), whole, 0), pairs())
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))  # the reference is lost, too
    with killed_at(3):
        train_dpo(TrainingRun("dpo", settings, str(started), killed, 0), pairs())
    shutil.rmtree(tmp_path / "cache")
    train_dpo(TrainingRun("dpo", settings, str(started), killed, 0), pairs())
    assert losses(killed) == losses(whole)
    weights_file = "model.safetensors"
    assert (killed / weights_file).read_bytes() == (whole / weights_file).read_bytes()


def test_full_training_replaces_an_earlier_adapter(base: str, tmp_path: Path) -> None:
    warm_start(steps(4), supervised(base), target=tmp_path, seed=0)
    warm_start(steps(4), supervised(base, lora=None, lr=1e-3), target=tmp_path, seed=0)
    assert policy_files(str(tmp_path)).adapters == ()
    assert not (tmp_path / "chain").exists()


@pytest.mark.parametrize(
    ("schedule", "shares"),
    # Warm-up over 2 of 6 steps, then 4 steps down a line or half a cosine wave.
    [
        ("linear", [1 / 3, 2 / 3, 1, 3 / 4, 1 / 2, 1 / 4]),
        ("cosine", [1 / 3, 2 / 3, 1, 0.8536, 0.5, 0.1464]),
    ],
)
def test_the_learning_rate_warms_up_and_falls_as_set(
    schedule: str, shares: list[float], started: Path, tmp_path: Path
) -> None:
    settings = preference(lr=1e-3, schedule=schedule, warmup=0.3)
    train_dpo(TrainingRun("dpo", settings, str(started), tmp_path, 0), pairs())
    rates = [line["lr"] for line in read_metrics(tmp_path)]
    assert rates == pytest.approx([1e-3 * share for share in shares], rel=1e-3)


def test_a_training_of_one_step_moves_and_is_called_too_short(
    started: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    settings = preference(lr=1e-3, epochs=1, batch_size=8, micro_batch=8)
    train_dpo(TrainingRun("dpo", settings, str(started), tmp_path, 0, log=said.append), pairs())
    assert [line["lr"] for line in read_metrics(tmp_path)] == [5e-4]
    with safe_open(tmp_path / "adapter" / "adapter_model.safetensors", "np") as file:
        changes = [file.get_tensor(name) for name in file.keys() if "lora_B" in name]  # noqa: SIM118
    assert all(change.any() for change in changes)
    assert any("too short to learn: optimiser steps 1" in line for line in said)


def test_too_long_pairs_are_refused_not_cut(started: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="8 of 8 examples are longer than max_length 32"):
        train_dpo(TrainingRun("dpo", preference(max_length=32), str(started), tmp_path, 0), pairs())


def test_a_training_does_not_overwrite_its_start(started: Path) -> None:
    with pytest.raises(ConfigError, match="both the start and the target"):
        train_dpo(TrainingRun("dpo", preference(), str(started), started, 0), pairs())


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf"))


def test_an_export_keeps_the_trained_change(gguf: str, tmp_path: Path) -> None:
    trained = tmp_path / "trained"
    warm_start(steps(8), supervised(gguf), target=trained, seed=0)
    report = export_policy(str(trained))
    assert report.trained_change > 0
    assert [written.form for written in report.exported] == ["safetensors", "gguf"]
    assert all(written.correlation > 0.99 for written in report.exported)
    assert ensure_gguf(policy_files(str(trained)), "f16") == trained / "policy.gguf"


@pytest.mark.long
def test_the_gguf_of_a_fully_trained_policy_keeps_the_trained_change(
    gguf: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file for the engine changes the logits as the trained weights do."""
    trained = tmp_path / "trained"
    monkeypatch.setattr("branchwise.weights.policies.packaged_gguf", lambda: Path(gguf))
    warm_start(steps(8), supervised(gguf, lora=None, lr=1e-3), target=trained, seed=0)
    file = ensure_gguf(policy_files(str(trained)), "f16")
    (start, tokenizer), (whole, _), (read, _) = (
        load_policy(policy_files(str(one))) for one in (gguf, trained, file)
    )
    prompts = export.proof_prompts(tokenizer)
    before = export.logits(start, prompts)
    change = export.logits(whole, prompts) - before
    assert export.survival(change, export.logits(read, prompts) - before)[0] > 0.99


def test_a_model_that_the_embedded_engine_cannot_run_is_exported_without_gguf(
    started: Path, tmp_path: Path
) -> None:
    trained = shutil.copytree(started, tmp_path / "trained")
    report = export_policy(str(trained))
    assert [written.form for written in report.exported] == ["safetensors"]
    assert "llama.block_count" in (report.left_out or "")
    assert not (trained / "policy.gguf").exists()


def test_an_export_of_the_untrained_policy_is_refused(
    started: Path, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such an export is what an engine that ignores adapters would run."""
    untrained, _ = load_policy(policy_files(base))

    def forgetful(model: Any, source: Path, target: Path, precision: str) -> None:
        untrained.save_pretrained(str(target / "policy.gguf"))  # read back as a folder

    monkeypatch.setattr(export, "_write_gguf", forgetful)
    monkeypatch.setattr(export, "check_embedded", lambda files: None)
    with pytest.raises(StorageError, match=r"policy.gguf: the trained change .* is lost"):
        export_policy(str(shutil.copytree(started, tmp_path / "trained")))


def test_an_adapter_folder_names_no_path_of_the_machine(started: Path) -> None:
    config = json.loads((started / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] is None
    assert config["target_modules"] == sorted(config["target_modules"]), "the order is fixed"
    assert not (started / "adapter" / "README.md").exists()
