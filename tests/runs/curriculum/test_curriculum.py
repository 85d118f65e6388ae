"""What a curriculum runs, in which order and on what, where stages are scripted."""

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

from base.errors import ConfigError
from pipelines.curriculum import CurriculumState, curriculum, final_eval_command
from runs.annotation.reward_model import UNTAUGHT
from runs.curriculum import checks, report
from runs.curriculum.checks import check_curriculum
from runs.curriculum.cycle import DevResult
from runs.evaluation.question_set import data_settings
from runs.studies.study_runner import StageStopped, StudyRunner

SCORES = {"start": 0.3, "discovery-1": 0.5, "discovery-2": 0.4, "refinement-1": 0.6}


def dev_row(policy: str) -> dict[str, Any]:
    """Figures of a policy on dev, as an evaluation's totals have them."""
    behaviour = {"searches": 3.0, "backtracks": 0.5, "refused": 0.1}
    refusals = {"refusal_precision": 0.5, "refusal_recall": 0.4}
    return {"n": 200, "em": SCORES.get(policy, 0.1), "f1": 0.5, **behaviour, **refusals}


@dataclass(frozen=True)
class Scripted(Pretended):
    """`pairs` says how many pairs a run gives."""

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


def carried_out(runner: Scripted) -> tuple[CurriculumState, DevResult]:
    course = CurriculumState(runner)
    return course, course.run()


def commands(runner: Scripted, stage: str) -> list[Command]:
    return [one for one in runner.ran if one.stage == stage]


def test_cycles_follow_one_another(tmp_path: Path) -> None:
    runner = scripted(tmp_path, "curriculum.cycles.discovery=2", "curriculum.questions=20")
    course, final = carried_out(runner)
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
        None,  # the recipe's
        "models/evo-discovery-1/dpo",  # the last cycle's
        "models/evo-discovery-1/dpo",  # the best of Discovery
    ]
    assert (final.name, final.model) == ("refinement-1", "models/evo-refinement-1/dpo")
    assert course.totals()["best"] == {"discovery": "discovery-1", "refinement": "refinement-1"}
    assert [one.begun_from for one in course.results] == [
        None, "start", "discovery-1", "discovery-1",
    ]  # fmt: skip


def test_a_policy_is_trained_from_the_one_that_rolled_out(tmp_path: Path) -> None:
    runner = scripted(tmp_path, "policy.weights=somewhere")
    carried_out(runner)
    for grown, trained in zip(
        commands(runner, "annotate"), commands(runner, "train-dpo"), strict=True
    ):
        for name in ("policy.model", "policy.weights", "rewards.stage"):
            assert (name in grown.settings) == (name in trained.settings)
            assert grown.settings.get(name) == trained.settings.get(name)
    first, second = commands(runner, "annotate")
    assert "policy.weights" not in first.settings, "the start's weights are the recipe's"
    assert second.settings["policy.weights"] is None, "a trained policy's are its own"


def test_all_policies_are_asked_the_same_of_dev(tmp_path: Path) -> None:
    own_set = "evaluation.set={source: atlas, split: test}"
    runner = scripted(tmp_path, "curriculum.dev_questions=50", own_set)
    carried_out(runner)
    asked = [data_settings(runner.recipe_with(one.settings)) for one in commands(runner, "eval")]
    assert (asked[0].split, asked[0].limit, asked[0].skip) == ("dev", 50, 0)
    assert asked == [asked[0]] * 3, "whatever a cycle skips"
    assert runner.asked("dev") == ["start", "discovery-1", "refinement-1"]


def test_a_stage_ends_when_dev_em_stalls(tmp_path: Path) -> None:
    many = ("curriculum.cycles={discovery: 9, refinement: 9}", "curriculum.questions=10")
    runner = scripted(tmp_path, *many)
    course, final = carried_out(runner)
    assert [one.begun_from for one in course.results[1:]] == [
        "start", "discovery-1", "discovery-2",  # the last one's, better or not
        "discovery-1", "refinement-1", "refinement-2",
    ]  # fmt: skip
    assert runner.asked("dev") == [
        "start",
        *(f"discovery-{n}" for n in (1, 2, 3)),  # 0.5, then 0.4 and 0.1
        *(f"refinement-{n}" for n in (1, 2, 3)),
    ]
    grown = [one.settings for one in commands(runner, "annotate")]
    assert [one["data.skip"] for one in grown] == [0, 10, 20, 30, 40, 50], "of those that were run"
    assert final.name == "refinement-1"
    assert "discovery ends: no higher dev EM for 2 cycles" in said(runner)


