"""The trainer of outcome RL on a random Llama: TRL's gradients, resuming, non-finite updates."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from training_settings import training_settings

from branchwise.base.errors import BudgetExceeded, TrainingError
from branchwise.training.curves import read_metrics
from branchwise.training.grpo.batch_metrics import BatchMetrics
from branchwise.training.grpo.rollouts import PolicyCall, RolloutBatch, TrainingRollout
from branchwise.training.grpo.train import grpo_trainer, train_grpo
from branchwise.training.packing import StepTokens
from branchwise.training.settings import TrainingSettings
from branchwise.training.training_run import TrainingRun
from branchwise.weights.policies import load_policy, policy_files

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("one_thread", "shared_cache")]


WANTED = 4242
"""Token id that these tests reward."""


@dataclass
class RandomRollouts:
    """Source of two-call rollouts with random tokens; the half that ends with WANTED is rewarded.

    Attributes:
        stop_at: Batch before which a limit is reached. None: never.
        reward: Reward of every rollout. None: 1 if it ends with WANTED, otherwise 0.
        passages: Number of further tokens in every prompt.
    """

    stop_at: int | None = None
    reward: float | None = None
    passages: int = 0
    drawn: list[int] = field(default_factory=list)
    models: list[Any] = field(default_factory=list)

    def collect(self, number: int, model: Any) -> RolloutBatch:
        if number == self.stop_at:
            raise BudgetExceeded("limits.max_tokens reached")
        self.drawn.append(number)
        self.models.append(model)
        groups = [[self._rollout(number, q, draw) for draw in range(4)] for q in range(2)]
        mean = sum(one.reward for group in groups for one in group) / 8
        return RolloutBatch(groups, BatchMetrics(reward=mean, rollouts=8.0))

    def _rollout(self, number: int, question: int, draw: int) -> TrainingRollout:
        rng = random.Random(f"{number}:{question}:{draw}")
        prompt = (1, 2, 3, 100 + question, *[9] * self.passages)
        first = tuple(rng.choices(range(5000), k=3))
        second = (*rng.choices(range(5000), k=2), WANTED if draw % 2 else 77)
        calls = (
            PolicyCall(StepTokens(prompt, first), (-9.0,) * 3),
            PolicyCall(StepTokens((*prompt, *first, 5, 6), second), (-9.0,) * 3),
        )
        paid = float(draw % 2) if self.reward is None else self.reward
        return TrainingRollout(str(question), calls, paid)


def settings(**changes: Any) -> TrainingSettings:
    fields = {"batches": 3, "batch_questions": 2, "group_size": 4, "lr": 5e-3}
    return training_settings("grpo", **{**fields, **changes})


def train(source: RandomRollouts, base: str, target: Path, said: Any = None, **changes: Any) -> Any:
    log = said.append if said is not None else lambda line: None
    run = TrainingRun("grpo", settings(**changes), base, target, 0, log=log)
    return train_grpo(run, source, temperature=1.0, deciding=("questions",))


def curve(target: Path) -> list[tuple[float, float]]:
    return [(line["loss"], line["grad_norm"]) for line in read_metrics(target)]


def trainer_on(base: str, folder: Path, temperature: float = 1.0, **changes: Any) -> Any:
    run = TrainingRun("grpo", settings(**changes), base, folder, 0)
    return grpo_trainer(run, RandomRollouts(), temperature)


def logps_of(trainer: Any, wanted: tuple[int, ...]) -> float:
    """Returns the log-probability of WANTED after a prompt."""
    import torch

    ids = torch.tensor([wanted])
    with torch.no_grad():
        logits = trainer.model(input_ids=ids).logits[0, -1]
    return float(logits.log_softmax(-1)[WANTED])


def test_a_rewarded_token_becomes_likelier(base: str, tmp_path: Path) -> None:
    trainer = trainer_on(base, tmp_path)
    before = logps_of(trainer, (1, 2, 3, 100))
    trainer.train()
    assert logps_of(trainer, (1, 2, 3, 100)) > before + 0.5


def test_training_works_without_a_padding_token(base: str, tmp_path: Path) -> None:
    trainer = trainer_on(base, tmp_path, batches=1, packed=False)
    trainer.processing_class.pad_token = None
    trainer.train()
    assert trainer.state.global_step == 1


def test_each_batch_is_drawn_once_for_several_updates(base: str, tmp_path: Path) -> None:
    source = RandomRollouts()
    report = train(source, base, tmp_path, updates=2)
    assert (source.drawn, report.steps) == ([0, 1, 2], 6)
    assert report.summary().startswith("24 rollouts, 6 steps, ")
    assert ", reward 0.500 → 0.500 (first and last quarter)" in report.summary()
    assert [("reward" in line) for line in read_metrics(tmp_path)] == [True, False] * 3


@pytest.mark.parametrize(("packed", "tokens"), [(True, 3 + 2 * (1 + 4 * 8)), (False, 8 * (7 + 12))])
def test_the_curve_counts_the_tokens_of_the_forward_passes(
    packed: bool, tokens: int, base: str, tmp_path: Path
) -> None:
    chosen = settings(batches=1).model_copy(update={"packed": packed})
    run = TrainingRun("grpo", chosen, base, tmp_path, 0)
    train_grpo(run, RandomRollouts(), temperature=1.0, deciding=())
    (line,) = read_metrics(tmp_path)
    assert line["trained_tokens"] == tokens


@pytest.mark.parametrize("changes", [{"micro_tokens": 1024}, {"eval_every": 2}])
def test_a_training_resumes_with_settings_that_do_not_affect_it(
    changes: Mapping[str, Any], base: str, tmp_path: Path
) -> None:
    with pytest.raises(BudgetExceeded):
        train(RandomRollouts(stop_at=2), base, tmp_path)
    again = RandomRollouts()
    train(again, base, tmp_path, **changes)
    assert again.drawn == [2]


@pytest.mark.parametrize("changes", [{}, {"updates": 2, "beta": 0.1, "kl": "k2"}])
def test_a_resumed_training_has_the_uninterrupted_curve_and_adapter(
    changes: Mapping[str, Any], base: str, tmp_path: Path
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(RandomRollouts(), base, whole, **changes)
    with pytest.raises(BudgetExceeded):
        train(RandomRollouts(stop_at=2), base, stopped, **changes)
    again = RandomRollouts()
    train(again, base, stopped, **changes)
    assert again.drawn == [2]
    assert curve(stopped) == curve(whole)
    adapter = "adapter/adapter_model.safetensors"
    assert (stopped / adapter).read_bytes() == (whole / adapter).read_bytes()


def test_packed_and_padded_rows_give_the_same_curve(base: str, tmp_path: Path) -> None:
    for packed in (True, False):
        train(RandomRollouts(), base, tmp_path / str(packed), packed=packed, beta=0.1, kl="k3")
    assert curve(tmp_path / "True")[0] == pytest.approx(curve(tmp_path / "False")[0], rel=1e-3)


def test_micro_batches_do_not_change_the_gradient(base: str, tmp_path: Path) -> None:
    for most in (256, 4096):
        train(RandomRollouts(), base, tmp_path / str(most), micro_tokens=most, max_tokens=None)
    one, other = curve(tmp_path / "256")[0], curve(tmp_path / "4096")[0]
    assert one == pytest.approx(other, rel=1e-3, abs=1e-6)


def test_a_batch_without_spread_leaves_the_weights_unchanged(base: str, tmp_path: Path) -> None:
    said: list[str] = []
    trainer = trainer_on(base, tmp_path)
    before = {name: p.clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
    trainer.source, trainer.print_line = RandomRollouts(reward=1.0), said.append
    trainer.train()
    after = dict(trainer.model.named_parameters())
    assert all(bool((after[name] == p).all()) for name, p in before.items())
    assert ["no group has spread" in line for line in said[:3]] == [True] * 3


def test_calls_longer_than_max_length_are_counted_and_named(base: str, tmp_path: Path) -> None:
    said: list[str] = []
    report = train(RandomRollouts(passages=24), base, tmp_path, said, max_length=32, batches=1)
    (line,) = [line for line in said if "max_length" in line]
    (measured,) = read_metrics(tmp_path)
    assert report.dropped == measured["too_long"] == 8, "the second call of eight rollouts"
    assert measured["rows"] == 8
    assert f"{report.dropped} calls are left out" in line
    assert not any("no group has spread" in line for line in said)


def test_non_finite_updates_are_skipped_and_three_in_a_row_end_the_training(
    base: str, tmp_path: Path
) -> None:
    said: list[str] = []

    class Unsound(RandomRollouts):
        def collect(self, number: int, model: Any) -> RolloutBatch:
            batch = super().collect(number, model)
            if number < 1:
                return batch
            first, *others = batch.groups[0]
            call = replace(first.calls[0], logprobs=(math.nan,) * 3)
            return RolloutBatch([[replace(first, calls=(call,)), *others]])

    with pytest.raises(TrainingError, match="3 updates in a row"):
        train(Unsound(), base, tmp_path, said, batches=5, ratio="engine")
    lines = read_metrics(tmp_path)
    assert [line.get("lost_updates") for line in lines] == [None, 1, 1]
    lost = [line for line in said if "not finite" in line]
    assert lost and all("left out" in line for line in lost)


@pytest.mark.parametrize("resumed", [False, True])
def test_a_falling_answer_rate_is_logged_once(resumed: bool, base: str, tmp_path: Path) -> None:
    class Silent(RandomRollouts):
        def collect(self, number: int, model: Any) -> RolloutBatch:
            batch = super().collect(number, model)
            rate = [0.9, 0.5, 0.4, 0.1][number]
            return RolloutBatch(batch.groups, BatchMetrics(answer_rate=rate))

    said: list[str] = []
    if resumed:
        with pytest.raises(BudgetExceeded):
            train(Silent(stop_at=2), base, tmp_path, said, batches=4)
    train(Silent(), base, tmp_path, said, batches=4)
    assert [line for line in said if "40 % of its rollouts, 90 % in the first" in line]
    assert sum("learning not to answer" in line for line in said) == 1


def test_the_ratio_can_use_the_engines_logprobs(base: str, tmp_path: Path) -> None:
    """The engine's logprobs are far from the trainer's here, so tokens are clipped."""
    train(RandomRollouts(), base, tmp_path, ratio="engine", batches=1)
    (line,) = read_metrics(tmp_path)
    assert line["engine_gap"] > 1 and line["clip_share"] > 0


def test_a_stage_continues_from_the_adapter_of_the_previous_stage(
    base: str, tmp_path: Path
) -> None:
    train(RandomRollouts(), base, tmp_path / "first")
    adapter = tmp_path / "first" / "adapter"
    run = TrainingRun("grpo", settings(), base, tmp_path / "second", 0)
    second = grpo_trainer(run, RandomRollouts(), 1.0, begin_with=adapter)
    ended, _ = load_policy(policy_files(str(tmp_path / "first")))

    class Shell:
        model = ended

    prompt = (1, 2, 3, 100)
    assert logps_of(second, prompt) == pytest.approx(logps_of(Shell, prompt), abs=1e-4)


class TestAgainstTrl:
    """Gradients of one update compared with TRL's, on rows of one call per rollout."""

    CALLS = (
        (StepTokens((1, 2, 3, 100), (9, 8, 7)), 0.7),
        (StepTokens((1, 2, 3, 100), (6, WANTED)), -1.1),
        (StepTokens((1, 2, 101), (5, 4, 3, 2)), 0.4),
        (StepTokens((1, 2, 101), (7, 3)), 0.0),  # of a group without spread
    )

    @pytest.mark.parametrize(
        ("ours", "theirs"),
        [
            pytest.param({}, {"loss_type": "grpo"}, id="grpo"),
            pytest.param({"aggregation": "token"}, {"loss_type": "bnpo"}, id="per token"),
            pytest.param({"beta": 0.3}, {"loss_type": "grpo", "beta": 0.3}, id="k3"),
            pytest.param({"temperature": 0.7}, {"temperature": 0.7}, id="temperature"),
        ],
    )
    @pytest.mark.parametrize("stale", [False, True])
    def test_gradients_equal_those_of_trl(
        self,
        ours: Mapping[str, Any],
        theirs: Mapping[str, Any],
        stale: bool,
        base: str,
        tmp_path: Path,
    ) -> None:
        own, adapter = self._own(base, tmp_path, ours, stale)
        trl = self._trl(base, tmp_path, theirs, stale, adapter)
        assert own.keys() == trl.keys()
        assert sum(float(g.abs().sum()) for g in trl.values()) > 0
        for name, gradient in own.items():
            scale = float(trl[name].abs().max())
            assert float((gradient - trl[name]).abs().max()) <= 1e-4 * scale + 1e-7, name

    def _own(
        self, base: str, folder: Path, changes: Mapping[str, Any], stale: bool
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        from branchwise.training.grpo.rollouts import rows_of

        fields = dict(changes)
        temperature = fields.pop("temperature", 1.0)
        trainer = trainer_on(base, folder, temperature, **fields)
        randomise_adapter(trainer.model)
        rollouts = [TrainingRollout("q", (PolicyCall(tokens),), 0.0) for tokens, _ in self.CALLS]
        advantages = [[a] * len(tokens.step) for tokens, a in self.CALLS]
        settings = trainer.settings
        rows = rows_of(
            list(zip(rollouts, advantages, strict=True)),
            aggregation=settings.aggregation,
            has_kl=settings.beta > 0,
        )
        asked = [row.tokens for row in rows]
        if settings.beta:
            trainer.reference_logps = trainer._start_logps(asked)
        trainer.old_logps = OLD if stale else None
        trainer._learn(trainer.model, rows)
        return gradients(trainer.model), {
            name: p.detach().clone() for name, p in trainer.model.named_parameters()
        }

    def _trl(
        self,
        base: str,
        folder: Path,
        changes: Mapping[str, Any],
        stale: bool,
        adapter: Mapping[str, Any],
    ) -> dict[str, Any]:
        import torch
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        from branchwise.training.arguments import check_has_lora, lora_config

        model, tokenizer = load_policy(policy_files(base))
        fields = {"loss_type": "grpo", "beta": 0.0, "temperature": 1.0, **changes}
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
            args=GRPOConfig(
                output_dir=str(folder / "trl"),
                per_device_train_batch_size=4,
                num_generations=4,
                use_cpu=True,
                bf16=False,
                report_to="none",
                use_bias_correction_kl=False,
                **fields,
            ),
            train_dataset=Dataset.from_list([{"prompt": "a"}]),
            processing_class=tokenizer,
            peft_config=lora_config(check_has_lora(settings())),
        )
        with torch.no_grad():
            for name, parameter in trainer.model.named_parameters():
                parameter.copy_(adapter[name])
        trainer.current_gradient_accumulation_steps = 1
        prompts = [tokens.prompt for tokens, _ in self.CALLS]
        steps = [tokens.step for tokens, _ in self.CALLS]
        inputs = {
            "prompt_ids": padded(prompts, left=True),
            "prompt_mask": padded([[1] * len(p) for p in prompts], left=True),
            "completion_ids": padded(steps),
            "completion_mask": padded([[1] * len(s) for s in steps]),
            "advantages": torch.tensor([a for _, a in self.CALLS]),
        }
        if stale:
            inputs["old_per_token_logps"] = padded([OLD[tokens] for tokens, _ in self.CALLS])
        if fields["beta"]:
            whole = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
            mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
            with torch.no_grad(), trainer.model.disable_adapter():
                inputs["ref_per_token_logps"] = trainer._get_per_token_logps_and_entropies(
                    trainer.model, whole, mask, inputs["completion_ids"].size(1)
                )[0]
        trainer.model.train()
        trainer._compute_loss(trainer.model, inputs).backward()
        return gradients(trainer.model)


OLD = {
    tokens: tuple(-11.0 + 0.3 * place for place in range(len(tokens.step)))
    for tokens, _ in TestAgainstTrl.CALLS
}
"""Log-probabilities of an older policy, so that some ratios are clipped."""


def randomise_adapter(model: Any) -> None:
    """Replaces the zeros that an adapter starts with by random numbers."""
    import torch

    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)


def gradients(model: Any) -> dict[str, Any]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def padded(rows: Any, *, left: bool = False) -> Any:
    import torch

    longest = max(map(len, rows))
    filled = ([0] * (longest - len(row)) for row in rows)
    return torch.tensor(
        [[*f, *row] if left else [*row, *f] for row, f in zip(rows, filled, strict=True)]
    )
