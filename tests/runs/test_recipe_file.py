"""Recipe files: loading, overrides, paths, and reports of all errors at once."""

from pathlib import Path

import pytest

from branchwise.base.errors import ConfigError
from branchwise.mcts import ChainSettings, TreeSettings
from branchwise.rewards.settings import EvoRagSettings
from branchwise.runs.factories import engine_for
from branchwise.runs.recipe import Recipe
from branchwise.runs.recipe_file import load_recipe, recipe_path

REPOSITORY = Path(__file__).resolve().parents[2]
EVO = "name: x\nrewards: {scheme: evo-rag}\nagent: {protocol: evo-rag}"
"""A recipe of EVO-RAG without search settings."""
HOSTED = "{engine: openai, model: m, base_url: u, price_per_million: {input: 1, output: 1}}"
PAID = f"name: x\nlimits: {{max_usd: 1}}\npolicy: {HOSTED}\n"
"""A recipe with a priced model and a limit in dollars."""


@pytest.mark.parametrize(
    "recipe", sorted((REPOSITORY / "configs").glob("*.yaml")), ids=lambda p: p.stem
)
def test_every_shipped_recipe_loads(recipe: Path) -> None:
    assert load_recipe(recipe).name == recipe.stem


def test_the_evo_rag_recipe_has_our_decisions_instead_of_the_papers() -> None:
    """`paper_constants.yaml` has the settings of evo-rag-paper.yaml."""
    ours = load_recipe(REPOSITORY / "configs" / "evo-rag.yaml")
    assert isinstance(ours.rewards, EvoRagSettings)
    decided = {
        "retrieval_bonus": "novel", "early_refusal": "wrong", "unanswerable_search": "unknown",
        "negative_cosine": "ignored", "overlap_threshold": 0.8, "horizon": None,
        "schedule": "time-dynamic", "stage": "discovery",
    }  # fmt: skip
    assert {name: getattr(ours.rewards, name) for name in decided} == decided
    assert ours.training.reward_model.labels == "component"
    assert (ours.training.dpo.reference, ours.retrieval.kind) == ("start", "bm25")
    assert ours.mcts == ChainSettings(iterations=4, branches=2)
    assert (ours.pairs.per_state, ours.pairs.min_gap) == ("extremes", 0.2)


def problems(tmp_path: Path, text: str, *overrides: str) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_recipe(path, overrides)
    return str(raised.value)


