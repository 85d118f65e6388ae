"""`train-rm` on a tiny run: training data, output files, and stages that use the model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import branchwise
from evo_world import words_alike
from fake_endpoint import FakeEndpoint
from loopback import serving
from stored_rows import nodes_of, pairs_of
from tiny_dataset import recipe
from tiny_llama import write_tiny_folder

from branchwise.pipelines.train_rm.stage import build_comparisons
from branchwise.rewards.evo_rag.schedule import weights
from branchwise.rewards.reward_model.model import RewardModel
from branchwise.rewards.settings import REWARDS, EvoRagSettings
from branchwise.runs.folder import existing_run
from branchwise.runs.recipe import Recipe
from branchwise.runs.recipe_checks import find_conflicts
from branchwise.runs.trained_reward_model import reward_model_for
from branchwise.runs.tree_growing import LABELLING
from branchwise.training.settings import RewardModelSettings

ANSWERS = ("Paris", "Tokyo", "Yen", "a long way from here")
QUERIES = ("Lyon", "Osaka", "capital of France", "Japan", "currency")


def policy(request: dict[str, Any]) -> str:
    """Returns one of the four actions, chosen by the seed of the request."""
    seed = int(request.get("seed", 0))
    system, user = request["messages"][0]["content"], request["messages"][-1]["content"]
    answer = f"<answer>{ANSWERS[seed % 4]}</answer>"
    if "no searches left" in system:
        return answer
    search = f"<search>{QUERIES[seed % 5]}</search>"
    if "Search:" not in user:
        return (search, search, answer, "<refuse/>")[seed // 7 % 4]
    return (search, answer, answer, "<backtrack/>", "<refuse/>")[seed // 7 % 5]


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with serving(policy) as served:
        yield served


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("encoder") / "tiny")


@pytest.fixture(autouse=True)
def similarity(own_folder: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the encoder, in a working directory of the test's own, where models are written."""
    monkeypatch.setattr("branchwise.rewards.evo_rag.scheme.query_similarity", lambda: words_alike)


@pytest.fixture
def config(tmp_path: Path, endpoint: FakeEndpoint, encoder: Path) -> Path:
    return recipe(
        tmp_path,
        endpoint.base_url,
        agent={"max_steps": 6, "protocol": "evo-rag"},
        retrieval={"top_k": 1},
        mcts={"kind": "chains", "iterations": 10, "branches": 2},
        rewards={"scheme": "evo-rag", "stage": "refinement"},
        pairs={"per_state": "extremes", "min_gap": 0.2},
        training={"reward_model": {"encoder": str(encoder), "validation": 0.3, "epochs": 3}},
    )