def test_refinement_begins_with_the_start_if_discovery_only_harmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCORES, "discovery-1", 0.2)
    runner = scripted(tmp_path)
    course, _ = carried_out(runner)
    assert "policy.model" not in commands(runner, "annotate")[1].settings
    assert course.results[2].begun_from == "start"
    assert course.totals()["best"]["discovery"] == "start"


def test_a_cycle_without_pairs_ends_its_stage(tmp_path: Path) -> None:
    more = {"pairs": lambda run: 0 if run.endswith("discovery-2") else 7}
    runner = scripted(tmp_path, "curriculum.cycles.discovery=3", **more)
    carried_out(runner)
    assert runner.asked("dev") == ["start", "discovery-1", "refinement-1"]
    last = commands(runner, "annotate")[-1]
    assert (last.run, last.settings["cycle"]) == ("evo-refinement-1", 3)
    assert "discovery ends because discovery-2 yielded no pairs" in said(runner)


def test_a_stage_may_be_left_out(tmp_path: Path) -> None:
    runner = scripted(tmp_path, "curriculum.cycles.discovery=0")
    course, _ = carried_out(runner)
    assert runner.asked("dev") == ["start", "refinement-1"]
    assert list(course.chosen) == ["refinement"]


def said(runner: StudyRunner) -> str:
    assert isinstance(runner.context.console.file, io.StringIO)
    return runner.context.console.file.getvalue()


def test_the_test_is_asked_of_the_curriculum_s_policy_whatever_the_recipe_names(
    tmp_path: Path,
) -> None:
    runner = scripted(tmp_path)
    _, final = carried_out(runner)
    program, stage, _, run, _, setting = shlex.split(final_eval_command(runner.context, final))
    assert (program, stage) == ("branchwise", "eval")
    assert run == f"{runner.context.run}-{final.name}"
    name, _, policies = setting.partition("=")
    assert name == "evaluation.policies"
    start = runner.recipe.policy.model
    assert json.loads(policies) == {"start": start, final.name: final.model}
    assert final.model != start


def test_the_table_has_a_row_a_policy(tmp_path: Path) -> None:
    runner = scripted(tmp_path)
    carried_out(runner)
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


SCORED = ("curriculum.reward_model=true", "pairs.score=reward_model", "reward_model=any")


def test_pairs_may_be_ordered_by_a_reward_model_that_learned_from_the_labels(
    tmp_path: Path,
) -> None:
    runner = scripted(tmp_path, *SCORED)
    carried_out(runner)
    own = [one for one in runner.ran if one.run == "evo-refinement-1"]
    assert [one.stage for one in own] == ["annotate", "train-rm", "relabel", "train-dpo", "eval"]
    grown, learned, labelled, trained, _ = own
    assert grown.settings["pairs.score"] == learned.settings["pairs.score"] == "labels"
    assert "pairs.score" not in labelled.settings
    assert labelled.settings["reward_model"] == "models/evo-refinement-1/reward-model"
    assert labelled.arguments == trained.arguments == ("--label", "reward-model")


def test_a_search_asks_the_last_cycle_s_reward_model(tmp_path: Path) -> None:
    search = "mcts={kind: tree, evaluator: reward_model, normalise: true}"
    runner = scripted(tmp_path, search, "reward_model=first", "curriculum.reward_model=true")
    carried_out(runner)
    first, second = commands(runner, "annotate")
    assert "reward_model" not in first.settings, "the recipe's"
    assert second.settings["reward_model"] == "models/evo-discovery-1/reward-model"


@dataclass(frozen=True)
class Poor(Scripted):
    """No run has enough pairs for a reward model; or its stage fails for another reason."""

    untaught: bool = True

    def run_stage(self, stage: str, *arguments: str, **given: Any) -> dict[str, Any]:
        if stage == "train-rm":
            why = {UNTAUGHT: "no pair is left"} if self.untaught else {}
            raise StageStopped("train-rm ended with exit code 2", 2, why)
        return super().run_stage(stage, *arguments, **given)


def test_a_reward_model_that_nothing_asks_may_have_nothing_to_learn(tmp_path: Path) -> None:
    plain = scripted(tmp_path, SCORED[0])
    runner = Poor(plain.context, (0,), plain.output_folder, scored=dev_row)
    carried_out(runner)
    assert runner.asked("dev") == ["start", "discovery-1", "refinement-1"]
    assert "continues without a reward model for this cycle: no pair is left" in said(runner)
    with pytest.raises(StageStopped, match="exit code 2"):
        CurriculumState(
            Poor(plain.context, (0,), plain.output_folder, scored=dev_row, untaught=False)
        ).run()
    search = "mcts={kind: tree, evaluator: reward_model, normalise: true}"
    for asking in (SCORED, (SCORED[0], search, "reward_model=first")):
        plain = scripted(tmp_path, *asking)
        with pytest.raises(StageStopped, match="exit code 2"):
            CurriculumState(Poor(plain.context, (0,), plain.output_folder, scored=dev_row)).run()


