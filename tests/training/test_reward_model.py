"""Reward-model heads on random vectors: training, independence and metrics."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from branchwise.base.errors import ConfigError
from branchwise.modeling.embedding import Prefix
from branchwise.rewards.evo_rag.schedule import weights
from branchwise.rewards.outcome import Label
from branchwise.rewards.reward_model.heads import Heads
from branchwise.rewards.reward_model.model import read_record
from branchwise.rewards.settings import REWARDS, EvoRagSettings
from branchwise.runs.recipe import Recipe
from branchwise.training.reward_model.comparisons import (
    SiblingComparison,
    orders,
    return_gaps,
    split_questions,
)
from branchwise.training.reward_model.metrics import Steps, measure
from branchwise.training.reward_model.train import (
    RewardTrainingData,
    _steps,
    fit_heads,
    head_losses,
    train_reward_model,
)
from branchwise.training.settings import RewardModelSettings
from branchwise.types import Component, Message

WIDTH = 24
SCHEME = Recipe(name="x", rewards=EvoRagSettings()).scheme
SETTINGS = RewardModelSettings(epochs=20, lr=0.02)


def vectors(n: int = 400) -> Any:
    """Returns step vectors that are far from standardised."""
    random = np.random.default_rng(0)
    scale, shift = random.uniform(0.01, 30, WIDTH), random.normal(0, 50, WIDTH)
    return (random.normal(size=(n, WIDTH)) * scale + shift).astype(np.float32)


def comparisons(steps: Any, *, without: Sequence[str] = ()) -> list[SiblingComparison]:
    """Returns pairs of neighbours, four per question; column k sets the return of component k."""
    exact = (steps - steps.mean(0)) / steps.std(0)
    found = []
    for i in range(0, len(steps) - 1, 2):
        by_column = exact[i] - exact[i + 1]
        gaps = {name: float(by_column[k]) for k, name in enumerate(REWARDS) if name not in without}
        total = sum(gaps.values())
        better, worse = (i, i + 1) if total > 0 else (i + 1, i)
        sign = 1 if total > 0 else -1
        signed: dict[str, float] = {name: sign * gap for name, gap in gaps.items()}
        found.append(SiblingComparison(f"q{i // 8}", i % 5, better, worse, signed, abs(total)))
    return found


def steps_of(found: Any, lengths: Any = None) -> Steps:
    settings = EvoRagSettings()
    scales = {t: weights(settings, t / 10) for t in range(5)}
    return Steps(found, np.zeros(len(found), np.int64) if lengths is None else lengths, scales)


def test_the_loss_of_each_head_is_the_mean_over_its_own_pairs() -> None:
    margins = torch.tensor([[1.0, -2.0, 0.0], [3.0, 0.5, 1.0]])
    signs = torch.tensor([[1.0, -1.0, 0.0], [0.0, 1.0, 0.0]])
    one, two, none = head_losses(margins, signs).tolist()
    assert one == pytest.approx(math.log(1 + math.exp(-1)))
    # The second head's label prefers the worse side of the first pair, by which it is 2 ahead.
    expected = (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(-0.5))) / 2
    assert two == pytest.approx(expected)
    assert none == 0.0


def test_every_head_learns_the_order_of_its_own_component() -> None:
    found = vectors(1600)
    trained, kept = split_questions(comparisons(found), 0.2)
    heads = fit_heads(found, trained, SETTINGS, seed=0)
    measured = measure(heads, steps_of(found), trained, kept, SETTINGS)
    assert [head.name for head in measured.heads] == list(REWARDS)
    for k, head in enumerate(measured.heads):
        assert heads.weight[k].argmax() == k, "component k was made from column k"
        assert head.accuracy is not None
        assert head.accuracy > 0.9
        assert head.pairs == len(kept)
        assert head.loss is not None
        assert head.loss < 0.4, "ln 2 is the loss of an untrained head"
    assert heads.standardised(found).std(axis=0) == pytest.approx(np.ones(7), abs=0.1)


def test_a_head_does_not_depend_on_the_labels_of_the_others() -> None:
    found = vectors()
    pairs = comparisons(found)
    whole = fit_heads(found, pairs, SETTINGS, seed=0)
    turned = [replace(one, gaps={**one.gaps, "overlap": -one.gaps["overlap"]}) for one in pairs]
    without = [replace(one, gaps={**one.gaps, "overlap": 0.0}) for one in pairs]
    place = REWARDS.index("overlap")
    others = [k for k in range(len(REWARDS)) if k != place]
    for changed in (turned, without):
        heads = fit_heads(found, changed, SETTINGS, seed=0)
        assert np.array_equal(heads.weight[others], whole.weight[others]), "bit-identical"
        assert not np.array_equal(heads.weight[place], whole.weight[place])


def test_the_gradient_of_one_head_is_zero_for_the_others() -> None:
    weight = torch.randn(7, WIDTH, requires_grad=True)
    margins = torch.randn(30, WIDTH) @ weight.T
    head_losses(margins, torch.randn(30, 7).sign())[3].backward()
    assert weight.grad is not None
    moved = weight.grad.abs().sum(dim=1) > 0
    assert moved.tolist() == [k == 3 for k in range(7)]


def test_the_same_seed_gives_bit_identical_heads() -> None:
    found = vectors()
    pairs = comparisons(found)
    one, again, other = (fit_heads(found, pairs, SETTINGS, seed) for seed in (0, 0, 1))
    assert one.digest == again.digest
    assert one.digest != other.digest


def test_ties_and_unknown_returns_are_not_learned() -> None:
    found = vectors()
    pairs = comparisons(found, without=("refusal",))
    pairs = [replace(one, gaps={**one.gaps, "backtrack": 1e-12}) for one in pairs]
    trained, kept = split_questions(pairs, 0.2)
    heads = fit_heads(found, trained, SETTINGS, seed=0)
    measured = measure(heads, steps_of(found), trained, kept, SETTINGS)
    silent = {"refusal", "backtrack"}
    for k, head in enumerate(measured.heads):
        assert (head.trained == 0, head.pairs == 0) == (head.name in silent,) * 2
        assert (head.loss is None) == (head.accuracy is None) == (head.name in silent)
        assert bool(heads.weight[k].any()) == (head.name not in silent)
    assert not heads.standardised(found)[:, REWARDS.index("refusal")].any(), (
        "untrained heads score 0"
    )
    known = [head.loss for head in measured.heads if head.loss is not None]
    assert measured.loss == pytest.approx(sum(known) / 5)
    with pytest.raises(ConfigError, match="none of 3 pairs orders any head"):
        fit_heads(found, [replace(one, gaps={}) for one in pairs[:3]], SETTINGS, seed=0)


def test_heads_labelled_by_the_total_score_like_the_single_head(tmp_path: Path) -> None:
    found = vectors()
    pairs = comparisons(found)
    paper = SETTINGS.model_copy(update={"labels": "total"})
    single = SETTINGS.model_copy(update={"heads": "single"})
    seven, one = (fit_heads(found, pairs, s, seed=0) for s in (paper, single))
    assert (seven.weight.shape, one.weight.shape) == ((7, WIDTH), (1, WIDTH))
    for k in range(7):
        np.testing.assert_allclose(seven.weight[k], one.weight[0], rtol=1e-4, atol=1e-6)
    late = [weights(EvoRagSettings(), 0.9)] * len(found)
    np.testing.assert_allclose(
        seven.scores(found, late), one.scores(found, late), rtol=1e-3, atol=1e-4
    )
    one.save(tmp_path / "heads.safetensors")
    assert Heads.load(tmp_path / "heads.safetensors").digest == one.digest


def test_a_component_may_order_siblings_unlike_the_total() -> None:
    better = Label(2.0, 1, components("retrieval", 3.0, "step", -4.0, "refusal", None))
    worse = Label(1.0, 1, components("retrieval", 1.0, "step", -1.0, "refusal", 1.0))
    gaps = return_gaps(better, worse)
    assert gaps == {"retrieval": 2.0, "step": -3.0}, "None on one side gives no comparison"
    one = SiblingComparison("q", 0, 0, 1, gaps, 1.0)
    by_component = dict(zip(REWARDS, orders([one], SETTINGS)[0], strict=True))
    assert {name: sign for name, sign in by_component.items() if sign} == {
        "retrieval": 1,
        "step": -1,
    }
    total = SETTINGS.model_copy(update={"labels": "total"})
    assert orders([one], total).tolist() == [[1.0] * 7]


def components(*named: Any) -> tuple[Component, ...]:
    """Builds the named component returns, each with a raw value that must not be read."""
    both = zip(named[::2], named[1::2], strict=True)
    return tuple(
        component
        for name, value in both
        for component in (
            Component(name=name, value=99.0),
            Component(name=f"{name}_return", value=value),
        )
    )


def test_whole_questions_are_split_into_training_and_validation() -> None:
    pairs = comparisons(vectors())
    trained, kept = split_questions(pairs, 0.2)
    assert len(trained) + len(kept) == len(pairs)
    of_kept = {one.question_id for one in kept}
    assert of_kept.isdisjoint(one.question_id for one in trained)
    assert 0.1 < len(of_kept) / 50 < 0.3
    assert split_questions(pairs[::-1], 0.2)[1] == kept[::-1]
    assert split_questions(pairs, 0.0)[1] == []
    others = split_questions(pairs, 0.2, split=1)[1]
    assert {p.question_id for p in others} != {p.question_id for p in kept}


def test_the_length_baseline_prefers_the_length_that_won_in_training() -> None:
    found = vectors(8)
    heads = fit_heads(found, comparisons(found), SETTINGS, seed=0)
    # Of three trained pairs the better side is shorter twice; of two kept ones, never and a tie.
    trained = [
        SiblingComparison("a", 0, 0, 1, {"step": 1.0}, 1.0),
        SiblingComparison("a", 0, 0, 2, {}, 1.0),
    ]
    trained.append(SiblingComparison("a", 0, 3, 0, {"step": -1.0}, 1.0))
    kept = [
        SiblingComparison("b", 0, 4, 5, {"step": 1.0}, 1.0),
        SiblingComparison("b", 0, 6, 7, {}, 1.0),
    ]
    lengths = np.array([10, 20, 30, 40, 9, 5, 7, 7])
    measured = measure(heads, steps_of(found, lengths), trained, kept, SETTINGS)
    score = measured.score
    assert (score.prefers, score.length_only, score.loss) == ("shorter", 0.25, None)
    step = measured.heads[REWARDS.index("step")]
    # By step cost, both trained pairs prefer the shorter one, and the kept one the longer.
    assert (step.prefers, step.length_only, step.trained, step.pairs) == ("shorter", 0.0, 2, 1)


class Reader:
    """Encoder that returns given vectors."""

    model, digest = "packaged", "e" * 32

    def __init__(self, found: Any) -> None:
        self.vectors, self.asked = found, list[tuple[int, ...]]()

    def tokens(self, steps: Sequence[Prefix]) -> list[tuple[int, ...]]:
        return [(int(step.text),) * (50 if step.text == "7" else 3) for step in steps]

    def embed_cached(self, sequences: Sequence[tuple[int, ...]]) -> Any:
        self.asked += sequences
        return np.stack([self.vectors[one[0]] for one in sequences])


def test_a_training_writes_heads_metrics_and_their_provenance(tmp_path: Path) -> None:
    found = vectors()
    prompt = (Message("user", "Where?"),)
    steps = [Prefix(prompt, str(n)) for n in range(len(found))]
    material = RewardTrainingData(steps, comparisons(found), SCHEME)
    settings = SETTINGS.model_copy(update={"max_length": 32})
    reader, said = Reader(found), list[str]()
    made: dict[str, Any] = {
        "encoder": reader,
        "target": tmp_path / "rm",
        "seed": 0,
        "max_dropped_share": 0.02,
    }
    report = train_reward_model(material, settings, **made, log=said.append)
    assert report.dropped == 1, "one side of one pair is longer than max_length"
    assert (6,) * 3 not in reader.asked, "its sibling is in no other pair, so it is not encoded"
    assert report.trained + report.validation == len(material.comparisons) - 1
    record = read_record(tmp_path / "rm")
    assert (record["encoder"], record["encoder_digest"]) == ("packaged", reader.digest)
    assert record["data_digest"] == material.digest
    assert record["heads_digest"] == Heads.load(tmp_path / "rm" / "heads.safetensors").digest
    kept = json.loads((tmp_path / "rm" / "metrics.json").read_text())
    assert kept["loss"] == report.metrics.loss
    assert list(kept["heads"]) == list(REWARDS)
    assert kept["score"]["accuracy"] > 0.6, "these pairs can be learned"
    train_reward_model(material, settings, **made | {"target": tmp_path / "2"}, log=said.append)
    assert read_record(tmp_path / "2") | {"seconds": 0} == record | {"seconds": 0}
    long = [replace(material.comparisons[0], better=n, worse=7) for n in range(7)]
    made |= {"max_dropped_share": 0.5}
    for none in ([], long):
        with pytest.raises(ConfigError, match=f"no pair is left.*of {len(none)}"):
            train_reward_model(
                replace(material, comparisons=none), settings, **made, log=said.append
            )


def test_standardisation_uses_the_steps_of_the_training_pairs() -> None:
    found = vectors()
    learned = [one for one in comparisons(found) if max(one.better, one.worse) < 20]
    heads = fit_heads(found, learned, SETTINGS, seed=0)
    used = sorted({place for one in learned for place in (one.better, one.worse)})
    assert 2 < len(used) <= 20
    assert heads.mean == pytest.approx(found[used].mean(axis=0), rel=1e-5, abs=1e-5)
    assert heads.sd == pytest.approx(found[used].std(axis=0), rel=1e-5)
    scores = heads.standardised(found[used])
    assert scores.mean(axis=0) == pytest.approx(np.zeros(len(REWARDS)), abs=1e-3)


def test_step_lengths_count_only_the_policys_own_text() -> None:
    steps = [Prefix((Message("user", "Where?" * n),), "x" * (9 - n)) for n in range(3)]
    asked = [SiblingComparison("q", 2, 0, 1, {}, 1.0)]
    found = _steps(RewardTrainingData(steps, asked, SCHEME), vectors(3))
    assert found.lengths.tolist() == [9, 8, 7]
    assert found.weights == {2: weights(EvoRagSettings(), 0.2)}


def test_the_settings_select_the_validation_questions(tmp_path: Path) -> None:
    found = vectors(80)
    prompt = (Message("user", "Where?"),)
    steps = [Prefix(prompt, f"0{n}") for n in range(len(found))]
    material = RewardTrainingData(steps, comparisons(found), SCHEME)
    for changes in ({"validation": 0.5}, {"validation": 0.0}, {"split_seed": 1}, {"split_seed": 2}):
        told = SETTINGS.model_copy(update=changes)
        made: dict[str, Any] = {
            "encoder": Reader(found),
            "target": tmp_path,
            "seed": 0,
            "max_dropped_share": 0,
            "log": lambda line: None,
        }
        report = train_reward_model(material, told, **made)
        kept = split_questions(material.comparisons, told.validation, told.split_seed)[1]
        assert report.validation == len(kept)
        assert report.validation_questions == len({one.question_id for one in kept})
    digests = set()
    for seed in (0, 1):
        train_reward_model(material, SETTINGS, **made | {"seed": seed})
        digests.add(read_record(tmp_path)["heads_digest"])
    assert len(digests) == 2, "the seed orders the pairs"
