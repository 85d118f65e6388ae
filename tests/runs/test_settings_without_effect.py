"""Every setting of a block has an effect under the name that the block has, or is refused.

The settings of named blocks are read by a run or an evaluation that uses the name: the test records
which ones. All others are unknown to the block's class, so a recipe with them is refused.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import branchwise, evaluated
from fake_endpoint import FakeEndpoint
from loopback import serving
from pydantic import BaseModel
from tiny_dataset import PASSAGES, QUESTIONS, policy, recipe, write_rows

from branchwise.agent.protocol import PROTOCOLS
from branchwise.base.errors import ConfigError
from branchwise.base.settings import NamedBlock, named_block
from branchwise.mcts import ChainSettings, TreeSettings
from branchwise.runs.recipe import Recipe
from branchwise.runs.recipe_file import load_recipe

SILENT: dict[str, dict[str, Any]] = {
    "agent.references under reasonrag": {"agent.references": "retrieved"},
    "agent.history under arena": {"agent.protocol": "arena", "agent.history": "responses"},
    "mcts.c under chains": {"mcts.kind": "chains", "mcts.c": 2.0},
    "mcts.branches under tree": {"mcts.branches": 3},
    "mcts.rollouts with playouts": {"mcts.evaluator": "playout", "mcts.rollouts": 3},
    "grpo.scale under rloo": {
        "training.grpo.algorithm": "rloo",
        "training.grpo.scale": "none",
    },
    "grpo.baseline under grpo": {"training.grpo.baseline": "none"},
    "grpo.kl_in with beta 0": {"training.grpo.kl_in": "reward", "training.grpo.kl": "k1"},
    "grpo.group_size with trees": {
        "training.grpo.rollouts": "trees",
        "training.grpo.group_size": 3,
    },
    "retrieval.dense under bm25": {"retrieval.dense": {"preset": "e5"}},
    "retrieval.url under bm25": {"retrieval.url": "http://127.0.0.1:9"},
    "policy.dtype under openvino": {"policy.dtype": "float16"},
    "policy.server_args under openvino": {"policy.server_args": ["--seed", "1"]},
    "policy.precision under openai": {
        "policy.engine": "openai",
        "policy.base_url": "http://127.0.0.1:9/v1",
        "policy.precision": "q8_0",
    },
    "policy.identity under openvino": {"policy.identity": "lab"},
    "policy.identity under vllm": {"policy.engine": "vllm", "policy.identity": "lab"},
    "retrieval.identity under bm25": {"retrieval.identity": "wiki"},
    "rewards.judge_decay under rollouts": {"rewards.judge_decay": False},
    "data.cities under jsonl": {
        "data.source": "jsonl",
        "data.questions": "q.jsonl",
        "data.cities": 600,
    },
    "data.passage_words without a corpus": {"data.passage_words": 50},
    "curriculum under spre": {"curriculum.patience": 5},
    "verifier under spre": {"verifier": {"model": "packaged"}},
}


@pytest.mark.parametrize("case", SILENT)
def test_a_setting_without_effect_is_refused(case: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("name: x\n")
    setting = list(SILENT[case])[-1]
    with pytest.raises(ConfigError) as refused:
        load_recipe(tmp_path / "recipe.yaml", SILENT[case])
    named = setting.partition(".")[0] if setting.startswith("curriculum") else setting
    assert named in str(refused.value)


def blocks(model: type[BaseModel] = Recipe, at: str = "") -> Iterator[tuple[str, NamedBlock]]:
    for name, field in model.model_fields.items():
        if by_name := named_block(field):
            yield f"{at}{name}", by_name
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from blocks(field.annotation, f"{at}{name}.")


NAMES = [(at, by_name, name) for at, by_name in blocks() for name in by_name.classes()]


@pytest.mark.parametrize(("at", "by_name", "name"), NAMES, ids=[f"{a}-{n}" for a, _, n in NAMES])
def test_settings_of_another_name_are_unknown(at: str, by_name: NamedBlock, name: str) -> None:
    classes = by_name.classes()
    own = classes[name].model_fields
    others = {field for kind in classes.values() for field in kind.model_fields} - own.keys()
    for field in others:
        with pytest.raises(ValueError, match="Extra inputs are not permitted"):
            by_name({by_name.key: name, field: 1})


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Records (class, setting) of every setting that code reads."""
    recorded: set[tuple[str, str]] = set()
    plain = BaseModel.__getattribute__

    def read(self: BaseModel, name: str) -> Any:
        if not name.startswith("_"):
            recorded.add((type(self).__name__, name))
        return plain(self, name)

    monkeypatch.setattr(BaseModel, "__getattribute__", read)
    return recorded