def test_dev_without_an_answerable_question_is_refused(tmp_path: Path) -> None:
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
def test_what_is_no_curriculum_is_refused_first(
    settings: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    more = ("agent.protocol=reasonrag", "mcts.kind=tree") if "spre" in settings[0] else ()
    fitting = ("policy.model=packaged", "data.cities=500", *settings, *more)
    call = pretended("evo-rag", tmp_path / "evo", *fitting).context
    with pytest.raises(ConfigError, match=told):
        check_curriculum(call)
    assert not call.run.exists()


def test_too_few_questions_are_refused_first(tmp_path: Path) -> None:
    recipe(tmp_path, "")
    data = f"data={{source: jsonl, questions: {tmp_path}/questions.jsonl, corpus: {tmp_path}"
    few = (f"{data}/corpus.jsonl, limit: 800}}", "policy.model=packaged")
    call = pretended("evo-rag", tmp_path / "evo", *few).context
    with pytest.raises(ConfigError, match=r"800 questions each, but there are \d"):
        check_curriculum(call)


def test_a_cycle_that_trains_no_reward_model_leaves_the_one_before(tmp_path: Path) -> None:
    search = "mcts={kind: tree, evaluator: reward_model, normalise: true}"
    more = {"pairs": lambda run: 0 if run.endswith("discovery-2") else 7}
    asks = (search, "reward_model=first", "curriculum.reward_model=true")
    runner = scripted(tmp_path, *asks, "curriculum.cycles.discovery=2", **more)
    carried_out(runner)
    asked = [one.settings.get("reward_model") for one in commands(runner, "annotate")]
    assert asked == [None, *["models/evo-discovery-1/reward-model"] * 2]
    learned = [one.run for one in commands(runner, "train-rm")]
    assert learned == ["evo-discovery-1", "evo-refinement-1"], "nothing without a pair"


def test_cycles_begin_behind_what_the_recipe_skips(tmp_path: Path) -> None:
    runner = scripted(tmp_path, "data.skip=100", "curriculum.questions=20")
    carried_out(runner)
    assert [one.settings["data.skip"] for one in commands(runner, "annotate")] == [100, 120]


def test_there_are_just_as_many_questions_as_the_cycles_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "open_data", lambda *_: SimpleNamespace(questions=range(40)))
    for each, enough in ((20, True), (21, False)):
        more = ("policy.model=packaged", f"curriculum.questions={each}")
        call = pretended("evo-rag", tmp_path / "evo", *more).context
        with nullcontext() if enough else pytest.raises(ConfigError, match="2 cycles need 21"):
            check_curriculum(call)


def test_a_curriculum_ends_with_the_code_of_the_stage_that_stopped_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(course: CurriculumState) -> DevResult:
        raise StageStopped("annotate: stopped", 3)

    monkeypatch.setattr(CurriculumState, "run", stop)
    monkeypatch.setattr("pipelines.curriculum.check_curriculum", lambda call: None)
    monkeypatch.setattr("pipelines.curriculum.model_digest", lambda *_: "d")
    outcome = curriculum(scripted(tmp_path).context)
    assert (outcome.exit_code, outcome.totals["stopped"]) == (3, "annotate: stopped")


def test_pairs_are_ordered_by_the_cycle_s_own_model_whatever_the_search_asked(
    tmp_path: Path,
) -> None:
    search = "mcts={kind: tree, evaluator: reward_model, normalise: true}"
    runner = scripted(tmp_path, *SCORED, search)
    carried_out(runner)
    asked = [one.settings["reward_model"] for one in commands(runner, "relabel")]
    assert asked == [f"models/evo-{cycle}-1/reward-model" for cycle in ("discovery", "refinement")]


def test_a_stage_has_its_patience_though_its_first_cycle_harms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCORES, "discovery-1", 0.2)
    monkeypatch.setitem(SCORES, "discovery-2", 0.6)
    runner = scripted(tmp_path, "curriculum.cycles.discovery=2", "curriculum.questions=10")
    course, _ = carried_out(runner)
    assert course.totals()["best"]["discovery"] == "discovery-2"


def test_only_cycles_that_come_last_may_become_more(tmp_path: Path) -> None:
    def steady(setting: str) -> dict[str, Any]:
        return checks._fixed_settings(
            pretended("evo-rag", tmp_path / "evo", setting).context.recipe
        )

    begun = steady("name=evo-rag")
    assert steady("curriculum.cycles.refinement=9") == begun
    assert steady("curriculum.cycles.discovery=9") != begun
