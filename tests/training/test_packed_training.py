"""Packed training on a small random Llama: equal curves, resuming, cached reference."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from killed_training import killed_at
from sample_records import a_pair
from tiny_llama import random_llama
from training_settings import training_settings

from branchwise.training.arguments import in_bfloat16
from branchwise.training.curves import read_metrics
from branchwise.training.examples import StepExample
from branchwise.training.packing import StepTokens, enable_packed_forward, packed_batch
from branchwise.training.preference.dpo import train_dpo
from branchwise.training.settings import TrainingSettings
from branchwise.training.sft import train_on_steps
from branchwise.training.training_run import TrainingRun
from branchwise.types import Message, Pair

pytestmark = [
    pytest.mark.model,
    pytest.mark.usefixtures("one_thread", "shared_cache", "frequent_checkpoints"),
]


def turn(text: str) -> tuple[Message, ...]:
    return (Message(role="assistant", content=text),)


def pairs(n: int = 8) -> list[Pair]:
    """Returns three pairs per set of three siblings, so that states and steps recur."""
    steps = ["<query>a</query>", "<query>a longer place</query>", "<answer>no idea</answer>"]
    better, worse = (steps[0], steps[0], steps[1]), (steps[1], steps[2], steps[2])
    return [
        a_pair(
            pair_id=str(i),
            question_id=f"q{i // 3}",
            prompt=(
                Message(role="system", content="Answer."),
                Message(role="user", content=f"Question: {'very ' * (i // 3)}far?"),
            ),
            chosen=turn(better[i % 3]),
            rejected=turn(worse[i % 3]),
        )
        for i in range(n)
    ]


def preference(**changes: Any) -> TrainingSettings:
    fields = {"batch_size": 8, "micro_batch": 8, "epochs": 3, "lr": 5e-3}
    return training_settings("dpo", **{**fields, **changes})


def curve(target: Path, *names: str) -> list[list[float]]:
    return [[line[name] for name in names] for line in read_metrics(target)]


METRICS = ("loss", "kl", "margin", "chosen_logps", "rejected_logps", "entropy", "grad_norm")


@pytest.mark.parametrize("reference", ["start", "none"])
def test_packed_preference_training_has_the_curve_of_the_stock_trainer(
    base: str, tmp_path: Path, reference: str
) -> None:
    arms: dict[str, dict[str, Any]] = {
        "stock": {"packed": False}, "packed": {}, "in parts": {"micro_batch": 2}
    }  # fmt: skip
    for name, changes in arms.items():
        settings = preference(reference=reference, **changes)
        train_dpo(TrainingRun("dpo", settings, base, tmp_path / name, 0), pairs())
    stock, packed = (curve(tmp_path / name, *METRICS) for name in ("stock", "packed"))
    for one, other in zip(packed, stock, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-4)
    assert stock[-1][0] < 0.9 * stock[0][0], "the policy must learn, or later steps compare nothing"
    if reference == "start":
        assert packed[0][0] == pytest.approx(math.log(2), abs=1e-6)
    whole, parts = (curve(tmp_path / name, "loss", "kl") for name in ("packed", "in parts"))
    for one, other in zip(parts, whole, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-4)
    [stock_tokens], [packed_tokens] = (
        curve(tmp_path / name, "tokens")[-1] for name in ("stock", "packed")
    )
    assert packed_tokens < stock_tokens / 2


def test_bfloat16_training_approximates_the_float32_curve(base: str, tmp_path: Path) -> None:
    for precision in ("float32", "bfloat16"):
        settings = preference(precision=precision)
        train_dpo(TrainingRun("dpo", settings, base, tmp_path / precision, 0), pairs())
    exact, rounded = (curve(tmp_path / name, "loss") for name in ("float32", "bfloat16"))
    assert rounded != exact
    for one, other in zip(rounded, exact, strict=True):
        assert one == pytest.approx(other, abs=0.02)
    assert rounded[-1][0] < 0.9 * rounded[0][0]


@pytest.mark.parametrize(
    ("able", "faster"),
    [
        ({"cpu_name": "AMD EPYC", "avx512_bf16": True}, True),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True}, False),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}, True),
        ({"cpu_name": "AMD EPYC", "avx512_bf16": False}, False),
        ({"architecture": "aarch64"}, False),
    ],
)
def test_auto_precision_is_bfloat16_if_the_processor_is_faster_in_it(
    able: dict[str, Any], faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    assert in_bfloat16("auto") == faster
    assert not in_bfloat16("float32")
    assert in_bfloat16("bfloat16")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert in_bfloat16("auto")


def test_the_supervised_term_keeps_the_chosen_step_likely(base: str, tmp_path: Path) -> None:
    for name, changes in {
        "alone": {},
        "packed": {"sft_weight": 1.0},
        "stock": {"sft_weight": 1.0, "packed": False},
    }.items():
        train_dpo(TrainingRun("dpo", preference(**changes), base, tmp_path / name, 0), pairs())
    alone, packed, stock = (
        curve(tmp_path / name, "loss", "chosen_logps", "margin")
        for name in ("alone", "packed", "stock")
    )
    for one, other in zip(packed, stock, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-4)
    assert packed[0][0] > alone[0][0]
    assert packed[-1][1] > alone[-1][1]
    assert packed[-1][2] > 0


def test_packed_supervised_training_has_the_curve_of_the_padded_one(
    base: str, tmp_path: Path
) -> None:
    examples = [
        StepExample(
            (Message("system", "Answer."), Message("user", f"Question: {'very ' * (i % 4)}{i}?")),
            f"<query>number {'and ' * (i % 3)}{i}</query>",
            str(i),
            "reasoning",
        )
        for i in range(8)
    ]
    for packed in (True, False):
        settings = training_settings(
            "sft", batch_size=4, micro_batch=2, lr=5e-3, epochs=2, packed=packed
        )
        train_on_steps(TrainingRun("sft", settings, base, tmp_path / str(packed), 0), examples)
    names = ("loss", "grad_norm")
    packed_curve, padded_curve = (curve(tmp_path / str(p), *names) for p in (True, False))
    assert len(packed_curve) == 4
    for one, other in zip(packed_curve, padded_curve, strict=True):
        assert one == pytest.approx(other, rel=1e-3)
    [most], [least] = (curve(tmp_path / str(p), "tokens")[-1] for p in (False, True))
    assert least < most


def test_a_resumed_preference_training_has_the_uninterrupted_curve(
    base: str, tmp_path: Path
) -> None:
    """The training is killed within its second epoch, so its order of pairs must be restored."""
    settings = preference(batch_size=2, micro_batch=1)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train_dpo(TrainingRun("dpo", settings, base, whole, 0), pairs())
    with killed_at(7):
        train_dpo(TrainingRun("dpo", settings, base, killed, 0), pairs())
    train_dpo(TrainingRun("dpo", settings, base, killed, 0, resume=True), pairs())
    seen, uninterrupted = (curve(t, "step", "loss", "kl", "lr") for t in (killed, whole))
    assert [line[0] for line in seen] == list(range(1, 13))
    assert seen == uninterrupted


def test_reference_logps_are_computed_once_for_all_seeds_and_labels(
    base: str, tmp_path: Path
) -> None:
    swapped = [
        pair.model_copy(update={"chosen": pair.rejected, "rejected": pair.chosen})
        for pair in reversed(pairs(7))
    ]
    said: list[str] = []
    settings = preference(epochs=1)
    for seed, rows in enumerate((pairs(7), swapped)):
        target = tmp_path / str(seed)
        train_dpo(TrainingRun("dpo", settings, base, target, seed, log=said.append), rows)
        assert curve(target, "loss")[0][0] == pytest.approx(math.log(2), abs=1e-6)
    told = [line for line in said if line.startswith("reference: ")]
    assert ["computed" in told[0], "read from" in told[1]] == [True, True]


def test_held_out_pairs_are_scored_and_not_trained_on(base: str, tmp_path: Path) -> None:
    rows, said, found = pairs(24), list[str](), []
    for packed in (True, False):
        settings = preference(batch_size=24, micro_batch=24, holdout=0.5, epochs=4, packed=packed)
        target = tmp_path / str(packed)
        report = train_dpo(TrainingRun("dpo", settings, base, target, 1, log=said.append), rows)
        record = json.loads((target / "training.json").read_text())["report"]
        found.append([record["holdout"][name] for name in ("pairs", "accuracy", "margin", "loss")])
        assert report.holdout is not None
        assert (report.examples + report.holdout.pairs, report.dropped) == (len(rows), 0)
        assert f"{report.holdout.pairs} held-out pairs: accuracy" in said[-1]
    assert found[0] == pytest.approx(found[1], rel=1e-3)
    # All questions have the same preferences, so training on some generalises to the others.
    assert found[0][1] > 0.9
    assert found[0][2] > 0.05


def test_calls_of_one_turn_share_their_prefix(base: str, tmp_path: Path) -> None:
    calls = [
        StepExample(
            (Message("user", f"Question {q}?"), *turn(f"passage {q} " * 30 + "go on ") * n),
            "x]",
            q,
            "",
        )
        for n in range(3)
        for q in "abcdef"
    ]
    settings = training_settings("sft", batch_size=3, micro_batch=3)
    for name, stops in (("apart", ()), ("together", ("]",))):
        run = TrainingRun("sft", settings, base, tmp_path / name, 0)
        train_on_steps(run, calls, stops=stops)
    apart, together = (read_metrics(tmp_path / n)[-1]["tokens"] for n in ("apart", "together"))
    assert together < 0.8 * apart


def test_gradients_are_deterministic_on_two_threads() -> None:
    """Nondeterminism would give a resumed training other weights and other rollouts."""
    import torch

    model = random_llama()
    enable_packed_forward(model)
    prompt = tuple(range(50))
    batch = packed_batch([StepTokens(prompt, tuple(range(n, n + 40))) for n in range(100, 140)], 0)
    tree = {name: value for name, value in batch.items() if name.startswith("tree")}
    torch.manual_seed(0)
    weights = torch.randn(40, 41, model.config.hidden_size)
    gradients = set()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    for _ in range(8):
        model.zero_grad()
        states = model.base_model(input_ids=batch["input_ids"], **tree).last_hidden_state
        (states * weights).sum().backward()
        gradients.add(model.base_model.norm.weight.grad.numpy().tobytes())
    torch.set_num_threads(threads)
    assert len(gradients) == 1
