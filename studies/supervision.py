"""`make study STUDY=supervision`: which signal is worth its cost?

Process supervision (DPO on SPRE pairs, SFT on chosen steps, SFT on right trajectories, GRPO on the
siblings of the trees) against outcome supervision (GRPO and REINFORCE++ on fresh rollouts), in
ReasonRAG's protocol and from one start; and GRPO in Search-R1's protocol from a start of its own.
Trees and rollouts are of the same questions. An arm on rollouts draws as many batches as generate
about as many tokens as the trees, by the estimate of `supervision-rates`; the table of costs gives
the tokens that each arm really generated.

Every seed is a replication. It draws 100 atlas questions and grows trees on them. Every policy
answers the same 600 test questions once, greedily. Learning rates and numbers of batches are those
that the study `supervision-rates` finds on `dev`. Primary comparisons are process DPO against GRPO
and against both kinds of SFT. A difference counts as shown if its interval excludes 0 and Holm's p
is below 0.05.

Every arm on rollouts has a run folder, so it never replays another arm's rollouts, and its costs
are separate. KL is what each trainer measures: nats per step over the pairs (DPO), nats per token
(GRPO). `tree-grpo` repeats the trees with spread if fewer than 100 have any.

Seeds and arms can run on several machines (`--seeds 1 --arms warm-start dpo`); `python -m
benchmarks.pooled_answers` joins their tables.
"""

import csv
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from statistics import fmean

from branchwise.base import Sheet, known_mean
from branchwise.runs import (
    Study,
    StudyRunner,
    load_recipe,
    model_folder,
    overrides,
    svg,
    with_sibling_run,
)
from branchwise.training import read_metrics

from .arms import START, Arm, EvaluatedArm, run_arm, tree_totals
from .study_tables import Claim, write_report

NAME = "supervision"
TEST = {"seed": 0, "evaluation.split": "test", "evaluation.limit": 600}
"""Settings of every evaluation. The seed decides the questions, so all replications share it."""
ONE_PASS = 10
"""Batches in which GRPO asks each of the 100 questions once, in 8 rollouts."""

RIGHT = {"examples": "right"}
TREES = {"rollouts": "trees"}
PLUS = {"algorithm": "reinforce++", "aggregation": "token"}
ON_TREES = (
    Arm("dpo", "train-dpo", training={"lr": 1e-4}, label=NAME),
    Arm("sft-chosen", "train-sft", training={"lr": 3e-4}, label=NAME),
    Arm("sft-right", "train-sft", training={"lr": 3e-4, **RIGHT}, label=NAME),
    Arm("tree-grpo", "train-grpo", training={"lr": 1e-4, "batches": ONE_PASS, **TREES}),
)
ON_ROLLOUTS = (
    Arm("grpo", "train-grpo", training={"lr": 3e-4, "batches": 16}),
    Arm("reinforce-plus-plus", "train-grpo", training={"lr": 1e-4, "batches": 16, **PLUS}),
)
SEARCH_R1 = "search-r1"
ENGINE = ("engine", "precision", "dtype", "server_args")
"""Settings of the policy that decide where it runs, the same in both protocols."""
SEARCHING = (
    Arm(f"{SEARCH_R1}-start"),
    Arm(f"{SEARCH_R1}-grpo", "train-grpo", training={"lr": 1e-4, "batches": 14}),
)
ARMS = (Arm(START), *ON_TREES, *ON_ROLLOUTS, *SEARCHING)

CLAIMS = (
    Claim("dpo", "grpo", primary=True),
    Claim("dpo", "sft-chosen", primary=True),
    Claim("dpo", "sft-right", primary=True),
    *(Claim(arm.name, START) for arm in (*ON_TREES, *ON_ROLLOUTS)),
    Claim("reinforce-plus-plus", "grpo"),
    Claim("tree-grpo", "dpo"),
    Claim("grpo", "sft-chosen"),  # this and the next one were added after the first test
    Claim("grpo", "sft-right"),
    Claim(f"{SEARCH_R1}-grpo", f"{SEARCH_R1}-start"),
)


MEANS = "Costs (means; `seed` is the number of seeds)"