def test_all_errors_are_reported_with_line_and_nearest_key(tmp_path: Path) -> None:
    told = problems(
        tmp_path,
        "name: x\nmcts:\n  iteration: 5\n  c: high\nretrieval: {top_k: 0}\nlimit: 3\n",
    )
    assert "recipe.yaml:3: `mcts.iteration` is not a setting of the kind of search `tree`" in told
    assert "did you mean `iterations`?" in told
    assert "recipe.yaml:4: `mcts.c`" in told
    assert "recipe.yaml:5: `retrieval.top_k`" in told
    assert "recipe.yaml:6: `limit` is not a setting; did you mean `limits`?" in told


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: x\nmcts: {evaluator: judge}\n", "`judge:` is not set"),
        ("name: x\nrewards: {estimator: judge}\njudge: {}\n", "rewards.estimator is `judge`"),
        (
            "name: x\nmcts: {evaluator: judge}\njudge: {}\nrewards: {estimator: rollout}\n",
            "rewards.estimator is `rollout`",
        ),
        ("name: x\nretrieval: {kind: http}\n", "retrieval.url"),
        ("name: x\npolicy: {engine: openai, model: m}\n", "base_url"),
        ("name: x\ndata: {source: hotpotqa}\n", "questions"),
        (
            "name: x\nlimits: {max_usd: 1}\npolicy: {engine: openai, model: m, base_url: u}\n",
            "policy.price_per_million does not set input and output",
        ),
        (
            "name: x\nlimits: {max_usd: 1}\npolicy: {engine: vllm, model: m/m, base_url: u}\n",
            "policy.price_per_million does not set input and output",
        ),
        (
            "name: x\nlimits: {max_usd: 1}\njudge: {engine: openai, model: m, base_url: u, "
            "price_per_million: {input: 1}}\nmcts: {evaluator: judge}\n",
            "judge.price_per_million does not set output",
        ),
        (f"{PAID}evaluation: {{policies: {{big: big}}}}\n", "evaluation.policies.big.price_per"),
        (
            f"{PAID}evaluation: {{judge: {{model: big}}}}\njudge: {HOSTED}\n",
            "evaluation.judge.price_per",
        ),
        (
            f"{PAID}evaluation: {{baselines: [oracle], baseline_model: big}}\n",
            "evaluation.baseline_model.price_per",
        ),
        ("name: x\nmcts: {max_children: 1}\n", "steps without siblings"),
        ("name: x\nevaluation: {set: {limit: 9}}\n", "set evaluation.limit"),
        ("name: x\nevaluation: {set: {source: nq}}\n", "evaluation.set.source is `nq`"),
        ("name: x\npairs: {confirmed: true, order: shuffled}\n", "would drop the"),
        ("name: x\nmcts: {iterations: 4}\npairs: {min_outcomes: 5}\n", "at most 4 outcomes"),
        ("name: x\nrewards: {estimator: rollout}\npairs: {min_outcomes: 2}\n", "most 1 outcomes"),
        (
            "name: x\nmcts: {iterations: 4, kind: chains}\npairs: {min_outcomes: 5}\n",
            "at most 4 outcomes",
        ),
        ("name: x\nmcts: {kind: chains, iterations: 1}\n", "steps without siblings"),
        (
            "name: x\nmcts: {kind: chains, evaluator: judge}\n",
            "not a setting of the kind of search `chains`",
        ),
        ("name: x\nmcts: {kind: chains}\nrewards: {estimator: rollout}\n", "scores only answers"),
        ("name: x\nmcts: {max_output_tokens: 0}\n", "mcts.max_output_tokens"),
        (
            "name: x\nevaluation: {split: dev, set: {source: atlas}}\n",
            "evaluation.set names others",
        ),
        (
            "name: x\nmcts: {rollout_temperature: 0, rollouts: 2}\n",
            "all 2 rollouts of a",
        ),
        (
            "name: x\nrewards: {scheme: evo-rag}\nmcts: {kind: chains}\n",
            "set agent.protocol: evo-rag",
        ),
        (f"{EVO}\n", "set mcts.evaluator: playout, or mcts.kind: chains"),
        (f"{EVO}\nmcts: {{evaluator: judge}}\njudge: {{}}\n", "stores no steps"),
        (f"{EVO}\nmcts: {{evaluator: playout}}\n", "set mcts.normalise: true"),
        (f"{EVO}\nmcts: {{kind: chains}}\npairs: {{invalid: rejected}}\n", "pairs.invalid: drop"),
        (
            # Two chains, and three more draws at each of their at most ten states.
            f"{EVO}\nmcts: {{kind: chains, iterations: 2, branches: 2}}\n"
            "pairs: {min_outcomes: 63}\n",
            "at most 62 outcomes",
        ),
        (f"{EVO}\nmcts: {{kind: chains}}\nverifier: {{engine: openai}}\n", "verifier.base_url"),
        (
            f"{EVO}\nmcts: {{kind: chains}}\nlimits: {{max_usd: 1}}\n"
            "verifier: {engine: openai, base_url: u}\n",
            "verifier.price_per_million",
        ),
        ("name: x\nverifier: {}\n", "the reward scheme `spre` does not use one"),
        (
            "name: x\nmcts: {evaluator: playout}\nrewards: {estimator: rollout}\n",
            "so nodes lack rollouts",
        ),
        (
            "name: x\nagent: {protocol: evo-rag}\nmcts: {kind: chains}\n"
            "rewards: {scheme: evo-rag, schedule: answer-only, components: [step]}\n",
            "so every weight is 0",
        ),
        ("name: x\nrewards: {scheme: evo-rag, components: []}\n", "rewards.components"),
        ("name: x\nrewards: {scheme: evo-rag, components: [a]}\n", "rewards.components.0"),
        ("name: x\nrewards: {scheme: evo-rag, step_value: 1}\n", "rewards.step_value"),
        ("name: x\nrewards: {scheme: evo-rag, horizons: 3}\n", "did you mean `horizon`?"),
        ("name: x\nrewards:\n  scheme: evo\n", "recipe.yaml:3: `rewards.scheme`: no such reward"),
        ("name: x\nrewards: {scheme: evo}\n", "did you mean `evo-rag`? (given: 'evo')"),
        (
            "name: x\nrewards: {scheme: [a]}\n",
            "use one of arena, eval-rar, evo-rag, ",
        ),
        ("name: x\nrewards: {stage: discovery}\n", "`rewards.stage` is not a setting"),
        ("name: x\npairs: {min_gap: 1}\n", "pairs.min_gap"),
        ("name: x\npairs: {actions: [anwser]}\n", "pairs.actions.0"),
        ("name: x\npairs: {actions: []}\n", "pairs.actions"),
        ("name: x\npairs: {max_length_ratio: 0.5}\n", "pairs.max_length_ratio"),
        ("name: x\ntraining: {dpo: {batch_size: 8, micro_batch: 3}}\n", "training.dpo"),
        ("name: x\ntraining: {warm_start: {answer_only: true}}\n", "is `reasonrag`; remove it"),
        ("name: x\ndata: {questions: q.jsonl}\n", "remove `questions`"),
        ("name: ../../etc\n", "`name`"),
        ("seed: 3\n", "`name` is missing"),
        ("- 1\n", "a mapping"),
        ("name: [\n", "not valid YAML"),
    ],
)
def test_invalid_recipes_are_rejected(tmp_path: Path, text: str, says: str) -> None:
    assert says in problems(tmp_path, text)