def totals(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_a_reward_model_is_trained_and_used_to_order_pairs(
    tmp_path: Path, config: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = tmp_path / "run", tmp_path / "models" / "run" / "reward-model"
    assert branchwise("annotate", config, run) == 0
    asked = len(endpoint.requests)
    capsys.readouterr()
    assert branchwise("train-rm", config, run, "--dry-run", "--json") == 0
    dry = totals(capsys)
    assert dry["pairs"] > 10
    assert set(dry["heads"]) == set(REWARDS)
    assert 0 < dry["heads"]["answer"] <= dry["pairs"]
    assert not folder.exists()
    other = ("--set", "rewards.schedule=answer-only")
    assert branchwise("train-rm", config, run, "--dry-run", "--json", *other) == 0
    assert totals(capsys) != dry, "another schedule gives other pairs of the same run"

    assert branchwise("train-rm", config, run) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in (*REWARDS, "length only", "validation loss"))
    record = json.loads((folder / "training.json").read_text())
    assert record["data"]["table"] == "trees"
    measured = json.loads((folder / "metrics.json").read_text())
    assert measured["pairs"]["trained"] + measured["pairs"]["validation"] == dry["pairs"]
    first = (folder / "heads.safetensors").read_bytes()
    assert branchwise("train-rm", config, run, "--name", "again") == 0
    assert (folder.parent / "again" / "heads.safetensors").read_bytes() == first

    scored = ("--set", "pairs.score=reward_model", "--set", f"reward_model={folder}")
    assert branchwise("relabel", config, run, "--label", "scored", *scored) == 0
    assert len(endpoint.requests) == asked, "training and relabelling make no calls"
    rewards = {(n.tree_id, n.node_id): n.reward for n in nodes_of(run)}
    for pair in pairs_of(run, "relabelled/scored/pairs"):
        assert pair.chosen_reward == rewards[pair.tree_id, pair.chosen_node]
        high, low = (
            {c.name: c.value for c in side}["score"]
            for side in (pair.chosen_components, pair.rejected_components)
        )
        assert high is not None
        assert low is not None
        assert high - low >= 0.2
    (digest,) = {pair.label_digest for pair in pairs_of(run, "relabelled/scored/pairs")}
    assert branchwise("train-rm", config, run, "--set", "training.reward_model.epochs=1") == 0
    assert branchwise("relabel", config, run, "--label", "rescored", *scored) == 0
    again = {pair.label_digest for pair in pairs_of(run, "relabelled/rescored/pairs")}
    assert digest not in again, "the digest must change with the model, not with its name"
    by_label = {(p.chosen_node, p.rejected_node) for p in pairs_of(run)}
    by_score = {(p.chosen_node, p.rejected_node) for p in pairs_of(run, "relabelled/scored/pairs")}
    assert by_label != by_score


def test_relabel_warns_if_the_model_learned_the_total_of_other_rewards(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = tmp_path / "run", tmp_path / "models" / "run" / "total"
    assert branchwise("annotate", config, run) == 0
    scored = ("--set", "pairs.score=reward_model", "--set", f"reward_model={folder}")
    other = ("--set", "rewards.schedule=answer-only", "--set", "rewards.stage=refinement")
    told = "it learned the total of other rewards and orders by it"

    def said(*settings: str) -> str:
        assert branchwise("relabel", config, run, *scored, *settings) == 0
        return " ".join(capsys.readouterr().out.split())

    for heads, knows_weights in (
        ("labels=total", False),
        ("heads=single", False),
        ("epochs=1", True),
    ):
        more = ("--name", "total", "--set", f"training.reward_model.{heads}")
        assert branchwise("train-rm", config, run, *more) == 0
        assert told not in said()
        assert (told not in said(*other)) == knows_weights
        assert told not in said("--set", "rewards.horizon=6"), (
            "the default horizon is agent.max_steps"
        )
        longer = said("--set", "rewards.horizon=20")
        assert (told not in longer) == knows_weights
        assert knows_weights or "(changed: horizon)" in longer


def test_a_search_with_a_reward_model_is_replayed(
    tmp_path: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    folder = tmp_path / "models" / "run" / "reward-model"
    assert branchwise("annotate", config, tmp_path / "run") == 0
    assert branchwise("train-rm", config, tmp_path / "run") == 0
    led, run = tmp_path / "led.yaml", tmp_path / "led"
    search = {"evaluator": "reward_model", "iterations": 10, "max_children": 3, "normalise": True}
    blocks = json.loads(config.read_text())
    pairs = {"score": "reward_model"}
    led.write_text(
        json.dumps({**blocks, "mcts": search, "pairs": pairs, "reward_model": str(folder)})
    )
    assert branchwise("annotate", led, run) == 0
    nodes, asked = nodes_of(run), len(endpoint.requests)
    ends = [node for node in nodes if node.terminal]
    worth_of_ends = {node.value for node in ends}
    assert len(worth_of_ends) > 3
    assert any(n.reward is not None and n.value != n.reward for n in ends), "labels are returns"
    assert all(n.value is not None for n in nodes if n.visits and n.parent_id >= 0)
    noted = json.loads((run / "provenance.json").read_text())["inputs"]
    assert noted["reward_model"]
    (run / "manifest.json").unlink()
    assert branchwise("annotate", led, run) == 0
    assert len(endpoint.requests) == asked
    assert nodes_of(run) == nodes

    heads = json.loads((folder / "training.json").read_text())
    (folder / "training.json").write_text(json.dumps(heads | {"encoder_digest": "0" * 32}))
    assert branchwise("annotate", led, run) == 2, "a run cannot continue with another model"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"rewards": {}, "agent": {"max_steps": 6}},
            "cannot learn the reward scheme `spre`; grow the trees with rewards.scheme: evo-rag",
        ),
        ({"training": {}}, "training.reward_model.encoder"),
        ({"pairs": {"score": "reward_model"}}, "`reward_model:` is not set"),
        (
            {"pairs": {"score": "reward_model"}, "reward_model": "nowhere"},
            "nowhere: no reward model here",
        ),
    ],
)
def test_unusable_recipes_are_refused_by_train_rm_and_relabel(
    tmp_path: Path,
    config: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    says: str,
) -> None:
    run = tmp_path / "run"
    assert branchwise("annotate", config, run, "--limit", "1") == 0
    other = tmp_path / "other.yaml"
    other.write_text(json.dumps(json.loads(config.read_text()) | changes))
    stage = "relabel" if "pairs" in changes else "train-rm"
    assert branchwise(stage, other, run) == 2
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mcts": {"evaluator": "reward_model", "normalise": True}}, "`reward_model:` is not set"),
        (
            {"pairs": {"score": "reward_model"}, "reward_model": "rm", "rewards": {}},
            "cannot learn the reward scheme `spre`; set rewards.scheme: evo-rag",
        ),
    ],
)
def test_reward_model_settings_that_cannot_work_are_conflicts(
    changes: dict[str, Any], says: str
) -> None:
    evo = {"agent": {"protocol": "evo-rag"}, "rewards": {"scheme": "evo-rag"}}
    blocks = {"name": "x", **evo, **changes}
    assert any(says in problem for problem in find_conflicts(Recipe.model_validate(blocks)))