@dataclass(frozen=True)
class Cost:
    """What an arm with one seed took until it was trained, and its EM in per cent.

    Attributes:
        generated: Tokens that the policy generated, of trees or rollouts.
        trained: Tokens that the training read.
        cpu_hours: CPU hours of annotation and training; NaN if a kill of the study lost some.
    """

    arm: str
    seed: int
    em: float
    calls: float
    generated: float
    trained: float
    cpu_hours: float


def supervision(runner: StudyRunner) -> None:
    """Runs the study (see module)."""
    results = [EvaluatedArm(arm) for arm in ARMS if runner.wants(arm.name)]
    searching = any(result.arm in SEARCHING for result in results)
    search_r1 = search_r1_start(runner) if searching else runner
    costs: list[Cost] = []
    for seed in runner.seeds:
        seed_runner = replication(runner, seed)
        grows = any(result.arm in ON_TREES for result in results)
        if grows:
            seed_runner.run_stage("annotate")
        for result in results:
            if result.arm.trainer:
                arm_runner = training_runner(seed_runner, result.arm, search_r1)
                run_arm(arm_runner, result, seed, TEST)
                if not runner.context.dry_run:
                    costs.append(cost_of(arm_runner, result, seed))
            elif not result.predictions:
                run_arm(search_r1 if result.arm in SEARCHING else runner, result, seed, TEST)
        report(runner, results, costs)


def replication(runner: StudyRunner, seed: int) -> StudyRunner:
    """Returns a runner with a seed's own questions and run folder."""
    seed_runner = with_sibling_run(runner, str(seed))
    if runner.context.dry_run:
        return seed_runner
    recipe = runner.recipe_with({"seed": seed})
    return replace(seed_runner, context=replace(seed_runner.context, recipe=recipe))


def search_r1_start(runner: StudyRunner) -> StudyRunner:
    """Returns a runner in Search-R1's protocol, after its warm start."""
    search_r1 = with_sibling_run(runner, SEARCH_R1)
    search_r1 = in_search_r1(search_r1, search_r1.context.run)
    search_r1.run_stage("warm-start")
    return search_r1


def in_search_r1(runner: StudyRunner, start: Path) -> StudyRunner:
    """Returns a runner with the same questions in Search-R1's protocol.

    Args:
        start: Run folder of the warm start.
    """
    recipe = runner.recipe
    settings = {
        "name": runner.context.run.name,
        "seed": recipe.seed,
        "data": recipe.data.model_dump(mode="json"),
        "retrieval.kind": recipe.retrieval.kind,
        "policy.model": str(model_folder(start, "warm-start")),
        **{f"policy.{key}": getattr(recipe.policy, key) for key in ENGINE},
        "limits": recipe.limits.model_dump(mode="json"),
        "training.precision": recipe.training.precision,
        "training.lora": recipe.training.lora and recipe.training.lora.model_dump(mode="json"),
        "training.warm_start.base": recipe.training.warm_start.base,
        "training.grpo": recipe.training.grpo.model_dump(mode="json"),
    }
    recipe = load_recipe(Path("configs", f"{SEARCH_R1}.yaml"), overrides(settings)[1::2])
    return replace(runner, context=replace(runner.context, recipe=recipe))


def training_runner(runner: StudyRunner, arm: Arm, search_r1: StudyRunner) -> StudyRunner:
    """Returns the runner that trains an arm: with a folder of its own if it draws rollouts."""
    if arm in ON_TREES:
        return runner
    alone = with_sibling_run(runner, arm.name)
    searches = arm.name.startswith(SEARCH_R1)
    return in_search_r1(alone, search_r1.context.run) if searches else alone


