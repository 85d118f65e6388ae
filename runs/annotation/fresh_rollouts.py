"""Draws fresh rollouts of a run's nodes (table `survival`), to check its labels.

Every call is in the run's ledger before it is used, and a node with a row is not rolled out twice.
So more pairs, or a resumed stage, cost only the new rollouts.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from agent.concurrent_map import map_concurrently
from annotation.fresh import FreshRoller
from base.errors import ConfigError, EndpointError, RetrievalError
from engines.sampling import Sampling
from retrieval.interface import Retriever
from runs.annotation.stored_trees import StoredTree, stored_trees
from runs.factories import environment_for, open_engine, open_index, sampling_for
from runs.folder import Run
from runs.inputs import model_digest, replay_passages
from runs.progress import Progress
from runs.recipe import Recipe
from runs.stage import Gate, StageContext
from storage.ledger import Ledger
from storage.manifest import load_manifest
from storage.parts import number_of, read_parts
from storage.records import FreshRollouts, Pair
from storage.schemas import table_to_records

TABLE = "survival"

NodeKey = tuple[str, int]
"""(tree_id, node_id)"""


@dataclass
class FreshRolloutResult:
    """Fresh rollouts, and the number of missing ones.

    Attributes:
        fresh: Rollouts by (tree_id, node_id), including earlier calls.
        pending: Number of trees that a limit or a signal stopped.
        failed: Number of failed trees, by kind of error.
        reason: Reason of the stop; None if it was not stopped.
        exit_code: Exit code of the stop; 0 if it was not stopped.
    """

    fresh: dict[NodeKey, FreshRollouts]
    pending: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    reason: str | None = None
    exit_code: int = 0


def stored_fresh(run: Run, temperature: float | None = None) -> dict[NodeKey, FreshRollouts]:
    """Returns stored rollouts at a temperature; per node, the row with the most rollouts."""
    drawn = run.recipe.policy.temperature if temperature is None else temperature
    rows = [
        row
        for row in table_to_records(read_parts(run.folder, TABLE), FreshRollouts)
        if abs(row.temperature - drawn) < 1e-6
    ]
    rows.sort(key=lambda row: len(row.rollouts))
    return {(row.tree_id, row.node_id): row for row in rows}


def roll_fresh(
    context: StageContext,
    run: Run,
    pairs: Sequence[Pair],
    rollouts: int = 8,
    temperature: float | None = None,
) -> FreshRolloutResult:
    """Draws fresh rollouts until both sides of every pair have enough, or a limit is reached.

    Args:
        pairs: Pairs of one or more labellings.
        rollouts: Fewest rollouts per side. A final answer always has one: itself.
        temperature: Sampling temperature of the rollouts; defaults to the policy's.

    Raises:
        ConfigError: If corpus, prompts or policy have changed since the trees were grown.
        EndpointError: If a fault is fatal.
    """
    rolled = FreshRolloutResult(stored_fresh(run, temperature))
    wanted, policies = _trees_to_roll_out(run, pairs, rolled.fresh, rollouts)
    if not wanted:
        return rolled
    recipe = run.recipe.model_copy(update={"limits": context.recipe.limits})
    sampling = sampling_for(recipe.policy, temperature)
    passages = replay_passages(run)
    retriever = open_index(recipe, tuple(passages.values()), context.log)
    _check_same_policy(recipe, policies)
    trees = stored_trees(run, only=wanted, passages=passages)
    with run.open_ledger() as ledger:
        gate = Gate(recipe.limits, ledger.totals, context.log)
        with gate.listening():
            survey = FreshRolloutJob(
                context, recipe, ledger, gate, rolled, sampling, rollouts, wanted
            )
            rows = asyncio.run(survey.rows(trees, retriever))
        _commit(run, rows)
    rolled.fresh |= {(row.tree_id, row.node_id): row for row in rows}
    rolled.reason, rolled.exit_code = gate.reason, gate.exit_code
    return rolled


Wanted = Mapping[str, set[int]]
"""The nodes to roll out, by id of their tree."""


def _trees_to_roll_out(
    run: Run, pairs: Sequence[Pair], fresh: Mapping[NodeKey, FreshRollouts], rollouts: int
) -> tuple[Wanted, set[str]]:
    """Returns the nodes with too few rollouts, and the policies that grew them."""
    short: dict[str, set[int]] = defaultdict(set)
    for pair in pairs:
        for node in (pair.chosen_node, pair.rejected_node):
            row = fresh.get((pair.tree_id, node))
            if row is None or len(row.rollouts) < rollouts:
                short[pair.tree_id].add(node)
    nodes = read_parts(run.folder, "trees", ["tree_id", "node_id", "terminal", "policy_digest"])
    nodes = nodes.filter(pc.is_in(nodes["tree_id"], value_set=pa.array(list(short), pa.string())))
    wanted: dict[str, set[int]] = defaultdict(set)
    policies = set()
    for tree, node, terminal, policy in zip(*nodes.to_pydict().values(), strict=True):
        # A final answer always has one rollout, itself.
        if node in short[tree] and not (terminal and (tree, node) in fresh):
            wanted[tree].add(node)
            policies.add(policy)
    return wanted, policies


def _check_same_policy(recipe: Recipe, policies: Collection[str]) -> None:
    """Rejects changed weights, because their rollouts would come from another policy."""
    digest = model_digest(recipe.policy, recipe)
    if others := set(policies) - {digest}:
        raise ConfigError(
            f"the trees were grown by policy {', '.join(sorted(others))}, but "
            f"{recipe.policy.model} is now {digest}: restore the weights, or use --no-model"
        )


@dataclass(frozen=True)
class FreshRolloutJob:
    """Settings and counts that all trees share; faults of single trees are counted in `rolled`."""

    context: StageContext
    recipe: Recipe
    ledger: Ledger
    gate: Gate
    rolled: FreshRolloutResult
    sampling: Sampling
    rollouts: int
    wanted: Wanted

    async def rows(self, trees: Iterable[StoredTree], retriever: Retriever) -> list[FreshRollouts]:
        """Returns the rows of all finished nodes; the gate may stop further trees."""
        recipe, wanted = self.recipe, self.wanted
        progress = Progress("fresh rollouts", len(wanted), spent=self.ledger.totals)

        async def roll(tree: StoredTree) -> list[FreshRollouts]:
            progress.in_flight += 1
            rows = await self._attempt(roller, tree)
            progress.in_flight -= 1
            progress.done += len(rows) == len(wanted[tree.id])
            progress.failed = self.rolled.failed.total()
            return rows

        async with (
            open_engine(
                recipe.policy, recipe, self.ledger, self.gate.check, self.context.log
            ) as engine,
            progress.shown(self.context.console),
        ):
            environment = environment_for(recipe, engine, retriever)
            roller = FreshRoller(environment, self.sampling, self.rollouts)
            rolled = map_concurrently(self.gate.admit(trees), roll, recipe.questions_in_flight)
            found = [row async for rows in rolled for row in rows]
        self.rolled.pending = len(wanted) - progress.done - progress.failed
        return sorted(found, key=lambda row: (row.tree_id, row.node_id))

    async def _attempt(self, roller: FreshRoller, tree: StoredTree) -> list[FreshRollouts]:
        try:
            return await roller.roll(tree.question, tree.nodes, tree.states, self.wanted[tree.id])
        except (EndpointError, RetrievalError) as error:
            if isinstance(error, EndpointError) and error.fatal:
                raise
            self.rolled.failed[type(error).__name__] += 1
            return []


def _commit(run: Run, rows: Sequence[FreshRollouts]) -> None:
    if not rows:
        return
    taken = [number_of(part) for part in load_manifest(run.folder).of(TABLE)]
    run.commit([run.write_part(TABLE, rows, max(taken, default=-1) + 1)])