def test_schema_errors_do_not_hide_conflicts_of_valid_blocks(tmp_path: Path) -> None:
    told = problems(
        tmp_path,
        "retrieval: {top_k: 0, kind: http}\nmcts: {evaluator: judge}\nlimits: {max_usd: 1}\n"
        "policy: {engine: openai, top_p: 2}\nfoo: 1\n",
    )
    assert "`name` is missing" in told
    assert "retrieval.top_k" in told
    assert "policy.top_p" in told
    assert "`foo` is not a setting" in told
    assert "`judge:` is not set" in told
    assert "retrieval.url" not in told, "an invalid block should not be checked for conflicts"
    assert "price_per_million" not in told


@pytest.mark.parametrize(
    "growth",
    [
        "{kind: chains, iterations: 4, branches: 2}",
        "{kind: chains, iterations: 1, branches: 2}",
        "{evaluator: playout, normalise: true}",
    ],
)
def test_valid_search_settings_for_evo_rag_load(tmp_path: Path, growth: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"{EVO}\nmcts: {growth}\nverifier: {{}}\npairs: {{min_outcomes: 9}}\n")
    assert load_recipe(path).rewards.scheme == "evo-rag"


def test_an_override_of_a_name_drops_the_settings_of_the_former_name(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("name: x\nmcts: {iterations: 9, c: 0.5}\nagent: {history: responses}\n")
    chains = load_recipe(path, ["mcts.kind=chains", "mcts.branches=2"]).mcts
    assert chains == ChainSettings(iterations=9, branches=2)
    path.write_text("name: x\nmcts: {iterations: 9, c: 0.5}\nagent: {max_steps: 10}\n")
    arena = load_recipe(path, ["agent.protocol=arena"]).agent
    assert arena.max_steps == 1, "not the 10 of a protocol with other bounds"
    told = problems(tmp_path, path.read_text(), "mcts.kind=chains", "mcts.c=0.5")
    assert "--set mcts.c: `mcts.c` is not a setting of the kind of search `chains`" in told
    told = problems(tmp_path, path.read_text(), "mcts={kind: chains, c: 0.5}")
    assert "`mcts.c` is not a setting" in told


def test_overrides_change_nested_settings_and_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("name: x\nmcts: {iterations: 3}\n")
    recipe = load_recipe(path, ["mcts.c=2.5", "policy.top_p=0.5", "data.corpus=[a, b]"])
    assert recipe.mcts == TreeSettings(iterations=3, c=2.5)
    assert recipe.policy.top_p == 0.5
    assert recipe.data.corpus == ("a", "b")
    told = problems(tmp_path, "name: x\n", "mcts.itertions=3", "nonsense", "seed=many")
    assert "--set mcts.itertions" in told
    assert "--set nonsense" in told
    assert "--set seed" in told


def test_data_paths_are_resolved_relative_to_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, here = tmp_path / "mine", tmp_path / "here"
    for folder in (mine / "docs", here):
        folder.mkdir(parents=True)
    for file in (mine / "q.jsonl", here / "q.jsonl", here / "only.jsonl"):
        file.write_text("")
    recipe = mine / "recipe.yaml"
    recipe.write_text(
        "name: x\n"
        "data: {corpus: [docs, only.jsonl], mix: [{source: jsonl, questions: q.jsonl}]}\n"
        "evaluation: {set: {source: hub, questions: docs}}\n"
    )
    monkeypatch.chdir(here)
    loaded = load_recipe(Path("../mine/recipe.yaml"))
    assert loaded.data.corpus == ("../mine/docs", "only.jsonl")
    assert loaded.data.mix[0].questions == "../mine/q.jsonl"
    assert loaded.evaluation.set is not None
    assert loaded.evaluation.set.questions == "docs", (
        "the name of a hub data set should not be resolved"
    )
    overridden = load_recipe(recipe, ["data.corpus=q.jsonl"])
    assert overridden.data.corpus == "q.jsonl", (
        "an override should be relative to the current folder"
    )
    monkeypatch.chdir(mine)
    assert load_recipe(recipe).data.corpus == ("docs", "only.jsonl")
    kept = mine / "config.yaml"
    kept.write_text(recipe.read_text())
    (mine / "provenance.json").write_text("{}")
    monkeypatch.chdir(here)
    assert load_recipe(kept).data.corpus == ("docs", "only.jsonl"), (
        "paths in the config of a run should not be resolved again"
    )


def test_a_digest_covers_only_the_named_blocks(tmp_path: Path) -> None:
    one, other = Recipe(name="x"), Recipe(name="x", seed=1)
    assert one.digest() != other.digest()
    assert one.digest("mcts", "rewards") == other.digest("mcts", "rewards")


def test_missing_packages_of_dense_retrieval_are_reported_with_other_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("branchwise.retrieval.encoder.find_spec", lambda name: None)
    told = problems(tmp_path, "name: x\nretrieval: {kind: dense}\npolicy: {engine: openai}\n")
    assert "faiss" in told
    assert "EXTRAS=dense" in told
    assert "base_url" in told, "all errors should be reported at once"
    told = problems(tmp_path, f"{EVO}\nmcts: {{kind: chains}}\n")
    assert "evo-rag needs the encoder of dense retrieval" in told
    assert "EXTRAS=dense" in told
    assert "bm25" not in told, "bm25 should not be suggested, as it does not replace the encoder"


def test_a_recipe_that_is_not_utf_8_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(b"name: x\xff\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_recipe(path)


def test_errors_in_overrides_name_the_override(tmp_path: Path) -> None:
    assert "--set name.x" in problems(tmp_path, "name: x\n", "name.x=3")
    assert "--set data..limit" in problems(tmp_path, "name: x\ndata: {}\n", "data..limit=3")
    typo = problems(tmp_path, "name: x\npolicy: typo\n", "policy.temperature=0.5")
    assert "`policy` is one value in the recipe" in typo


def test_overrides_as_values_equal_those_as_text(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("name: x\nseed: 0\n")
    model, lr = tmp_path / "model", 1e-5
    by_value = {"policy.model": model, "training.dpo.lr": lr, "evaluation.baselines": ("majority",)}
    as_text = [
        f"policy.model={model}",
        "training.dpo.lr=0.00001",
        "evaluation.baselines=[majority]",
    ]
    assert load_recipe(recipe, by_value) == load_recipe(recipe, as_text)
    with pytest.raises(ConfigError) as raised:
        load_recipe(recipe, {"seed.x": 1, "mcts.iteratons": 5})
    assert "override seed.x: `seed` is one value" in str(raised.value)
    assert "override mcts.iteratons: `mcts.iteratons` is not a setting of the kind of" in str(
        raised.value
    )


def test_a_file_has_precedence_over_a_shipped_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = recipe_path("atlas")
    assert load_recipe(shipped).name == "atlas"
    (tmp_path / "atlas").mkdir()
    assert recipe_path("atlas") == shipped
    (tmp_path / "musique").write_text("name: x\n")
    assert load_recipe(recipe_path("musique")).name == "x"
    assert recipe_path("none/atlas") == Path("none/atlas")
    with pytest.raises(ConfigError, match="did you mean `hotpotqa`"):
        recipe_path("hotpot-qa")


def test_questions_in_flight_depend_on_the_engine_unless_set() -> None:
    embedded = Recipe.model_validate({"name": "x"})
    endpoint = {"engine": "openai", "model": "m", "base_url": "http://127.0.0.1:1/v1"}
    served = Recipe.model_validate({"name": "x", "policy": endpoint})
    said = Recipe.model_validate({"name": "x", "limits": {"max_questions_in_flight": 7}})
    recipes = (embedded, served, said)
    numbers = [recipe.limits.questions_in_flight(recipe.policy) for recipe in recipes]
    assert numbers == [24, 256, 7]


def test_the_embedded_engine_gets_batch_and_cache_limits_of_the_recipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[dict[str, object]] = []
    monkeypatch.setattr(
        "branchwise.engines.embedded.openvino.embedded_engine",
        lambda model, log, **limits: given.append(limits),
    )
    recipe = Recipe.model_validate(
        {"name": "x", "limits": {"kv_cache_gib": 7, "max_concurrency": 3}}
    )
    engine_for(recipe.policy, recipe.limits)
    assert given == [{"max_batch": 3, "kv_cache_gib": 7}]
