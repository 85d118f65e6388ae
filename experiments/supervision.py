"""`make study STUDY=supervision`: which signal is worth its cost?

Process supervision (DPO on SPRE pairs, SFT on chosen steps, SFT on right trajectories, GRPO on the
siblings of the trees) against outcome supervision (GRPO and REINFORCE++ on fresh rollouts), in
ReasonRAG's protocol and from one start; and GRPO in Search-R1's protocol from a start of its own.
All learn from the same 200 atlas questions. An arm on rollouts is trained twice: on 8 rollouts of
each question (`-questions`), and on as many generated tokens as the trees took (`-tokens`).

Registered here before any test question was asked: each arm tries three learning rates on `dev`
with the first seed. The best one is trained with every seed and answers 600 test questions once,
greedily, in F16. Primary comparisons are process DPO against GRPO, at equal questions and at equal
tokens, and against both kinds of SFT. The two best arms are repeated on 200 other questions.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from analysis.table import Sheet, number
from experiments.arms import START, Arm, EvaluatedArm, evaluate_arms
from experiments.atlas_dpo import DEV, TEST, chosen_on_dev
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
from storage.records import Prediction
from training.curves import read_metrics

NAME = "supervision"
RATES = (1e-4, 2e-4, 4e-4)
"""Learning rates that every arm tries."""
ONE_PASS = 20
"""Batches in which GRPO asks each of the 200 questions once, in 8 rollouts."""
OF_TREES = ("dpo", "sft-chosen", "sft-right", "tree-grpo")
ROLLED_OUT = ("grpo", "reinforce++")
SEARCH_R1 = "search-r1"

CLAIMS = (
    Claim("dpo", "grpo-questions", primary=True),
    Claim("dpo", "grpo-tokens", primary=True),
    Claim("dpo", "sft-chosen", primary=True),
    Claim("dpo", "sft-right", primary=True),
    *(Claim(f"{name}-{kind}", START) for name in ROLLED_OUT for kind in ("questions", "tokens")),
    *(Claim(name, START) for name in OF_TREES),
    Claim("reinforce++-tokens", "grpo-tokens"),
    Claim("tree-grpo", "dpo"),
    Claim(f"{SEARCH_R1}-grpo", f"{SEARCH_R1}-start"),
)


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
    trees = runner.run_stage("annotate")
    batches = batches_of(runner, trees)
    arms = [Arm(START), *with_budgets(list(chosen_arms(runner)), batches)]
    done: list[EvaluatedArm] = []
    for done in evaluate_arms(runner, arms, TEST):
        report(runner, done, trees)
    for other in evaluate_arms(*searching(runner, batches), TEST):
        report(runner, [*done, *other], trees)
    replicate(runner, done)


def candidates(name: str) -> tuple[Arm, ...]:
    """Returns an arm with each of the learning rates."""
    arms: dict[str, tuple[str, dict[str, object]]] = {
        "dpo": ("train-dpo", {}),
        "sft-chosen": ("train-sft", {}),
        "sft-right": ("train-sft", {"examples": "right"}),
        "tree-grpo": ("train-grpo", {"rollouts": "trees", "batches": ONE_PASS}),
        "grpo": ("train-grpo", {"batches": ONE_PASS}),
        "reinforce++": ("train-grpo", {"algorithm": "reinforce++", "batches": ONE_PASS}),
        f"{SEARCH_R1}-grpo": ("train-grpo", {"batches": ONE_PASS}),
    }
    trainer, settings = arms[name]
    return tuple(
        Arm(f"{name}-{rate:g}", trainer, training={**settings, "lr": rate}, label=NAME)
        for rate in RATES
    )


def chosen_arms(runner: StudyRunner) -> Iterator[Arm]:
    """Yields every arm with the learning rate that is best on `dev`."""
    for name in (*OF_TREES, *ROLLED_OUT):
        best = chosen_on_dev(runner, candidates(name))
        yield replace(best, name=name, models=best.name)


def with_budgets(arms: Sequence[Arm], batches: int) -> Iterator[Arm]:
    """Yields arms on trees as they are, and others with both budgets."""
    for arm in arms:
        if arm.name in OF_TREES:
            yield arm
        else:
            yield replace(arm, name=f"{arm.name}-questions")
            longer = {**arm.training, "batches": batches}
            yield replace(arm, name=f"{arm.name}-tokens", models=None, training=longer)


def batches_of(runner: StudyRunner, trees: StageTotals) -> int:
    """Returns the number of batches whose rollouts generate as many tokens as the trees."""
    *_, (start,) = evaluate_arms(replace(runner, seeds=runner.seeds[:1]), [Arm(START)], DEV)
    rows = [row for rows in start.predictions.values() for row in rows]
    tokens = [row.output_tokens for row in rows if isinstance(row, Prediction)]
    if not tokens:  # a dry run
        return ONE_PASS
    grpo = runner.recipe.training.grpo
    rollouts: float = trees["output_tokens"] / fmean(tokens)
    return max(1, round(rollouts / (grpo.batch_questions * grpo.group_size)))


def searching(runner: StudyRunner, batches: int) -> tuple[StudyRunner, Sequence[Arm]]:
    """Returns a runner in Search-R1's protocol, after its warm start, and its arms."""
    own = with_sibling_run(runner, SEARCH_R1)
    start = model_folder(own.context.run, "warm-start")
    settings = {
        "name": own.context.run.name,
        "data.limit": runner.recipe.data.limit,
        "policy.model": str(start),
        "policy.precision": runner.recipe.policy.precision,
        "training.grpo": runner.recipe.training.grpo.model_dump(mode="json"),
    }
    recipe = load_recipe(Path("configs", f"{SEARCH_R1}.yaml"), overrides(settings)[1::2])
    own = replace(own, context=replace(own.context, recipe=recipe))
    own.run_stage("warm-start")
    name = f"{SEARCH_R1}-grpo"
    best = chosen_on_dev(own, candidates(name))
    longer = {**best.training, "batches": batches}
    return own, (Arm(f"{SEARCH_R1}-start"), replace(best, name=name, training=longer))


