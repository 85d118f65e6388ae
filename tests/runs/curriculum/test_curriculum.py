"""The stages that a curriculum runs, their order and settings, with a scripted study runner."""

import io
import json
import shlex
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_study_runner import Command, Pretended, pretended
from tiny_dataset import recipe

from branchwise.base.errors import ConfigError
from branchwise.pipelines.curriculum import stage
from branchwise.pipelines.curriculum.stage import (
    CurriculumState,
    check_curriculum,
    curriculum,
    final_eval_command,
)
from branchwise.runs.curriculum import cycle_report as report
from branchwise.runs.curriculum.cycle import DevResult
from branchwise.runs.question_set import data_settings
from branchwise.runs.studies.study_runner import StageStopped, StudyRunner
from branchwise.runs.trained_reward_model import NOT_TRAINED

SCORES = {"start": 0.3, "discovery-1": 0.5, "discovery-2": 0.4, "refinement-1": 0.6}


def dev_row(policy: str) -> dict[str, Any]:
    """Returns the metrics of a policy on dev, as in the totals of an evaluation."""
    behaviour = {"searches": 3.0, "backtracks": 0.5, "refused": 0.1}
    refusals = {"refusal_precision": 0.5, "refusal_recall": 0.4}
    return {"n": 200, "em": SCORES.get(policy, 0.1), "f1": 0.5, **behaviour, **refusals}


@dataclass(frozen=True)
class Scripted(Pretended):
    """Study runner whose runs yield `pairs(run)` pairs."""

    pairs: Callable[[str], int] = field(default=lambda run: 7)

    def run_stage(self, stage: str, *arguments: str, **given: Any) -> dict[str, Any]:
        totals = super().run_stage(stage, *arguments, **given)
        if stage == "eval":
            return totals
        pairs = self.pairs(self.context.run.name)
        trained_on = {"examples": pairs - 2} if stage == "train-dpo" else {}
        return {**totals, "pairs": pairs, **trained_on}


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "draw_course", lambda *_: None)
    monkeypatch.setattr(report, "draw_weights", lambda *_: None)


def scripted(folder: Path, *settings: str, **more: Any) -> Scripted:
    plain = pretended("evo-rag", folder / "evo", "curriculum.reward_model=false", *settings)
    return Scripted(plain.context, (0,), plain.context.run / "curriculum", scored=dev_row, **more)


def run_curriculum(runner: Scripted) -> tuple[CurriculumState, DevResult]:
    course = CurriculumState(runner)
    return course, course.run()


def commands(runner: Scripted, stage: str) -> list[Command]:
    return [one for one in runner.ran if one.stage == stage]


def test_cycles_run_in_order_with_their_questions_and_start_policies(tmp_path: Path) -> None:
    runner = scripted(tmp_path, "curriculum.cycles.discovery=2", "curriculum.questions=20")
    course, final = run_curriculum(runner)
    assert [(one.stage, one.run) for one in runner.ran[:4]] == [
        ("eval", "evo"),
        ("annotate", "evo-discovery-1"),
        ("train-dpo", "evo-discovery-1"),
        ("eval", "evo-discovery-1"),
    ]
    grown = [one.settings for one in commands(runner, "annotate")]
    assert [one["rewards.stage"] for one in grown] == ["discovery", "discovery", "refinement"]
    assert [one["cycle"] for one in grown] == [1, 2, 3]
    assert [(one["data.skip"], one["data.limit"]) for one in grown] == [(0, 20), (20, 20), (40, 20)]
    assert [one.get("policy.model") for one in grown] == [
        None,  # that of the recipe
        "models/evo-discovery-1/dpo",  # that of the previous cycle
        "models/evo-discovery-1/dpo",  # the best of Discovery
    ]
    assert (final.name, final.model) == ("refinement-1", "models/evo-refinement-1/dpo")
    assert course.totals()["best"] == {"discovery": "discovery-1", "refinement": "refinement-1"}
    assert [one.begun_from for one in course.results] == [
        None, "start", "discovery-1", "discovery-1",
    ]  # fmt: skip


