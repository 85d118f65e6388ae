"""`make study STUDY=supervision`: which signal is worth its cost?

Process supervision (DPO on SPRE pairs, SFT on chosen steps, SFT on right trajectories, GRPO on the
siblings of the trees) against outcome supervision (GRPO and REINFORCE++ on fresh rollouts), in
ReasonRAG's protocol and from one start; and GRPO in Search-R1's protocol from a start of its own.
An arm on rollouts is trained twice: on 8 rollouts of each question (`-questions`), and on about as
many generated tokens as the trees took (`-tokens`).

Every seed is a replication: it has 100 atlas questions of its own, and trees of its own. Every
policy answers the same 600 test questions once, greedily. Learning rates and numbers of batches are
those that the study `supervision-rates` finds on `dev`. Primary comparisons are process DPO against
GRPO, at equal questions and at equal tokens, and against both kinds of SFT.

Seeds and arms can run on several machines (`--seeds 1 --arms warm-start dpo`); `python -m
benchmarks.pooled_answers` joins their answers.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from analysis.table import Sheet, number
from experiments.arms import START, Arm, EvaluatedArm, run_arm
from experiments.report import Claim, write_report
from runs.factories import model_folder
from runs.recipe_file import load_recipe
from runs.studies.output import svg
from runs.studies.study_runner import (
    StageTotals,
    Study,
    StudyRunner,
    overrides,
    with_sibling_run,
)
from training.curves import read_metrics

NAME = "supervision"
TEST = {"evaluation.split": "test", "evaluation.limit": 600}
ONE_PASS = 10
"""Batches in which GRPO asks each of the 100 questions once, in 8 rollouts."""
AS_TREES = 17
"""Batches whose rollouts generate about as many tokens as the trees of 100 questions."""

RIGHT = {"examples": "right"}
TREES = {"rollouts": "trees"}
PLUS = {"algorithm": "reinforce++"}
ON_TREES = (
    Arm("dpo", "train-dpo", training={"lr": 2e-4}, label=NAME),
    Arm("sft-chosen", "train-sft", training={"lr": 2e-4}, label=NAME),
    Arm("sft-right", "train-sft", training={"lr": 2e-4, **RIGHT}, label=NAME),
    Arm("tree-grpo", "train-grpo", training={"lr": 3e-4, "batches": ONE_PASS, **TREES}),
)
ON_ROLLOUTS = tuple(
    Arm(f"{name}-{budget}", "train-grpo", training={"lr": 3e-4, "batches": batches, **algorithm})
    for name, algorithm in (("grpo", {}), ("reinforce++", PLUS))
    for budget, batches in (("questions", ONE_PASS), ("tokens", AS_TREES))
)
SEARCH_R1 = "search-r1"
SEARCHING = (
    Arm(f"{SEARCH_R1}-start"),
    Arm(f"{SEARCH_R1}-grpo", "train-grpo", training={"lr": 3e-4, "batches": AS_TREES}),
)
ARMS = (Arm(START), *ON_TREES, *ON_ROLLOUTS, *SEARCHING)

CLAIMS = (
    Claim("dpo", "grpo-questions", primary=True),
    Claim("dpo", "grpo-tokens", primary=True),
    Claim("dpo", "sft-chosen", primary=True),
    Claim("dpo", "sft-right", primary=True),
    *(Claim(arm.name, START) for arm in (*ON_TREES, *ON_ROLLOUTS)),
    Claim("reinforce++-tokens", "grpo-tokens"),
    Claim("tree-grpo", "dpo"),
    Claim(f"{SEARCH_R1}-grpo", f"{SEARCH_R1}-start"),
)


@dataclass
class Trees:
    """What the trees of the seeds took so far.

    Attributes:
        totals: Totals of each annotation.
        hours: Hours of each, on this machine.
    """

    totals: list[StageTotals] = field(default_factory=list)
    hours: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Cost:
    """What an arm took until it was trained; means over its seeds.

    Attributes:
        generated: Tokens that the policy generated, of trees or rollouts.
        trained: Tokens that the training read; 0 if it does not count them (GRPO).
        hours: Hours of annotation and training, on this machine.
    """

    calls: float
    generated: float
    trained: float
    hours: float


def supervision(runner: StudyRunner) -> None:
    """Runs the study (see module)."""
    done = [EvaluatedArm(arm) for arm in ARMS if runner.wants(arm.name)]
    trees = Trees()
    for seed in runner.seeds:
        own = replication(runner, seed)
        if any(runner.wants(arm.name) for arm in ON_TREES):
            trees.totals.append(own.run_stage("annotate"))
            trees.hours.append(seconds_of(own, "annotate") / 3600)
        for one in done:
            if one.arm.trainer or not one.predictions:
                run_arm(searching(own) if one.arm in SEARCHING else own, one, seed, TEST)
        report(runner, done, trees)


def replication(runner: StudyRunner, seed: int) -> StudyRunner:
    """Returns a runner with a seed's own questions and run folder."""
    limit = runner.recipe.data.limit
    assert limit is not None, "the recipe of this study limits its questions"
    own = with_sibling_run(runner, str(seed))
    if runner.context.dry_run:
        return own
    recipe = runner.recipe_with({"data.skip": seed * limit})
    return replace(own, context=replace(own.context, recipe=recipe))


