"""Is the embedded policy competent, and does it vary?

    python -m benchmarks.embedded_policy --config configs/atlas.yaml

Draws single rollouts (at `policy.temperature`) for questions of the train split that the warm start
never saw, and prints their F1. Then draws two siblings at `mcts.temperature` from every state of
those rollouts, and prints how often siblings differ in content, and how many draws are valid.
"""

import argparse
import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from branchwise.agent.environment import Environment
from branchwise.agent.state import State
from branchwise.engines.sampling import Sampling
from branchwise.rewards.answers import exact_match, f1, normalise
from branchwise.runs.factories import engine_for, open_data
from branchwise.runs.prepared import Prepared
from branchwise.runs.recipe import Recipe
from branchwise.runs.recipe_file import load_recipe
from branchwise.runs.stage import StageContext
from branchwise.types import Question


async def _siblings(
    environment: Environment, state: State, sampling: Sampling, question: Question, place: int
) -> tuple[str, bool, int]:
    """Draws two siblings; returns the stage, whether they differ, and how many are valid."""
    moves = await asyncio.gather(
        *(
            environment.act(
                state, sampling, question_id=question.id, path=f"variety/{place}", draw=draw
            )
            for draw in range(2)
        )
    )
    contents = {(m.step.action.kind, normalise(m.step.action.content)) for m in moves}
    valid = sum(m.step.action.kind != "invalid" for m in moves)
    return state.stage, len(contents) == 2, valid


async def measure(recipe: Recipe, limit: int) -> None:
    """Prints both tables."""
    context = StageContext(recipe, Path("datasets/benchmark"), limit=limit)
    data = open_data(context.limited_recipe)
    prepared = Prepared(context, recipe, data, {"policy": recipe.policy})
    questions = data.questions
    async with engine_for(recipe.policy, recipe.limits) as engine:
        environment = prepared.environment(engine)
        rollouts = await asyncio.gather(
            *(
                environment.trajectory(
                    State(q.question), Sampling.of(recipe.policy), question_id=q.id, path="single"
                )
                for q in questions
            )
        )
        _print_scores(questions, [r.state for r in rollouts])
        hot = Sampling.of(recipe.policy, recipe.mcts.temperature)
        families = await asyncio.gather(
            *(
                _siblings(environment, _prefix(rollout.state, depth), hot, question, depth)
                for question, rollout in zip(questions, rollouts, strict=True)
                for depth in range(rollout.state.depth)
            )
        )
    _print_variety(families)


def _prefix(state: State, depth: int) -> State:
    """Returns the state after `depth` steps."""
    stage = state.steps[depth].stage
    return State(state.question, stage, state.steps[:depth])


def _print_scores(questions: Sequence[Question], ends: list[State]) -> None:
    rows: dict[str, list[tuple[float, float, int]]] = {}
    reasons = Counter(end.steps[-1].action.kind for end in ends)
    for question, end in zip(questions, ends, strict=True):
        answer = end.answer or ""
        row = (exact_match(answer, question.answers), f1(answer, question.answers), end.depth)
        rows.setdefault("all", []).append(row)
        rows.setdefault(f"{question.type} {question.hops}", []).append(row)
    print(f"{'questions':<20}{'n':>5}{'EM':>8}{'F1':>8}{'steps':>8}")
    for name, scores in rows.items():
        em, score, steps = (fmean(column) for column in zip(*scores, strict=True))
        print(f"{name:<20}{len(scores):>5}{em:>8.3f}{score:>8.3f}{steps:>8.1f}")
    print(f"ends: {dict(reasons)}; forced {sum(end.forced for end in ends)}")


def _print_variety(families: list[tuple[str, bool, int]]) -> None:
    print(f"{'stage':<12}{'pairs':>8}{'differ':>8}{'valid':>8}")
    for stage in ("reasoning", "grounding", "all"):
        of_stage = [f for f in families if stage in (f[0], "all")]
        differ, valid = fmean(f[1] for f in of_stage), fmean(f[2] / 2 for f in of_stage)
        print(f"{stage:<12}{len(of_stage):>8}{differ:>8.2f}{valid:>8.2f}")


def main() -> None:
    """Reads arguments and measures."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--config", type=Path, default=Path("configs/atlas.yaml"))
    arguments.add_argument("--set", action="append", default=[], dest="overrides")
    arguments.add_argument("--questions", type=int, default=100)
    options = arguments.parse_args()
    asyncio.run(measure(load_recipe(options.config, options.overrides), options.questions))


if __name__ == "__main__":
    main()
