"""Questions of the warm start: from the split `warm`, the same number from each set of a mix."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from branchwise.base.errors import ConfigError
from branchwise.pipelines.warm_start.stage import warm_part, warm_start
from branchwise.runs.recipe import Recipe
from branchwise.runs.recipe_file import load_recipe
from branchwise.runs.stage import StageContext
from branchwise.sources.load import load_data
from branchwise.sources.settings import DataSettings
from branchwise.training.examples import StepExample
from branchwise.training.training_run import TrainingReport


def test_all_sets_of_a_mix_give_the_same_number_of_questions() -> None:
    drawn = warm_part(load_recipe(Path("configs/real-dpo.yaml")), 200)
    assert drawn.limit == 200
    assert [(one.split, one.limit) for one in drawn.mix] == [("warm", 67)] * 3


def test_warm_start_sets_are_added_to_the_mix() -> None:
    further = 'training.warm_start.sets=[{"source": "2wiki", "questions": "x", "split": null}]'
    recipe = load_recipe(Path("configs/real-dpo.yaml"), [further])
    drawn = warm_part(recipe, 200)
    assert [(one.split, one.limit) for one in drawn.mix] == [("warm", 50)] * 3 + [(None, 50)]
    assert len(recipe.data.mix) == 3, "other stages do not use the additional set"
    with pytest.raises(ConfigError, match=r"name the set of `data` in data\.mix"):
        warm_part(load_recipe(Path("configs/atlas.yaml"), [further]), 200)


def test_a_single_set_gives_all_questions() -> None:
    drawn = warm_part(load_recipe(Path("configs/atlas.yaml"), ["data.skip=9"]), 200)
    assert drawn.skip == 0, "a later cycle of a curriculum does not skip the questions to trace"
    assert (drawn.split, drawn.limit, drawn.mix) == ("warm", 200, ())


@pytest.mark.parametrize(("recipe", "refusals"), [("atlas", 0), ("evo-rag", 4)])
def test_unanswerable_questions_give_traces_if_the_policy_can_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, refusals: int
) -> None:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path))
    settings = load_recipe(Path(f"configs/{recipe}.yaml"), ["data.cities=500"])
    call = StageContext(settings, tmp_path / "run", dry_run=True, limit=40)
    counts = warm_start(call).totals["counts"]
    assert counts.get("refusals: unanswerable", 0) == refusals
    aside = sum(n for name, n in counts.items() if name.startswith("skipped"))
    assert counts["traces"] + aside == 36 + refusals, "one question in ten is unanswerable"


@pytest.mark.parametrize(
    ("recipe", "setting", "problem"),
    [
        ("arena", "data.references=0", "no question gives a trace"),
        ("atlas", "agent.protocol=reading", "cannot write traces of `reading`"),
    ],
)
def test_recipes_that_give_no_traces_are_refused_before_training(
    recipe: str, setting: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path))
    settings = load_recipe(Path(f"configs/{recipe}.yaml"), ["data.cities=500", setting])
    with pytest.raises(ConfigError, match=problem):
        warm_start(StageContext(settings, tmp_path / "run", limit=4))


@pytest.mark.parametrize("wrong", [4, 7])
def test_a_warm_start_that_skips_most_questions_stops(
    wrong: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    names = [f"Thing{n}" for n in range(40)]
    passages = [{"id": n, "title": n, "text": f"{n} weighs {len(n)} kg."} for n in names]
    questions = [
        {"id": n, "question": f"How heavy is {n}?", "answers": [f"{len(n)} kg"]} for n in names
    ]
    for file, rows in (("corpus", passages), ("questions", questions)):
        (tmp_path / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "r.yaml").write_text(
        "name: r\ndata: {source: jsonl, questions: questions.jsonl, corpus: corpus.jsonl}\n"
    )
    recipe = load_recipe(tmp_path / "r.yaml")
    asked = [q.id for q in load_data(warm_part(recipe, 8), recipe.seed).questions]
    for place, name in enumerate(asked):
        row = next(q for q in questions if q["id"] == name)
        if place != wrong - 1:  # one without gold passages, others with a wrong title
            row["supporting_titles"] = [name if place >= wrong else f"No {name}"]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    call = StageContext(recipe, tmp_path / "run", dry_run=True, limit=8)
    if wrong == 4:
        assert warm_start(call).totals["counts"]["traces"] == 4
        return
    with pytest.raises(ConfigError) as raised:
        warm_start(call)
    told, *reasons = str(raised.value).splitlines()
    assert told.startswith("warm-start: 7 of 8 questions give no trace, more than half. Change")
    assert reasons == [
        "6 × supporting passages are not in the corpus: make these titles or ids those of the "
        "corpus; `make data` lists examples",
        "1 × supporting passages are not given: add supporting_titles or supporting_ids to the "
        "questions (docs/your-data.md)",
    ]
    assert 'cited passages not in the corpus: 6, such as "No Thing' in capsys.readouterr().out


def reading_recipe(folder: Path, answer: str = "{} m") -> Recipe:
    """Returns an Atlas recipe with 60 passages, each with one answerable and one other question."""
    lines = []
    for n in range(60):
        about = {"title": f"Tower {n}", "passage": f"Tower {n} is {n} m high."}
        asked: dict[str, Any] = {"id": f"r{n}", "question": f"How high is tower {n}?"}
        lines.append({**asked, **about, "answers": [answer.format(n)]})
        lines.append({**asked, **about, "id": f"i{n}", "answers": [], "is_impossible": True})
    path = folder / "reading.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    reading = {"sets": [{"source": "reading", "questions": str(path)}]}
    changes = ["data.cities=500", f"training.warm_start.reading={json.dumps(reading)}"]
    return load_recipe(Path("configs/atlas.yaml"), changes)


def learned(
    recipe: Recipe, folder: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> tuple[list[str], dict[str, int]]:
    """Returns the questions of the examples that a warm start trains on, and its counts."""
    monkeypatch.setenv("BRANCHWISE_CACHE", str(folder / "cache"))
    asked: list[str] = []

    def train(_: object, examples: Sequence[StepExample], **__: Any) -> TrainingReport:
        asked.extend(example.question_id for example in examples)
        return TrainingReport("warm-start", len(examples), 0, 0, 0.0)

    monkeypatch.setattr("branchwise.pipelines.warm_start.stage.train_on_steps", train)
    totals = warm_start(StageContext(recipe, folder / "run", limit=limit)).totals
    return asked, totals["counts"]


def test_reading_examples_use_only_passages_of_the_warm_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = reading_recipe(tmp_path)
    path = str(tmp_path / "reading.jsonl")
    warm = DataSettings(source="reading", questions=path, split="warm", limit=None)
    answerable = {one.id for one in load_data(warm, 0).questions if one.answerable}
    assert 4 < len(answerable) < 40
    asked, counts = learned(recipe, tmp_path, monkeypatch, limit=40)
    read = [name for name in asked if name[1:].isdigit() and name[0] in "ri"]
    assert set(read) == answerable
    assert len(read) == counts["reading examples"] < len(asked)


def test_limit_applies_to_reading_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = learned(reading_recipe(tmp_path), tmp_path, monkeypatch, limit=4)[1]
    assert counts["reading questions"] == 4


def test_a_warm_start_that_skips_most_reading_questions_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = reading_recipe(tmp_path, answer="two\nlines of {}")
    with pytest.raises(ConfigError, match=r"4 of 4 questions give no trace(.|\n)*4 × a step does"):
        learned(recipe, tmp_path, monkeypatch, limit=4)