def test_a_cycle_trains_the_policy_that_generated_its_trees(tmp_path: Path) -> None:
    runner = scripted(tmp_path, "policy.weights=somewhere")
    run_curriculum(runner)
    for grown, trained in zip(
        commands(runner, "annotate"), commands(runner, "train-dpo"), strict=True
    ):
        for name in ("policy.model", "policy.weights", "rewards.stage"):
            assert (name in grown.settings) == (name in trained.settings)
            assert grown.settings.get(name) == trained.settings.get(name)
    first, second = commands(runner, "annotate")
    assert "policy.weights" not in first.settings, (
        "the start policy should have the weights of the recipe"
    )
    assert second.settings["policy.weights"] is None, "a trained policy should have its own weights"


def test_all_policies_are_evaluated_on_the_same_dev_questions(tmp_path: Path) -> None:
    own_set = "evaluation.set={source: atlas, split: test}"
    judge = "judge={engine: openai, model: a, base_url: http://localhost/v1}"
    more = (own_set, judge, "evaluation.judge={}")
    runner = scripted(tmp_path, "curriculum.dev_questions=50", *more)
    run_curriculum(runner)
    evaluated = [runner.recipe_with(one.settings) for one in commands(runner, "eval")]
    assert {recipe.answer_judge for recipe in evaluated} == {None}, "EM decides, without a judge"
    asked = [data_settings(recipe) for recipe in evaluated]
    assert (asked[0].split, asked[0].limit, asked[0].skip) == ("dev", 50, 0)
    assert asked == [asked[0]] * 3, "data.skip of a cycle should not change the dev set"
    assert runner.asked("dev") == ["start", "discovery-1", "refinement-1"]


def test_a_stage_ends_when_dev_em_stalls(tmp_path: Path) -> None:
    many = ("curriculum.cycles={discovery: 9, refinement: 9}", "curriculum.questions=10")
    runner = scripted(tmp_path, *many)
    course, final = run_curriculum(runner)
    assert [one.begun_from for one in course.results[1:]] == [
        "start", "discovery-1", "discovery-2",  # the previous policy, even if it is worse
        "discovery-1", "refinement-1", "refinement-2",
    ]  # fmt: skip
    assert runner.asked("dev") == [
        "start",
        *(f"discovery-{n}" for n in (1, 2, 3)),  # 0.5, then 0.4 and 0.1
        *(f"refinement-{n}" for n in (1, 2, 3)),
    ]
    grown = [one.settings for one in commands(runner, "annotate")]
    assert [one["data.skip"] for one in grown] == [0, 10, 20, 30, 40, 50], (
        "only the cycles that ran should use up questions"
    )
    assert final.name == "refinement-1"
    assert "discovery ends: no higher dev EM for 2 cycles" in printed_output(runner)


def test_refinement_starts_from_the_start_policy_if_discovery_lowered_em(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCORES, "discovery-1", 0.2)
    runner = scripted(tmp_path)
    course, _ = run_curriculum(runner)
    assert "policy.model" not in commands(runner, "annotate")[1].settings
    assert course.results[2].begun_from == "start"
    assert course.totals()["best"]["discovery"] == "start"


def test_a_cycle_without_pairs_ends_its_stage(tmp_path: Path) -> None:
    more = {"pairs": lambda run: 0 if run.endswith("discovery-2") else 7}
    runner = scripted(tmp_path, "curriculum.cycles.discovery=3", **more)
    run_curriculum(runner)
    assert runner.asked("dev") == ["start", "discovery-1", "refinement-1"]
    last = commands(runner, "annotate")[-1]
    assert (last.run, last.settings["cycle"]) == ("evo-refinement-1", 3)
    assert "discovery ends because discovery-2 yielded no pairs" in printed_output(runner)


def test_a_stage_with_0_cycles_is_skipped(tmp_path: Path) -> None:
    runner = scripted(tmp_path, "curriculum.cycles.discovery=0")
    course, _ = run_curriculum(runner)
    assert runner.asked("dev") == ["start", "refinement-1"]
    assert list(course.chosen) == ["refinement"]


def printed_output(runner: StudyRunner) -> str:
    assert isinstance(runner.context.console.file, io.StringIO)
    return runner.context.console.file.getvalue()


def test_the_final_evaluation_command_names_the_policy_of_the_curriculum(
    tmp_path: Path,
) -> None:
    runner = scripted(tmp_path)
    _, final = run_curriculum(runner)
    program, stage, _, run, _, setting = shlex.split(final_eval_command(runner.context, final))
    assert (program, stage) == ("branchwise", "eval")
    assert run == f"{runner.context.run}-{final.name}"
    name, _, policies = setting.partition("=")
    assert name == "evaluation.policies"
    start = runner.recipe.policy.model
    assert json.loads(policies) == {"start": start, final.name: final.model}
    assert final.model != start


