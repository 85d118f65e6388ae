"""`make study STUDY=recipes RUN=datasets/real-dpo`: what else could be made of a run's trees?

Looks at a finished run, for whoever sees no gain: the recipe of `real-dpo`, and the same with one
thing changed at a time, each asked the part `dev`, of which no test question is. The trees stay for
most of them: more pairs a question, a higher rate, more epochs, no questions that can be guessed,
the mean of all outcomes in place of one greedy rollout, and only pairs whose order more rollouts
bear out. Last a second round: new trees, in a run folder beside, by the policy of the best arm so
far, which is trained on from there.

Nothing is claimed of the best one: of so many tries one is lucky. What it is worth, a test says.
"""

from collections.abc import Iterator
from dataclasses import replace

from experiments.arms import START, Arm, EvaluatedArm, evaluate_arms, train_arm
from experiments.fresh_rollouts import draw_fresh_rollouts
from experiments.real_dpo import DPO
from experiments.report import Claim, Stratum, write_report
from runs.folder import existing_run
from runs.stored_pairs import pairs_of, pairs_table
from runs.workflow import Lab, StageTotals, beside

DEV = {"evaluation.part": "dev", "evaluation.limit": 400}
FRESH = 4
"""Rollouts a side that an order has to hold under."""

AS_IT_IS = replace(DPO, name="as-it-is", label=DPO.name, models=DPO.name)


def variation(
    name: str, pairs: dict[str, object] | None = None, training: dict[str, object] | None = None
) -> Arm:
    """The recipe with something changed; without other pairs it shares the relabelling."""
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
    for base in (START, AS_IT_IS.name)
    for arm in (AS_IT_IS.name, *TRIED)
    if arm != base
)
STRATA = (
    Stratum("guessable", lambda row: row.guessable is True),
    Stratum("not guessable", lambda row: row.guessable is False),
)


def recipes(lab: Lab) -> None:
    """Run the study (see module)."""
    done: list[EvaluatedArm] = []
    for one in tried(lab):
        done.append(one)
        write_report(lab, "recipes", done, CLAIMS, STRATA)


def tried(lab: Lab) -> Iterator[EvaluatedArm]:
    """Every arm, the cheap ones first."""
    found = []
    for arm in (Arm(START), AS_IT_IS, *VARIATIONS):
        found.append(asked(lab, arm))
        yield found[-1]
    if not lab.call.dry_run:
        look_again(lab)
    found.append(asked(lab, CONFIRMED))
    yield found[-1]
    yield second_round(lab, max(found[1:], key=dev_em).arm)


def asked(lab: Lab, arm: Arm, trees: StageTotals | None = None) -> EvaluatedArm:
    """An arm with all seeds."""
    *_, (done,) = evaluate_arms(lab, (arm,), DEV, trees)
    return done


def dev_em(done: EvaluatedArm) -> float:
    """Mean over seeds; −1 in a dry run, which asks nothing."""
    every = [row.em for rows in done.predictions.values() for row in rows if row.em is not None]
    return sum(every) / len(every) if every else -1.0


def look_again(lab: Lab) -> None:
    """Roll both sides of the recipe's pairs out afresh; what is rolled out already is kept.

    Raises:
        StageStopped: a limit or a signal came first.
    """
    run = existing_run(lab.call.run)
    draw_fresh_rollouts(lab, run, pairs_of(run, pairs_table(DPO.name)), FRESH)


def second_round(lab: Lab, best: Arm) -> EvaluatedArm:
    """Trees by the policy that an arm trained with the first seed, and the recipe on them."""
    folder, totals = train_arm(lab, best, lab.seeds[0])
    own = beside(lab, f"{SECOND_ROUND}-{best.name}-{lab.seeds[0]}")
    if not lab.call.dry_run:
        grown_by = {"policy.model": folder, "policy.weights": None}
        own = replace(own, call=replace(own.call, recipe=lab.recipe_with(grown_by)))
    trees = own.branchwise("annotate", after=totals)
    return asked(own, replace(AS_IT_IS, name=SECOND_ROUND), trees)
