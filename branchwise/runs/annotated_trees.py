"""Reads the pairs and the trees of a run; of trees only one part is in memory at a time."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

from branchwise.agent import State, protocol_of, replay_tree
from branchwise.base import ConfigError, StorageError
from branchwise.storage import (
    PartInfo,
    load_manifest,
    part_number,
    question_ids,
    read_part,
    read_parts,
    stored_questions,
    table_to_records,
)
from branchwise.types import Pair, Passage, Question, TreeNode

from .folder import Run
from .inputs import replay_passages
from .stage import checked_name


def pairs_table(label: str | None = None) -> str:
    """Returns the name of the table of pairs, of the run itself or of a relabelling."""
    return f"relabelled/{checked_name(label)}/pairs" if label else "pairs"


def relabelling_of(table: str) -> str | None:
    """Returns the folder of the relabelling that a table belongs to; None for other tables."""
    folder = table.rpartition("/")[0]
    return folder if folder.startswith("relabelled/") else None


def labels_table(label: str | None = None) -> str:
    """Returns the name of the table of labelled trees, of the run itself or of a relabelling."""
    return f"relabelled/{checked_name(label)}/labels" if label else "trees"


def check_relabelling(run: Run, label: str | None) -> None:
    """Raises ConfigError if the run lacks a relabelling of this name."""
    if label and not load_manifest(run.folder).of(labels_table(label)):
        raise ConfigError(
            f"--label {label}: {run.folder} has no such relabelling. Make it with "
            f"`branchwise relabel --label {label}`, or leave --label out"
        )


def pairs_of(run: Run, table: str) -> list[Pair]:
    """Returns the pairs of a run.

    Raises:
        ConfigError: If the table is empty, or its relabelling is missing or lacks later questions.
    """
    check_relabelling_current(run, table)
    # The parts have the order in which questions finished, which must not affect a training.
    pairs = table_to_records(read_parts(run.folder, table).sort_by("tree_id"), Pair)
    if not pairs:
        raise ConfigError(
            f"{run.folder}: no {table} to train on; annotate more questions, or relabel with a "
            "smaller pairs.min_gap or pairs.min_outcomes (rewards.schedule `none` leaves no pair)"
        )
    return pairs


def check_relabelling_current(run: Run, table: str) -> None:
    """Raises ConfigError if a table's relabelling is missing, or lacks later questions."""
    folder = relabelling_of(table)
    if folder is None:
        return
    label = folder.rpartition("/")[2]
    check_relabelling(run, label)
    since = question_ids(run.folder, "trees") - question_ids(run.folder, f"{folder}/labels")
    if since:
        raise ConfigError(
            f"{run.folder}: {len(since)} questions were annotated after {folder} was made; rerun "
            f"`branchwise relabel --label {label}` with its settings"
        )


@dataclass(frozen=True)
class StoredTree:
    """One tree of a run.

    Attributes:
        part: Number of the part that contains it.
        nodes: All nodes, in order of `node_id`.
    """

    part: int
    nodes: Sequence[TreeNode]
    _run: "_Replay" = field(repr=False)

    @property
    def id(self) -> str:
        return self.nodes[0].tree_id

    @property
    def question(self) -> Question:
        """The question that the tree was grown for.

        Raises:
            StorageError: If the run lacks the question.
        """
        identity, questions = self.nodes[0].question_id, self._run.questions
        if identity not in questions:
            raise StorageError(
                f"{self._run.run.folder}: a tree belongs to question {identity!r}, which is not in "
                "the run's questions. Restore questions.parquet and trees/ from the same copy of "
                "the run"
            )
        return questions[identity]

    @cached_property
    def states(self) -> list[State]:
        """The policy's state at each node, in the order of `nodes`.

        Raises:
            ConfigError: If the corpus or the prompts have changed since the tree was grown.
            StorageError: If rows of the tree are missing.
        """
        protocol = protocol_of(self._run.run.recipe.agent)
        return replay_tree(self.question, self.nodes, self._run.passages, protocol)


def stored_trees(
    run: Run,
    table: str = "trees",
    only: Collection[str] | None = None,
    passages: Mapping[str, Passage] | None = None,
) -> Iterator[StoredTree]:
    """Yields the trees of a run by part, and within a part by id.

    A question's part depends on the order in which trees were finished. Sort by `id` if the result
    must not depend on that.

    Args:
        passages: The run's corpus by id, if it is in memory already.

    Raises:
        ConfigError: If a part is not a regular file inside the run.
        StorageError: If a part was changed after it was committed.
    """
    replay = _Replay(run, passages)
    for part in load_manifest(run.folder).of(table):
        yield from _trees_of(replay, part, only)


def _trees_of(
    replay: "_Replay", part: PartInfo, only: Collection[str] | None
) -> Iterator[StoredTree]:
    """Yields trees in a frame of its own, so that a part is freed before the next one is read."""
    nodes = table_to_records(read_part(replay.run.folder, part), TreeNode)
    nodes.sort(key=lambda node: (node.tree_id, node.node_id))
    for identity, tree in groupby(nodes, key=lambda node: node.tree_id):
        if only is None or identity in only:
            yield StoredTree(part_number(part), list(tree), replay)


@dataclass
class _Replay:
    """Questions and corpus of a run, read when a tree first needs them."""

    run: Run
    given: Mapping[str, Passage] | None

    @cached_property
    def questions(self) -> Mapping[str, Question]:
        return stored_questions(self.run.folder)

    @cached_property
    def passages(self) -> Mapping[str, Passage]:
        return replay_passages(self.run) if self.given is None else self.given
