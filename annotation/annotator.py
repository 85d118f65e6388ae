"""Annotates one question: grows its tree, labels its nodes and builds its pairs.

Within a question the search is sequential; callers run many questions concurrently. A question
that fails becomes a `Failure`; only an error that would fail every question ends the run.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from branchwise.agent import Environment
from branchwise.base import EndpointError, RetrievalError
from branchwise.engines import Sampling
from branchwise.mcts import SearchSettings
from branchwise.types import Event, EventKind, Failure, Pair, Question, TreeNode

from .evaluators import Evaluator
from .grower import ReportProgress, grow
from .labelling import Labeller
from .records import tree_rows


@dataclass(frozen=True)
class AnnotatedQuestion:
    """The result of one question.

    `counts` are events for the closing table: duplicates, dropped pairs by reason, invalid actions,
    unscored nodes by reason, and whether `mcts.max_output_tokens` stopped the search.
    """

    question: Question
    nodes: list[TreeNode] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    counts: Counter[Event] = field(default_factory=Counter)
    failure: Failure | None = None


@dataclass(frozen=True)
class Annotator:
    """Settings and parts that every question shares."""

    environment: Environment
    evaluator: Evaluator | None
    search: SearchSettings
    sampling: Sampling
    labeller: Labeller

    async def annotate(
        self, question: Question, report_progress: ReportProgress = lambda share: None
    ) -> AnnotatedQuestion:
        """Grows, labels and pairs one question; an error that affects only it becomes a `Failure`.

        Args:
            question: Question to grow a tree for.
            report_progress: Called before each iteration with the share of iterations done, in
                [0, 1].

        Raises:
            EndpointError: If an error is fatal.
            BudgetExceeded: If a limit allows no further call; the question stays pending.
        """
        try:
            grown = await grow(
                question,
                self.environment,
                self.evaluator,
                self.search,
                self.labeller.scheme,
                self.sampling,
                report_progress,
            )
        except (EndpointError, RetrievalError) as error:
            if isinstance(error, EndpointError) and error.fatal:
                raise
            return AnnotatedQuestion(question, failure=Failure.of(question.id, "annotate", error))
        rows = tree_rows(question, grown, self.labeller.provenance)
        states = [node.state for node in grown.tree.nodes]
        if self.labeller.scored_by is None:
            nodes, pairs, dropped = self.labeller.label(question, rows, states)
        else:  # a reward model takes too long for the event loop
            nodes, pairs, dropped = await asyncio.to_thread(
                self.labeller.label, question, rows, states
            )
        counts = Counter[Event]()
        for reason, n in dropped.items():
            counts[Event(EventKind.PAIR_DROPPED, reason)] = n
        counts[Event(EventKind.DUPLICATE_SIBLING)] = grown.tree.duplicates
        counts[Event(EventKind.INVALID_ACTION)] = sum(row.action == "invalid" for row in rows)
        counts[Event(EventKind.TOKEN_LIMIT)] = int(grown.stopped)
        for evaluation in grown.evaluations.values():
            if evaluation.unscored is not None:
                counts[Event(EventKind.UNSCORED, evaluation.unscored)] += 1
        return AnnotatedQuestion(question, nodes, pairs, +counts)  # + drops zero counts
