"""Draws fresh rollouts of a run's nodes (table `survival`), to check its labels.

A label is the mean of a few draws, and the higher of two noisy means tends to be too high. Fresh
draws from the same states, by the same policy at the same temperature, show whether the order of
two siblings was more than luck (see `analysis.survival`).

Every call is in the run's ledger before it is used, and a node with a row is not rolled out twice.
So more pairs, or a resumed stage, cost only the new rollouts.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from branchwise.agent import Environment, State
from branchwise.annotation import draw_rollouts, rollout_rows
from branchwise.base import BranchwiseError, ConfigError, map_concurrently
from branchwise.engines import Sampling
from branchwise.sources import Data
from branchwise.storage import Ledger, load_manifest, part_number, read_parts, table_to_records
from branchwise.types import FreshRollouts, Pair, TreeNode

from .annotated_trees import StoredTree, stored_trees
from .costs import log_costs
from .folder import Run, check_same_inputs
from .inputs import replay_passages
from .preflight import log_notes
from .prepared import Prepared
from .progress import Progress, attempt_each
from .recipe import Recipe, identity, retrieval_identity
from .stage import Gate, StageContext

TABLE = "survival"
ROOT = "fresh"
"""Ledger path of these draws: `fresh/<tree_id>/<node_id>`, separate from the trees' own."""

NodeKey = tuple[str, int]
"""(tree_id, node_id)"""


@dataclass
class FreshRolloutResult:
    """Fresh rollouts, and the number of missing ones.

    Attributes:
        fresh: Rollouts by (tree_id, node_id), including earlier calls.
    """

    fresh: dict[NodeKey, FreshRollouts]
    pending: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    reason: str | None = None
    exit_code: int = 0


def stored_fresh(run: Run, temperature: float | None = None) -> dict[NodeKey, FreshRollouts]:
    """Returns stored rollouts at a temperature; per node, the row with the most rollouts."""
    rollout_temperature = run.recipe.policy.temperature if temperature is None else temperature
    rows = table_to_records(read_parts(run.folder, TABLE), FreshRollouts)
    rows.sort(key=lambda row: len(row.rollouts))
    return {
        (row.tree_id, row.node_id): row
        for row in rows
        if abs(row.temperature - rollout_temperature) < 1e-6
    }


def roll_fresh(
    context: StageContext,
    run: Run,
    pairs: Sequence[Pair],
    rollouts: int = 8,
    temperature: float | None = None,
) -> FreshRolloutResult:
    """Draws fresh rollouts until both sides of every pair have enough, or a limit is reached.

    Args:
        rollouts: Fewest rollouts per side. A final answer always has one: itself.
        temperature: Sampling temperature of the rollouts; defaults to the policy's.

    Raises:
        ConfigError: If corpus, index, prompts or policy have changed since the trees were grown.
        EndpointError: If a fault is fatal.
    """
    rolled = FreshRolloutResult(stored_fresh(run, temperature))
    nodes_by_tree, policies = _trees_to_roll_out(run, pairs, rolled.fresh, rollouts)
    if not nodes_by_tree:
        return rolled
    recipe = _with_current_servers(run.recipe, context.recipe)
    policy = recipe.policy
    sampling = Sampling.of(policy, temperature)
    passages = replay_passages(run)
    corpus = Data((), tuple(passages.values()), {})
    prepared = Prepared(context, recipe, corpus, {"policy": policy})
    digest = prepared.digests["policy"]
    if other_policies := policies - {digest}:  # their rollouts would come from another policy
        raise ConfigError(
            f"the trees were grown by policy {', '.join(sorted(other_policies))}, but "
            f"{policy.model} is now {digest}: restore the weights, or use --no-model"
        )
    check_same_inputs(run.folder, run.record, {"index": prepared.retriever.digest})
    log_notes(context, prepared.models)
    trees = stored_trees(run, only=nodes_by_tree, passages=passages)
    with run.open_ledger() as ledger:
        gate = prepared.gate(ledger)
        with gate.listening():
            rows = asyncio.run(
                _roll(prepared, ledger, gate, trees, nodes_by_tree, rolled, sampling, rollouts)
            )
        if rows:
            numbers = [part_number(part) for part in load_manifest(run.folder).of(TABLE)]
            run.commit([run.write_part(TABLE, rows, max(numbers, default=-1) + 1)])
        log_costs(context, ledger)
    rolled.fresh |= {(row.tree_id, row.node_id): row for row in rows}
    rolled.reason, rolled.exit_code = gate.reason, gate.exit_code
    return rolled