def test_the_table_has_one_row_per_policy(tmp_path: Path) -> None:
    runner = scripted(tmp_path)
    run_curriculum(runner)
    head, *rows = (runner.folder / "curriculum-cycles.csv").read_text().splitlines()
    assert head.startswith("policy,begun from,model,best of,pairs,questions,EM,F1,searches,backtr")
    assert rows == [
        f"start,–,{runner.recipe.policy.model},,–,200,30.0,50.0,3.00,0.50,10.0,50.0,40.0",
        "discovery-1,start,models/evo-discovery-1/dpo,discovery,"
        "5,200,50.0,50.0,3.00,0.50,10.0,50.0,40.0",
        "refinement-1,discovery-1,models/evo-refinement-1/dpo,refinement,"
        "5,200,60.0,50.0,3.00,0.50,10.0,50.0,40.0",
    ]
    told = (runner.folder / "curriculum.md").read_text()
    assert "| refinement-1 | discovery-1 | models/evo-refinement-1/dpo | refinement | 5 |" in told


SEARCH = "mcts={kind: tree, evaluator: reward_model, normalise: true}"
SCORED = ("curriculum.reward_model=true", "pairs.score=reward_model", "reward_model=any")


def test_pairs_can_be_scored_by_a_reward_model_trained_on_the_labels(
    tmp_path: Path,
) -> None:
    runner = scripted(tmp_path, *SCORED)
    run_curriculum(runner)
    own = [one for one in runner.ran if one.run == "evo-refinement-1"]
    assert [one.stage for one in own] == ["annotate", "train-rm", "relabel", "train-dpo", "eval"]
    grown, learned, labelled, trained, _ = own
    assert grown.settings["pairs.score"] == learned.settings["pairs.score"] == "labels"
    assert "pairs.score" not in labelled.settings
    assert labelled.settings["reward_model"] == "models/evo-refinement-1/reward-model"
    assert labelled.arguments == trained.arguments == ("--label", "reward-model")


@dataclass(frozen=True)
class Poor(Scripted):
    """Runner whose train-rm stops: without training data, or for another reason."""

    not_trained: bool = True

    def run_stage(self, stage: str, *arguments: str, **given: Any) -> dict[str, Any]:
        if stage == "train-rm":
            why = {NOT_TRAINED: "no pair is left"} if self.not_trained else {}
            raise StageStopped("train-rm ended with exit code 2", 2, why)
        return super().run_stage(stage, *arguments, **given)


def test_an_unused_reward_model_can_be_skipped_if_it_has_no_training_data(tmp_path: Path) -> None:
    plain = scripted(tmp_path, SCORED[0])
    runner = Poor(plain.context, (0,), plain.output_folder, scored=dev_row)
    run_curriculum(runner)
    assert runner.asked("dev") == ["start", "discovery-1", "refinement-1"]
    assert "continues without a reward model for this cycle: no pair is left" in printed_output(
        runner
    )
    with pytest.raises(StageStopped, match="exit code 2"):
        CurriculumState(
            Poor(plain.context, (0,), plain.output_folder, scored=dev_row, not_trained=False)
        ).run()
    for asking in (SCORED, (SCORED[0], SEARCH, "reward_model=first")):
        plain = scripted(tmp_path, *asking)
        with pytest.raises(StageStopped, match="exit code 2"):
            CurriculumState(Poor(plain.context, (0,), plain.output_folder, scored=dev_row)).run()


