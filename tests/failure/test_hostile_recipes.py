"""Hostile YAML and JSON: stages fail quickly with a short message that names the file.

`Stages` reports a stage that hangs.
"""

import json
from pathlib import Path

import pytest
from durable import World
from stages import Ended

from branchwise.base.errors import ConfigError
from branchwise.runs.recipe_file import load_recipe
from branchwise.storage.manifest import MANIFEST

pytestmark = pytest.mark.failure

DEEP = 100_000
DIGITS = "9" * 5000


RECIPES = {
    "an anchor": ("name: x\ndata: &a [x]", ":2: `a` is an anchor or alias"),
    "an alias": ("name: x\ndata: *a", ":2: `a` is an anchor or alias"),
    "a root in itself": ("&a {name: x, data: *a}", ":1: `a` is an anchor or alias"),
    "a merge": ("name: x\ndata: {<<: {k: v}}", ":2: is a key that is not text"),
    "deep lists": ("name: x\ndata: " + "[" * DEEP, "nested too deeply"),
    "an integer": (f"name: x\nseed: {DIGITS}", ":2: "),
    "not a number": ("name: x\nmcts: {c: .nan}", "mcts.c"),
    "a key that is a number": ("name: x\n1: 2", ":2: is a key that is not text"),
    "a date": ("name: 2024-01-01", ":1: 2024-01-01 is a date; put it in quotes"),
    "an object": ("name: !!python/object/apply:os.system [id]", "has the tag"),
    "twice": ("name: x\nmcts: {c: 1}\nmcts: {c: 2}", ":3: `mcts` is repeated; remove one"),
    "twice within": ("name: x\nmcts: {c: 1, c: 2}", ":2: `mcts.c` is repeated; remove one"),
    "too long": ("name: x\n# " + "x" * 300_000, "bytes"),
    "two": ("name: x\n---\nname: y", "single document"),
}
JSONS = {
    "deep": '{"inputs": ' + "[" * DEEP,
    "an integer": f'{{"inputs": {{}}, "cpu_count": {DIGITS}}}',
    "a list": "[]",
    "no inputs": '{"inputs": 5}',
    "torn": '{"inputs": {',
    "latin": '{"inputs": "\xe9"}',
}


def assert_refused(ended: Ended, *said: str, code: int = 2) -> None:
    """Checks for the exit code and a short message with these words, without a traceback."""
    assert ended.code == code, ended.said[-3000:]
    assert "Traceback" not in ended.said
    for words in said:
        assert words in ended.said
    assert len(ended.said) < 3000, "the message must be short"


@pytest.mark.parametrize(("text", "says"), RECIPES.values(), ids=RECIPES)
def test_an_invalid_recipe_is_refused_with_file_and_line(
    text: str, says: str, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_recipe(recipe)
    assert says in str(refused.value)
    assert "recipe" in str(refused.value)
    assert len(str(refused.value)) < 3000, "the message must be short"


@pytest.mark.parametrize(
    "value",
    ["[" * 5000, DIGITS, "&a [*a]", "2024-01-01"],
)
def test_an_invalid_value_of_set_is_refused(value: str, world: World, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for key in ("seed", "data.mix"):
        ended = world.stages.run(
            "annotate", "--config", world.recipe, "--run", run, "--set", f"{key}={value}"
        )
        assert_refused(ended, f"--set {key}: cannot parse the value")


@pytest.mark.parametrize("text", JSONS.values(), ids=JSONS)
def test_an_unreadable_provenance_is_refused(text: str, world: World, run: Path) -> None:
    (run / "provenance.json").write_text(text, encoding="latin-1")
    for stage in ("annotate", "relabel"):
        ended = world.stages.run(stage, "--config", world.recipe, "--run", run)
        assert_refused(ended, f"{run}/provenance.json: cannot be read", "Restore the")


@pytest.mark.parametrize(
    "text",
    [
        '{"parts": ' + "[" * DEEP,
        f'{{"schema_version": {DIGITS}}}',
        f'{{"parts": [{{"table": "trees", "path": "trees/a", "sha256": "", "rows": {DIGITS}}}]}}',
        '{"parts": [{"table": "trees", "path": "../x", "sha256": "", "rows": 1}]}',
    ],
)
def test_an_invalid_manifest_is_refused(text: str, world: World, run: Path) -> None:
    (run / MANIFEST).write_text(text)
    assert_refused(
        world.stages.run("inspect", "--run", run), f"{run}/manifest.json: not a manifest", code=1
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        RECIPES["an anchor"],
        ("[]", "is not a mapping of settings"),
        ("rewards: [1]", "rewards"),
    ],
)
def test_invalid_settings_of_a_relabelling_are_refused(
    text: str, says: str, world: World, run: Path
) -> None:
    assert world.stages.run("relabel", "--run", run, "--label", "mine").code == 0
    (run / "relabelled" / "mine" / "labelling.yaml").write_text(text)
    ended = world.stages.run("diagnose", "--run", run, "--label", "mine", "--no-model")
    assert_refused(ended, says, f"{run}/relabelled/mine/labelling.yaml: cannot be read")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[" * DEEP, "is nested too deeply"),
        ('{"id": "b", "question": "Who?", "answers": [NaN]}', "has NaN"),
    ],
)
def test_an_invalid_line_of_questions_is_refused_with_its_number(
    line: str, says: str, world: World, tmp_path: Path
) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(f'{{"id": "a", "question": "Who?", "answers": ["I"]}}\n{line}\n')
    ended = world.stages.run(
        "data", "--config", world.recipe, "--set", f"data.questions={json.dumps(str(path))}"
    )
    assert_refused(ended, f"{path}:2: ", says)