def cost_of(runner: StudyRunner, result: EvaluatedArm, seed: int) -> Cost:
    """Returns what the arm's trees, or its rollouts, and its last training took."""
    curve = read_metrics(Path(result.trainings[-1]["model"]))
    assert result.arm.trainer is not None, "the start costs nothing"
    seconds = cpu_seconds(runner, result.arm.trainer, f"{result.arm.name}-{seed}")
    rollouts = result.arm.trainer == "train-grpo"
    trained = (
        sum(line["trained_tokens"] for line in curve) if rollouts else curve[-1].get("tokens", 0)
    )
    calls: float
    generated: float
    if result.arm in ON_TREES:
        trees = tree_totals(runner)
        calls, generated = trees.calls, trees.output_tokens
        seconds += cpu_seconds(runner, "annotate")
    else:
        calls, generated = (
            sum_over_rollouts(curve, "calls"),
            sum_over_rollouts(curve, "policy_tokens"),
        )
    em = known_mean(row.em for row in result.predictions[seed]) or 0.0
    return Cost(result.arm.name, seed, 100 * em, calls, generated, trained, seconds / 3600)


def sum_over_rollouts(curve: Iterable[Mapping[str, float]], key: str) -> float:
    """Returns the sum over all rollouts of a training of a mean per rollout, such as `calls`."""
    return sum(line.get("rollouts", 0.0) * line.get(key, 0.0) for line in curve)


def cpu_seconds(runner: StudyRunner, stage: str, name: str = "") -> float:
    """Returns the CPU seconds of all attempts at a stage of a run; NaN if the study was killed."""
    start = shlex.join(("branchwise", stage, "--run", str(runner.context.run))) + " "
    name_option = f"--name {name} " if name else ""
    events = [
        event
        for event in runner.journal.events()
        if event.command.startswith(start) and name_option in f"{event.command} "
    ]
    started = sum(event.event == "started" for event in events)
    killed = started > len(events) - started  # so nobody noted the CPU time of that attempt
    return math.nan if killed else sum(event.cpu_seconds for event in events)


def report(runner: StudyRunner, results: Sequence[EvaluatedArm], costs: Sequence[Cost]) -> None:
    """Writes the tables, and plots EM against generated tokens and CPU hours."""
    if runner.context.dry_run:
        return
    plot_costs(costs, runner.folder / f"{NAME}-costs.svg")
    by_seed, means = cost_sheet("Costs by seed", costs), cost_sheet(MEANS, mean_costs(costs))
    write_report(runner, NAME, results, CLAIMS, more=[by_seed, means])


def cost_sheet(title: str, costs: Iterable[Cost]) -> Sheet:
    """Returns a table with one row per cost."""
    rows = tuple(
        (cost.arm, str(cost.seed), *(f"{value:.2f}" for value in astuple(cost)[2:]))
        for cost in costs
    )
    return Sheet(title, tuple(column.name for column in fields(Cost)), rows)


def read_costs(path: Path) -> list[Cost]:
    """Returns the costs in a CSV file of `cost_sheet`."""
    with path.open(newline="") as file:
        return [
            Cost(arm, int(seed), *map(float, values))
            for arm, seed, *values in list(csv.reader(file))[1:]
        ]


def mean_costs(costs: Sequence[Cost]) -> list[Cost]:
    """Returns one cost per arm, the mean of its known costs; `seed` is the number of seeds."""
    means = []
    for arm in dict.fromkeys(cost.arm for cost in costs):
        costs_of_arm = [astuple(cost)[2:] for cost in costs if cost.arm == arm]
        columns = zip(*costs_of_arm, strict=True)
        known = ([value for value in column if not math.isnan(value)] for column in columns)
        means.append(Cost(arm, len(costs_of_arm), *(fmean(v or [math.nan]) for v in known)))
    return means


def plot_costs(costs: Sequence[Cost], path: Path) -> None:
    """Plots EM against generated tokens and CPU hours, means over seeds."""
    with svg(path, 2, 10, 4, sharey=True) as axes:
        for panel, measure in zip(axes, ("generated", "cpu_hours"), strict=True):
            for cost in mean_costs(costs):
                panel.plot(getattr(cost, measure), cost.em, "o", clip_on=False, label=cost.arm)
            panel.set_xlim(left=0)
        axes[0].set_xlabel("generated tokens")
        axes[1].set_xlabel("CPU hours")
        axes[0].set_ylabel("EM, per cent")
        axes[1].legend(loc="center left", bbox_to_anchor=(1, 0.5))


STUDY = Study(supervision, arms=tuple(arm.name for arm in ARMS))