def searching(runner: StudyRunner) -> StudyRunner:
    """Returns a runner in Search-R1's protocol with the same questions, after its warm start."""
    own = with_sibling_run(runner, SEARCH_R1)
    recipe = runner.recipe
    settings = {
        "name": own.context.run.name,
        "data.limit": recipe.data.limit,
        "data.skip": recipe.data.skip,
        "policy.model": str(model_folder(own.context.run, "warm-start")),
        "policy.precision": recipe.policy.precision,
        "training.grpo": recipe.training.grpo.model_dump(mode="json"),
    }
    recipe = load_recipe(Path("configs", f"{SEARCH_R1}.yaml"), overrides(settings)[1::2])
    own = replace(own, context=replace(own.context, recipe=recipe))
    own.run_stage("warm-start")
    return own


def report(runner: StudyRunner, done: Sequence[EvaluatedArm], trees: Trees) -> None:
    """Writes the tables, and plots EM against generated tokens and hours."""
    if runner.context.dry_run:
        return
    costs = {one.arm.name: cost_of(one, trees) for one in done if one.arm.trainer}
    rows = tuple(
        (
            name,
            number(cost.calls, 0),
            number(cost.generated, 0),
            number(cost.trained or None, 0),
            number(cost.hours, 2),
        )
        for name, cost in costs.items()
    )
    head = ("arm", "calls", "generated tokens", "trained tokens", "hours")
    ems = {one.arm.name: mean_em(one) for one in done}
    with svg(runner.folder / f"{NAME}-costs.svg", 2, 9, 4, sharey=True) as axes:
        for panel, measure in zip(axes, ("generated", "hours"), strict=True):
            for name, cost in costs.items():
                place = getattr(cost, measure), 100 * ems[name]
                panel.plot(*place, "o")
                panel.annotate(name, place, fontsize=7)
        axes[0].set_xlabel("generated tokens")
        axes[1].set_xlabel("hours on this machine")
        axes[0].set_ylabel("EM, per cent")
    write_report(runner, NAME, done, CLAIMS, more=[Sheet("Costs (means over seeds)", head, rows)])


def cost_of(done: EvaluatedArm, trees: Trees) -> Cost:
    """Returns what the arm's trees, or its rollouts, and its trainings took."""
    curves = [read_metrics(Path(totals["model"])) for totals in done.trainings]
    hours = fmean(totals["seconds"] for totals in done.trainings) / 3600
    trained = fmean(curve[-1].get("tokens", 0.0) for curve in curves)
    if done.arm in ON_TREES:
        calls, tokens = (
            fmean(totals[key] for totals in trees.totals) for key in ("calls", "output_tokens")
        )
        return Cost(calls, tokens, trained, fmean(trees.hours) + hours)

    def drawn(key: str) -> float:
        """Returns the sum over all rollouts of a mean per rollout, such as `calls`."""
        return fmean(sum(line["rollouts"] * line.get(key, 0.0) for line in c) for c in curves)

    return Cost(drawn("calls"), drawn("policy_tokens"), trained, hours)


def seconds_of(runner: StudyRunner, stage: str) -> float:
    """Returns the seconds of all attempts at a stage of a run."""
    start = shlex.join(("branchwise", stage, "--run", str(runner.context.run))) + " "
    return sum(one.seconds for one in runner.journal.events() if one.command.startswith(start))


def mean_em(done: EvaluatedArm) -> float:
    """Returns the mean EM over seeds."""
    every = [row.em for rows in done.predictions.values() for row in rows if row.em is not None]
    return fmean(every) if every else 0.0


STUDY = Study(supervision, arms=tuple(arm.name for arm in ARMS))