def test_an_unused_reward_model_is_not_loaded_but_changes_the_digest() -> None:
    plain = Recipe(name="x")
    named = plain.model_copy(update={"reward_model": "models/x/reward-model"})
    assert (plain.active_reward_model, named.active_reward_model) == (None, None)
    assert named.digest(*LABELLING) != plain.digest(*LABELLING)


def test_training_comparisons_are_the_pairs_of_relabel(tmp_path: Path, config: Path) -> None:
    run, evo = tmp_path / "run", EvoRagSettings(schedule="two-stage", horizon=20)
    assert branchwise("annotate", config, run) == 0
    same = ("--set", f"rewards={evo.model_dump_json()}", "--set", "pairs={min_gap: 0.3}")
    assert branchwise("relabel", config, run, "--label", "all", *same) == 0
    grown = existing_run(run)
    recipe = grown.recipe.model_copy(update={"rewards": evo})
    material, _ = build_comparisons(grown, recipe, RewardModelSettings(min_gap=0.3))
    assert material.scheme.settings == evo
    learned = sorted(
        (c.question_id, material.steps[c.better].text, material.steps[c.worse].text, c.t, c.total)
        for c in material.comparisons
    )
    told = sorted(
        (p.question_id, p.chosen[0].content, p.rejected[0].content, p.depth - 1, p.reward_gap)
        for p in pairs_of(run, "relabelled/all/pairs")
    )
    assert [pair[:4] for pair in learned] == [pair[:4] for pair in told]
    assert [pair[4] for pair in learned] == pytest.approx([pair[4] for pair in told], abs=1e-5)
    scale = weights(evo, 0.0)  # constant in this schedule
    for one in material.comparisons:
        assert one.total == pytest.approx(sum(scale[k] * gap for k, gap in one.gaps.items()))


def test_reward_model_weights_follow_the_horizon_of_the_recipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(RewardModel, "load", lambda *given: asked.append(given))
    blocks = {"pairs": {"score": "reward_model"}, "reward_model": "rm", "agent": {"max_steps": 6}}
    for horizon in (None, 20):
        evo = {"scheme": "evo-rag", "horizon": horizon, "stage": "discovery"}
        reward_model_for(Recipe.model_validate({"name": "x", "rewards": evo, **blocks}))
    settings = EvoRagSettings(stage="discovery")
    assert [given[1](3) for given in asked] == [weights(settings, 3 / 6), weights(settings, 3 / 20)]
