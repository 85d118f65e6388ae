"""Recipes: every mistake at once, with its place and the nearest valid key."""

from pathlib import Path

import pytest

from pipelines.config import Recipe, load_recipe
from storage.errors import ConfigError

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "recipe", sorted((REPOSITORY / "configs").glob("*.yaml")), ids=lambda p: p.stem
)
def test_every_shipped_recipe_loads(recipe: Path) -> None:
    assert load_recipe(recipe).name == recipe.stem


def problems(tmp_path: Path, text: str, *overrides: str) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_recipe(path, overrides)
    return str(raised.value)


def test_all_mistakes_are_named_with_line_and_nearest_key(tmp_path: Path) -> None:
    told = problems(
        tmp_path,
        "name: x\nmcts:\n  iteration: 5\n  c: high\nretrieval: {top_k: 0}\nlimit: 3\n",
    )
    assert "recipe.yaml:3: `mcts.iteration` is not a setting; did you mean `iterations`?" in told
    assert "recipe.yaml:4: `mcts.c`" in told
    assert "recipe.yaml:5: `retrieval.top_k`" in told
    assert "recipe.yaml:6: `limit` is not a setting; did you mean `limits`?" in told


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: x\nmcts: {evaluator: judge}\n", "no `judge:`"),
        ("name: x\nspre: {estimator: judge}\njudge: {}\n", "spre.estimator is `judge`"),
        (
            "name: x\nmcts: {evaluator: judge}\njudge: {}\nspre: {estimator: rollout}\n",
            "spre.estimator is `rollout`",
        ),
        ("name: x\nretrieval: {kind: http}\n", "retrieval.url"),
        ("name: x\npolicy: {engine: openai, model: m}\n", "base_url"),
        ("name: x\ndata: {source: hotpotqa}\n", "questions"),
        (
            "name: x\nlimits: {max_usd: 1}\npolicy: {engine: openai, model: m, base_url: u}\n",
            "price",
        ),
        ("name: x\nmcts: {max_children: 1}\n", "no step has a sibling"),
        ("name: x\nmcts: {iterations: 4}\npairs: {min_outcomes: 5}\n", "at most 4 outcomes"),
        (
            "name: x\nmcts: {iterations: 4, kind: chains}\nspre: {rollouts: 3}\n"
            "pairs: {min_outcomes: 5}\n",
            "at most 4 outcomes",
        ),
        ("name: x\nmcts: {kind: chains, iterations: 1}\n", "no step has a sibling"),
        ("name: x\nmcts: {kind: chains, evaluator: judge}\njudge: {}\n", "leave the evaluator"),
        ("name: x\nmcts: {kind: chains}\nspre: {estimator: rollout}\n", "only answers are"),
        ("name: x\nmcts: {kind: chains}\nspre: {estimator: judge}\n", "only answers are"),
        ("name: x\nmcts: {max_output_tokens: 0}\n", "mcts.max_output_tokens"),
        ("name: x\nspre: {temperature: 0, rollouts: 2}\n", "all 2 rollouts of a node are one"),
        ("name: x\npairs: {min_gap: 1}\n", "pairs.min_gap"),
        ("name: x\npairs: {actions: [anwser]}\n", "pairs.actions.0"),
        ("name: x\npairs: {actions: []}\n", "pairs.actions"),
        ("name: x\npairs: {max_length_ratio: 0.5}\n", "pairs.max_length_ratio"),
        ("name: x\ntraining: {dpo: {batch_size: 8, micro_batch: 3}}\n", "training.dpo"),
        ("name: x\ndata: {questions: q.jsonl}\n", "leave `questions` out"),
        ("name: ../../etc\n", "`name`"),
        ("name: x\nseed: 1\nseed: 2\n", "recipe.yaml:3: `seed` stands there twice"),
        ("seed: 3\n", "`name` is missing"),
        ("- 1\n", "a mapping"),
        ("name: [\n", "not valid YAML"),
        ("name: x\n~: 1\n", "Keys should be strings"),
        ("name: x\nmcts: {c: .nan}\n", "mcts.c"),
    ],
)
def test_impossible_recipes_are_refused(tmp_path: Path, text: str, says: str) -> None:
    assert says in problems(tmp_path, text)


def test_a_mistake_of_form_hides_no_contradiction(tmp_path: Path) -> None:
    told = problems(
        tmp_path,
        "retrieval: {top_k: 0, kind: http}\nmcts: {evaluator: judge}\nlimits: {max_usd: 1}\n"
        "policy: {engine: openai, top_p: 2}\nfoo: 1\n",
    )
    assert "`name` is missing" in told
    assert "retrieval.top_k" in told
    assert "policy.top_p" in told
    assert "`foo` is not a setting" in told
    assert "no `judge:`" in told
    assert "retrieval.url" not in told, "a block that is at fault says nothing more"
    assert "price_per_million" not in told


def test_overrides_reach_into_sections_and_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("name: x\nmcts: {iterations: 3}\n")
    recipe = load_recipe(path, ["mcts.c=2.5", "judge.engine=openvino", "data.corpus=[a, b]"])
    assert (recipe.mcts.iterations, recipe.mcts.c) == (3, 2.5)
    assert recipe.judge is not None
    assert recipe.data.corpus == ("a", "b")
    told = problems(tmp_path, "name: x\n", "mcts.itertions=3", "nonsense", "seed=many")
    assert "--set mcts.itertions" in told
    assert "--set nonsense" in told
    assert "--set seed" in told


def test_a_digest_covers_what_it_names(tmp_path: Path) -> None:
    one, other = Recipe(name="x"), Recipe(name="x", seed=1)
    assert one.digest() != other.digest()
    assert one.digest("mcts", "spre") == other.digest("mcts", "spre")


def test_dense_retrieval_without_its_packages_is_refused_before_anything_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrieval.encoder.find_spec", lambda name: None)
    told = problems(tmp_path, "name: x\nretrieval: {kind: dense}\npolicy: {engine: openai}\n")
    assert "faiss" in told
    assert "EXTRAS=dense" in told
    assert "base_url" in told, "all mistakes at once"


def test_a_recipe_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(b"name: x\xff\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_recipe(path)


def test_an_override_is_blamed_by_its_own_name(tmp_path: Path) -> None:
    assert "--set name.x" in problems(tmp_path, "name: x\n", "name.x=3")
    assert "--set data..limit" in problems(tmp_path, "name: x\ndata: {}\n", "data..limit=3")


def test_the_embedded_engine_is_given_no_more_questions_than_its_cache_holds() -> None:
    embedded = Recipe.model_validate({"name": "x"})
    endpoint = {"engine": "openai", "model": "m", "base_url": "http://127.0.0.1:1/v1"}
    served = Recipe.model_validate({"name": "x", "policy": endpoint})
    said = Recipe.model_validate({"name": "x", "limits": {"max_questions_in_flight": 7}})
    asked = [recipe.questions_in_flight for recipe in (embedded, served, said)]
    assert asked == [24, 256, 7]