def _with_current_servers(grown: Recipe, current: Recipe) -> Recipe:
    """Returns the recipe of the trees with the settings that may change after they were grown."""
    update: dict[str, object] = {"limits": current.limits}
    if identity(grown.policy) == identity(current.policy):
        update["policy"] = current.policy
    if retrieval_identity(grown.retrieval) == retrieval_identity(current.retrieval):
        update["retrieval"] = current.retrieval
    return grown.model_copy(update=update)


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
    nodes_by_tree: dict[str, set[int]] = defaultdict(set)
    policies = set()
    for tree, node, terminal, policy in zip(*nodes.to_pydict().values(), strict=True):
        # A final answer always has one rollout, itself.
        if node in short[tree] and not (terminal and (tree, node) in fresh):
            nodes_by_tree[tree].add(node)
            policies.add(policy)
    return nodes_by_tree, policies


async def _roll(
    prepared: Prepared,
    ledger: Ledger,
    gate: Gate,
    trees: Iterable[StoredTree],
    nodes_by_tree: Wanted,
    rolled: FreshRolloutResult,
    sampling: Sampling,
    rollouts: int,
) -> list[FreshRollouts]:
    """Returns the rows of all finished nodes; counts failed and pending trees in `rolled`."""
    progress = Progress("fresh rollouts", len(nodes_by_tree), spent=ledger.totals)
    policy = prepared.models["policy"]
    opened = prepared.open_engine(policy, ledger, gate)
    rows: list[FreshRollouts] = []
    finished_trees = 0
    async with opened as engine, progress.shown(prepared.context.console):
        progress.watch(engine)
        environment = prepared.environment(engine)

        async def roll(tree: StoredTree) -> list[FreshRollouts]:
            return await _roll_out(environment, sampling, tree, nodes_by_tree[tree.id], rollouts)

        at_once = prepared.recipe.limits.questions_in_flight(policy)
        async for tree, outcome in attempt_each(gate.admit(trees), roll, at_once, progress):
            if isinstance(outcome, BranchwiseError):
                rolled.failed[type(outcome).__name__] += 1
            else:
                rows += outcome
                finished_trees += len(outcome) == len(nodes_by_tree[tree.id])
    rolled.pending = len(nodes_by_tree) - finished_trees - rolled.failed.total()
    return sorted(rows, key=lambda row: (row.tree_id, row.node_id))


async def _roll_out(
    environment: Environment,
    sampling: Sampling,
    tree: StoredTree,
    wanted: Collection[int],
    rollouts: int,
) -> list[FreshRollouts]:
    """Rolls out the wanted nodes of a tree concurrently; a node that a limit stops has no row."""

    async def roll(step: tuple[TreeNode, State]) -> FreshRollouts:
        node, state = step
        trajectories = await draw_rollouts(
            environment,
            sampling,
            tree.question,
            state,
            path=f"{ROOT}/{node.tree_id}/{node.node_id}",
            draws=1 if state.terminal else rollouts,
        )
        return FreshRollouts(
            tree_id=node.tree_id,
            question_id=node.question_id,
            source=node.source,
            cycle=node.cycle,
            seed=node.seed,
            node_id=node.node_id,
            temperature=sampling.temperature,
            rollouts=rollout_rows(tree.question, trajectories),
            policy_digest=node.policy_digest,
        )

    nodes = zip(tree.nodes, tree.states, strict=True)
    chosen = [(node, state) for node, state in nodes if node.node_id in wanted]
    rolled = [row async for row in map_concurrently(chosen, roll, len(chosen))]
    return sorted(rolled, key=lambda row: row.node_id)