def replicate(runner: StudyRunner, done: Sequence[EvaluatedArm]) -> None:
    """Repeats the two best arms on other questions."""
    own = with_sibling_run(runner, "replication")
    if not runner.context.dry_run:
        other = {"data.skip": runner.recipe.data.limit}
        own = replace(own, context=replace(own.context, recipe=runner.recipe_with(other)))
    own.run_stage("annotate")
    best = sorted((one for one in done if one.arm.trainer), key=mean_em, reverse=True)[:2]
    arms = [Arm(START), *(replace(one.arm, models=one.arm.name) for one in best)]
    for again in evaluate_arms(own, arms, TEST):
        write_report(own, f"{NAME}-replication", again, CLAIMS)


def report(runner: StudyRunner, done: Sequence[EvaluatedArm], trees: StageTotals) -> None:
    """Writes the tables, and plots EM against generated tokens and hours."""
    if runner.context.dry_run:
        return
    costs = {one.arm.name: cost_of(runner, one, trees) for one in done if one.arm.trainer}
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


def cost_of(runner: StudyRunner, done: EvaluatedArm, trees: StageTotals) -> Cost:
    """Returns what the arm's trees, or its rollouts, and its trainings took."""
    curves = [read_metrics(Path(totals["model"])) for totals in done.trainings]
    hours = fmean(totals["seconds"] for totals in done.trainings) / 3600
    trained = fmean(curve[-1].get("tokens", 0.0) for curve in curves)
    if done.arm.name in OF_TREES:
        grown = seconds_of(runner, "annotate") / 3600
        return Cost(trees["calls"], trees["output_tokens"], trained, grown + hours)

    def drawn(key: str) -> float:
        """Returns the sum over all rollouts of a mean per rollout, such as `calls`."""
        return fmean(sum(line["rollouts"] * line.get(key, 0.0) for line in c) for c in curves)

    return Cost(drawn("calls"), drawn("policy_tokens"), trained, hours)


def seconds_of(runner: StudyRunner, stage: str) -> float:
    """Returns the seconds of all attempts at a stage of the study's own run."""
    start = shlex.join(("branchwise", stage, "--run", str(runner.context.run))) + " "
    return sum(one.seconds for one in runner.journal.events() if one.command.startswith(start))


def mean_em(done: EvaluatedArm) -> float:
    """Returns the mean EM over seeds."""
    every = [row.em for rows in done.predictions.values() for row in rows if row.em is not None]
    return fmean(every) if every else 0.0


STUDY = Study(supervision)
