"""`make study STUDY=recipes RUN=datasets/real-dpo`: which training recipes help on a run's trees?

The study needs a finished run without a gain. It evaluates the recipe of `real-dpo` and variants
that change one setting each, on split `dev`. Most variants reuse the trees: more pairs per
question, a higher learning rate, more epochs, no guessable questions, the mean of all outcomes
instead of one greedy rollout, and only pairs whose order fresh rollouts confirm. The last variant
is a second round: the best policy so far grows new trees in a sibling run folder, and the recipe
trains it further on them.

Do not claim that the best variant is better. Among so many, one is lucky: confirm it on the test
split.
"""

from collections.abc import Iterator
from dataclasses import replace

from branchwise.base import known_mean
from branchwise.runs import (
    Study,
    StudyRunner,
    existing_run,
    pairs_of,
    pairs_table,
    with_sibling_run,
)

from .arms import START, Arm, EvaluatedArm, evaluate_arms, train_arm
from .fresh_rollouts import draw_fresh_rollouts
from .real_dpo import DPO
from .study_tables import Claim, Stratum, write_report

DEV = {"evaluation.split": "dev", "evaluation.limit": 400}
FRESH = 4
"""Fresh rollouts per side that must confirm an order."""

BASELINE_ARM = replace(DPO, name="as-it-is", label=DPO.name, models=DPO.name)


def variation(
    name: str, pairs: dict[str, object] | None = None, training: dict[str, object] | None = None
) -> Arm:
    """Returns the recipe with changed settings; without other pairs it shares the relabelling."""
    return replace(
        DPO,
        name=name,
        label=name if pairs else DPO.name,
        models=name,
        pairs={**DPO.pairs, **(pairs or {})},
        training={**DPO.training, **(training or {})},
    )


VARIATIONS = (
    variation("more-pairs", {"pairs.max_per_question": 16}),
    variation("higher-rate", training={"lr": 8e-4}),
    variation("four-epochs", training={"epochs": 4.0}),
    variation("open-questions", {"pairs.guessable": "drop"}),
    variation("many-outcomes", {"rewards.estimator": "monte_carlo", "pairs.min_outcomes": 3}),
)
CONFIRMED = variation("confirmed", {"pairs.confirmed": True})
SECOND_ROUND = "second-round"

TRIED = (*(arm.name for arm in VARIATIONS), CONFIRMED.name, SECOND_ROUND)
CLAIMS = tuple(
    Claim(arm, base)
    for base in (START, BASELINE_ARM.name)
    for arm in (BASELINE_ARM.name, *TRIED)
    if arm != base
)
STRATA = (
    Stratum("guessable", lambda row: row.guessable is True),
    Stratum("not guessable", lambda row: row.guessable is False),
)


def recipes(runner: StudyRunner) -> None:
    """Runs the study (see module)."""
    results: list[EvaluatedArm] = []
    for result in evaluated_arms(runner):
        results.append(result)
        write_report(runner, "recipes", results, CLAIMS, STRATA)


def evaluated_arms(runner: StudyRunner) -> Iterator[EvaluatedArm]:
    """Yields every arm, the cheap ones first."""
    results = []
    for arm in (Arm(START), BASELINE_ARM, *VARIATIONS):
        results.append(evaluate_on_dev(runner, arm))
        yield results[-1]
    if not runner.context.dry_run:
        run = existing_run(runner.context.run)
        draw_fresh_rollouts(runner, run, pairs_of(run, pairs_table(DPO.name)), FRESH)
    results.append(evaluate_on_dev(runner, CONFIRMED))
    yield results[-1]
    yield second_round(runner, max(results[1:], key=dev_em).arm)


def evaluate_on_dev(runner: StudyRunner, arm: Arm) -> EvaluatedArm:
    """Evaluates an arm with all seeds."""
    *_, (result,) = evaluate_arms(runner, (arm,), DEV)
    return result


def dev_em(result: EvaluatedArm) -> float:
    """Returns the mean EM over seeds; −1 in a dry run, which evaluates nothing."""
    em = known_mean(row.em for rows in result.predictions.values() for row in rows)
    return -1.0 if em is None else em


def second_round(runner: StudyRunner, best: Arm) -> EvaluatedArm:
    """Evaluates the recipe on new trees, grown by an arm's policy of the first seed."""
    folder, _ = train_arm(runner, best, runner.seeds[0])
    round_runner = with_sibling_run(runner, f"{SECOND_ROUND}-{best.name}-{runner.seeds[0]}")
    if not runner.context.dry_run:
        grown_by = {"policy.model": folder, "policy.weights": None}
        round_runner = replace(
            round_runner, context=replace(round_runner.context, recipe=runner.recipe_with(grown_by))
        )
    round_runner.run_stage("annotate")
    return evaluate_on_dev(round_runner, replace(BASELINE_ARM, name=SECOND_ROUND))


STUDY = Study(recipes, seeds=(0,), of_existing_run=True)