def test_a_dev_set_without_answerable_questions_is_rejected(tmp_path: Path) -> None:
    runner = replace(scripted(tmp_path), scored=lambda policy: {**dev_row(policy), "em": None})
    with pytest.raises(ConfigError, match="none of the 200 questions of split dev"):
        CurriculumState(runner).run()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (("rewards={scheme: spre}",), "`spre` does not have stages"),
        (("rewards.schedule=none",), "all reward weights are 0"),
        ((*SCORED[1:], "curriculum.reward_model=false"), "curriculum.reward_model is false"),
        (("training.reward_model.encoder=nowhere",), "nowhere"),
        (("data.limit=null",), "questions: set curriculum.questions"),
        (("data.split=null",), "data.split of atlas is not set"),
        (("data.split=dev",), "data.split of atlas is dev"),
        (("policy={engine: openai, base_url: http://x, model: m}",), "cannot load the trained"),
        (("policy={engine: vllm, base_url: http://x}",), "base_url names a running server"),
    ],
)
def test_invalid_settings_are_rejected_before_the_run_starts(
    settings: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    more = (
        ("agent.protocol=reasonrag", "mcts.kind=tree", "curriculum={}")
        if "spre" in settings[0]
        else ()
    )
    fitting = ("policy.model=packaged", "data.cities=500", *settings, *more)
    call = pretended("evo-rag", tmp_path / "evo", *fitting).context
    with pytest.raises(ConfigError, match=told):
        check_curriculum(call)
    assert not call.run.exists()


def test_too_few_questions_are_rejected_before_the_run_starts(tmp_path: Path) -> None:
    recipe(tmp_path, "")
    data = f"data={{source: jsonl, questions: {tmp_path}/questions.jsonl, corpus: {tmp_path}"
    few = (f"{data}/corpus.jsonl, limit: 800}}", "policy.model=packaged")
    call = pretended("evo-rag", tmp_path / "evo", *few).context
    with pytest.raises(ConfigError, match=r"800 questions each, but there are \d"):
        check_curriculum(call)


def test_a_cycle_without_a_new_reward_model_keeps_the_previous_one(tmp_path: Path) -> None:
    more = {"pairs": lambda run: 0 if run.endswith("discovery-2") else 7}
    asks = (SEARCH, "reward_model=first", "curriculum.reward_model=true")
    runner = scripted(tmp_path, *asks, "curriculum.cycles.discovery=2", **more)
    run_curriculum(runner)
    asked = [one.settings.get("reward_model") for one in commands(runner, "annotate")]
    assert asked == [None, *["models/evo-discovery-1/reward-model"] * 2]
    learned = [one.run for one in commands(runner, "train-rm")]
    assert learned == ["evo-discovery-1", "evo-refinement-1"], (
        "a cycle without pairs should train nothing"
    )


def test_cycles_start_after_the_questions_that_the_recipe_skips(tmp_path: Path) -> None:
    runner = scripted(tmp_path, "data.skip=100", "curriculum.questions=20")
    run_curriculum(runner)
    assert [one.settings["data.skip"] for one in commands(runner, "annotate")] == [100, 120]


def test_exactly_as_many_questions_as_the_cycles_need_are_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "open_data", lambda *_: SimpleNamespace(questions=range(40)))
    for each, enough in ((20, True), (21, False)):
        more = ("policy.model=packaged", f"curriculum.questions={each}")
        call = pretended("evo-rag", tmp_path / "evo", *more).context
        with nullcontext() if enough else pytest.raises(ConfigError, match="2 cycles need 21"):
            check_curriculum(call)


def test_a_curriculum_returns_the_exit_code_of_the_stage_that_stopped_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(course: CurriculumState) -> DevResult:
        raise StageStopped("annotate: stopped", 3)

    monkeypatch.setattr(CurriculumState, "run", stop)
    monkeypatch.setattr("branchwise.pipelines.curriculum.stage.check_curriculum", lambda call: None)
    monkeypatch.setattr("branchwise.pipelines.curriculum.stage.model_digest", lambda *_: "d")
    outcome = curriculum(scripted(tmp_path).context)
    assert (outcome.exit_code, outcome.totals["stopped"]) == (3, "annotate: stopped")


def test_pairs_are_scored_by_the_reward_model_of_their_own_cycle(
    tmp_path: Path,
) -> None:
    runner = scripted(tmp_path, *SCORED, SEARCH)
    run_curriculum(runner)
    asked = [one.settings["reward_model"] for one in commands(runner, "relabel")]
    assert asked == [f"models/evo-{cycle}-1/reward-model" for cycle in ("discovery", "refinement")]


def test_only_the_number_of_refinement_cycles_may_change(tmp_path: Path) -> None:
    def steady(setting: str) -> dict[str, Any]:
        return stage._fixed_settings(pretended("evo-rag", tmp_path / "evo", setting).context.recipe)

    begun = steady("name=evo-rag")
    assert steady("curriculum.cycles.refinement=9") == begun
    assert steady("curriculum.cycles.discovery=9") != begun
