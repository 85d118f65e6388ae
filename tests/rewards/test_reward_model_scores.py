"""A reward model's scores: weighting of its heads, and checks of its folder."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from branchwise.agent.state import Action, State, Step
from branchwise.base.errors import BranchwiseError, ConfigError
from branchwise.modeling.embedding import Prefix
from branchwise.rewards.evo_rag.schedule import Weights, weights
from branchwise.rewards.reward_model import model as reward_model
from branchwise.rewards.reward_model.heads import Heads
from branchwise.rewards.reward_model.model import (
    RewardModel,
    prefix_of,
    reward_model_digest,
    stored_encoder,
)
from branchwise.rewards.settings import REWARDS, EvoRagSettings
from branchwise.types import Message

SETTINGS = EvoRagSettings(stage="discovery")


def at(settings: EvoRagSettings) -> Callable[[int], Weights]:
    """Returns the weights per time step of an episode of four policy calls."""
    return lambda t: weights(settings, t / 4)


ROWS = np.arange(21, dtype=np.float32).reshape(3, 7) ** 2


class Reader:
    """Encoder of three steps: the text of step n is its row in ROWS."""

    digest = "e" * 32

    def __init__(self, model: str, **settings: Any) -> None:
        self.model, self.settings = model, settings

    def tokens(self, steps: Sequence[Prefix]) -> list[tuple[int, ...]]:
        return [(int(step.text),) * (1 + len(step.messages)) for step in steps]

    def embed(self, sequences: Sequence[tuple[int, ...]]) -> Any:
        return np.stack([ROWS[one[0]] for one in sequences])


def heads(**changes: Any) -> Heads:
    """Heads of which head k reads only column k; inputs and outputs are standardised."""
    column = np.arange(1, 8, dtype=np.float32)
    fields: dict[str, Any] = {
        "names": REWARDS,
        "learned": "component",
        "weight": np.eye(7, dtype=np.float32),
        "mean": column,
        "sd": column * 2,
        "output_mean": column / 10,
        "output_sd": column * 3,
    }
    return Heads(**fields | changes)


def write(folder: Path, kept: Heads, **changes: Any) -> Path:
    kept.save(folder / "heads.safetensors")
    record = {
        "kind": "reward-model",
        "encoder": "packaged",
        "encoder_digest": Reader.digest,
        "heads_digest": kept.digest,
        "settings": {"batch_tokens": 64, "max_length": 2},
    }
    (folder / "training.json").write_text(json.dumps(record | changes))
    return folder


@pytest.fixture(autouse=True)
def reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_model, "FrozenEncoder", Reader)


def step(number: int, messages: int = 1) -> Prefix:
    return Prefix((Message("user", "Where?"),) * messages, str(number))


def test_the_score_weights_the_heads_at_the_time_step_of_the_step(tmp_path: Path) -> None:
    model = RewardModel.load(write(tmp_path, heads()), at(SETTINGS))
    scores = model.score([step(2), step(2), step(0)], [0, 3, 3])
    for score, (row, t) in zip(scores, [(2, 0), (2, 3), (0, 3)], strict=True):
        scale = weights(SETTINGS, t / 4)
        by_hand = 0.0
        for k, name in enumerate(REWARDS):
            output = (ROWS[row][k] - (k + 1)) / (2 * (k + 1))
            by_hand += scale[name] * (output - (k + 1) / 10) / (3 * (k + 1))
        assert score == pytest.approx(by_hand, abs=1e-3)
    assert scores[0] != scores[1], "the score of a step should depend on its time step"


def test_the_score_of_a_total_head_does_not_depend_on_the_time_step(tmp_path: Path) -> None:
    one = np.ones(1, np.float32)
    single = heads(
        names=("total",),
        learned="total",
        weight=np.full((1, 7), 0.5, np.float32),
        output_mean=one,
        output_sd=one * 2,
    )
    model = RewardModel.load(write(tmp_path, single), at(SETTINGS))
    early, late = model.score([step(1), step(1)], [0, 3])
    columns = np.arange(1, 8)
    by_hand = (0.5 * ((ROWS[1] - columns) / (2 * columns)).sum() - 1) / 2
    assert early == late == pytest.approx(by_hand, abs=1e-3)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        ("no folder", "no reward model here.*train-rm"),
        ("a policy", "not a reward-model"),
        ("other heads", "are from different trainings"),
        ("cut heads", "cannot read the heads"),
        ("other encoder", "have changed since the training"),
    ],
)
def test_load_rejects_folders_with_missing_or_mismatched_parts(
    tmp_path: Path, harm: str, says: str
) -> None:
    folder = write(tmp_path, heads())
    if harm == "no folder":
        folder = tmp_path / "none"
    elif harm == "a policy":
        write(folder, heads(), kind="dpo")
    elif harm == "other heads":
        heads(weight=np.ones((7, 7), np.float32)).save(folder / "heads.safetensors")
    elif harm == "cut heads":
        content = (folder / "heads.safetensors").read_bytes()
        (folder / "heads.safetensors").write_bytes(content[:-9])
    else:
        write(folder, heads(), encoder_digest="f" * 32)
    with pytest.raises(BranchwiseError, match=says):
        RewardModel.load(folder, at(SETTINGS))


def test_reward_model_digest_does_not_need_the_encoder(tmp_path: Path) -> None:
    folder = write(tmp_path, heads())
    assert RewardModel.load(folder, at(SETTINGS)).digest == reward_model_digest(folder)
    with pytest.raises(ConfigError):
        reward_model_digest(tmp_path / "none")


def test_the_encoder_path_is_stored_relative_to_the_folder(tmp_path: Path) -> None:
    folder, encoder = tmp_path / "models" / "rm", tmp_path / "models" / "bert"
    assert stored_encoder(folder, str(encoder)) == "../bert"
    assert stored_encoder(folder, "hub:a/b@c") == "hub:a/b@c"
    (tmp_path / "disk" / "deep").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "disk" / "deep")
    assert stored_encoder(tmp_path / "linked" / "rm", str(encoder)) == "../../../models/bert"
    folder.mkdir(parents=True)
    model = RewardModel.load(write(folder, heads(), encoder="../bert"), at(SETTINGS))
    assert Path(model._encoder.model).resolve() == encoder


def test_prefix_of_pairs_the_last_step_with_its_prompt() -> None:
    first = Step("reasoning", "<search>Lyon</search>", Action("search", "Lyon"))
    last = Step("reasoning", "<answer>half \ud83d</answer>", Action("answer", "half"))
    state = State("Where?").after(first, "reasoning").after(last, "terminal")

    def prompt(state: State) -> Sequence[Message]:
        return [Message("user", f"{state.stage} {state.depth} {state.question}")]

    assert prefix_of(state, prompt) == Prefix(
        (Message("user", "reasoning 1 Where?"),), "<answer>half \ufffd</answer>"
    )


def test_a_step_without_a_score_does_not_shift_the_others_time_steps(tmp_path: Path) -> None:
    model = RewardModel.load(write(tmp_path, heads()), at(SETTINGS))
    [late] = model.score([step(2)], [3])
    assert model.score([step(1, messages=2), step(2)], [0, 3]) == [None, late]
    assert model.score([step(1, messages=2)], [0]) == [None], "a step that is too long"
    assert late == round(late or 0.0, 4), (
        "scores should be rounded, as further decimals depend on the machine"
    )


def test_the_digest_of_the_heads_covers_every_array() -> None:
    arrays = ("weight", "mean", "sd", "output_mean", "output_sd")
    others = [heads(**{name: getattr(heads(), name) + 1}) for name in arrays]
    assert len({one.digest for one in (heads(), *others)}) == 6