def unread(kind: type[BaseModel], reads: set[tuple[str, str]]) -> set[str]:
    """Returns the settings that nothing read, except the name that decides the class."""
    read = {name for class_name, name in reads if class_name == kind.__name__}
    return kind.model_fields.keys() - read - {"kind", "protocol"}


def replies(request: dict[str, Any]) -> str:
    """Returns a query in R1-Searcher's form where a turn continues, else a reply of the policy."""
    if "messages" in request:
        return policy(request)
    return "I look. <|begin_of_query|> Lyon <|end_of_query|>"


@pytest.fixture
def served(own_cache: None) -> Iterator[FakeEndpoint]:
    with serving(replies) as endpoint:
        yield endpoint


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_a_protocol_reads_all_its_settings(
    name: str, tmp_path: Path, served: FakeEndpoint, reads: set[tuple[str, str]]
) -> None:
    """Answers questions with the protocol; what the policy replies does not matter."""
    paragraphs = [{"title": p["title"], "text": p["text"], "is_supporting": True} for p in PASSAGES]
    rows = [{**question, "paragraphs": paragraphs} for question in QUESTIONS]
    asked = {"source": "jsonl", "questions": write_rows(tmp_path / "asked.jsonl", *rows)}
    evaluation = {"policies": {"one": "policy"}, "set": {**asked, "split": None}}
    config = recipe(tmp_path, served.base_url, agent={"protocol": name}, evaluation=evaluation)
    assert evaluated(config, tmp_path / "run") == 0
    assert unread(PROTOCOLS[name].settings_class, reads) == set()


SEARCHES: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "rollouts": (TreeSettings, {"iterations": 4}),
    "playouts": (TreeSettings, {"iterations": 4, "evaluator": "playout"}),
    "judge": (TreeSettings, {"iterations": 4, "evaluator": "judge"}),
    "chains": (ChainSettings, {"kind": "chains", "iterations": 4}),
}


def test_a_search_reads_all_its_settings(
    tmp_path: Path, served: FakeEndpoint, reads: set[tuple[str, str]]
) -> None:
    """Settings of one evaluator are read by a search with it; with others they are refused."""
    judge = {"engine": "openai", "model": "policy", "base_url": served.base_url}
    for name, (_, mcts) in SEARCHES.items():
        judged = {"judge": judge} if name == "judge" else {}
        config = recipe(tmp_path, served.base_url, mcts=mcts, **judged)
        assert branchwise("annotate", config, tmp_path / name) in (0, 4)
    for kind, _ in SEARCHES.values():
        assert unread(kind, reads) == set()


def test_a_dumped_recipe_of_every_name_is_read_again(tmp_path: Path) -> None:
    """Stored recipes hold every setting; none of them may be one without effect."""
    for at, by_name, name in NAMES:
        values: dict[str, Any] = {"name": "x"}
        inner = values
        *sections, last = at.split(".")
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = {by_name.key: name}
        stored = Recipe.model_validate(values).model_dump(mode="json")
        assert Recipe.model_validate(stored) == Recipe.model_validate(values)
        (tmp_path / "stored.yaml").write_text(json.dumps(stored))
