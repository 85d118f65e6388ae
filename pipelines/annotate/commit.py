"""Commits annotated questions: a question's tree and pairs enter the manifest together.

Each part is written completely before the manifest names it. A part holds several questions, so
that a large run does not become a folder of tiny files. A question that was finished but not
committed before a crash is replayed from the ledger at no cost.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from branchwise.annotation import AnnotatedQuestion
from branchwise.base import terminal_safe
from branchwise.runs import Run, empty_replies, estimates, spending
from branchwise.storage import (
    Ledger,
    Part,
    load_manifest,
    part_number,
    part_of,
    question_ids,
    read_parts,
    rows_to_table,
    schema_of,
    table_to_records,
)
from branchwise.types import Event, EventKind, Failure, Question, counts_by_text

QUESTIONS_A_PART = 16
"""Fewest questions per part; after a kill, at most this many are replayed."""
MOST_QUESTIONS_A_PART = 256
PARTS = 500
"""Number of parts above which parts get larger, because every commit rewrites the manifest."""


@dataclass
class Committer:
    """Commits finished questions.

    Attributes:
        digests: Digests of the models, by role.
    """

    run: Run
    ledger: Ledger
    questions: Sequence[Question]
    digests: Mapping[str, str]
    _waiting: list[AnnotatedQuestion] = field(default_factory=list)
    _failures: list[Failure] = field(default_factory=list)

    def pending(self) -> list[Question]:
        """Returns questions without a committed tree, in the run's order; retries failed ones."""
        questions = self.questions
        if question_ids(self.run.folder, "questions") != {q.id for q in questions}:
            self._write([self._part("questions", questions, None)])
        finished_ids = question_ids(self.run.folder, "trees")
        return [question for question in questions if question.id not in finished_ids]

    def add(self, annotated: AnnotatedQuestion) -> None:
        """Adds a finished question; commits when a part is full."""
        if annotated.failure is not None:
            self._failures.append(annotated.failure)
            return
        self._waiting.append(annotated)
        most = min(len(self.questions) // PARTS, MOST_QUESTIONS_A_PART)
        if len(self._waiting) >= max(QUESTIONS_A_PART, most):
            self.flush()

    def flush(self) -> None:
        """Commits the waiting questions as the next part: the first free number.

        So questions of a part that `branchwise verify` dropped return under its name.
        """
        if not self._waiting:
            return
        # In the order of ids, so that a part's content does not depend on the order of finishing.
        batch = sorted(self._waiting, key=lambda annotated: annotated.question.id)
        numbers = {part_number(part) for part in load_manifest(self.run.folder).of("trees")}
        number = next(n for n in count() if n not in numbers)
        trees = self._part("trees", [n for a in batch for n in a.nodes], number)
        # Stored in the part, so that counts of all attempts add up without duplicates.
        counts = counts_by_text(sum((a.counts for a in batch), Counter[Event]()))
        trees = replace(trees, info=trees.info.model_copy(update={"counts": counts}))
        self._write([trees, self._part("pairs", [p for a in batch for p in a.pairs], number)])
        self._waiting.clear()

    def _write(self, parts: Sequence[Part]) -> None:
        for part in parts:
            part.write(self.run.folder)
        self.run.commit([part.info for part in parts])

    def _part(self, table: str, rows: Sequence[Any], number: int | None) -> Part:
        return part_of(table, rows_to_table(rows, schema_of(table), self.run.id), number)

    def finish(self) -> tuple[dict[str, Any], Counter[Event]]:
        """Commits the rest and the failures; returns totals and events of all attempts."""
        self.flush()
        failures = self._write_failures()
        manifest = load_manifest(self.run.folder)
        totals = {
            "run": str(self.run.folder),
            "questions": len(self.questions),
            "questions_done": len(question_ids(self.run.folder, "trees")),
            "questions_failed": len(failures),
            "nodes": manifest.rows("trees"),
            "pairs": manifest.rows("pairs"),
            **spending(self.ledger.totals()),
        }
        return totals, self._events(failures)

    def _events(self, failures: Iterable[Failure]) -> Counter[Event]:
        """Counts everything dropped or noted in the run, except its data."""
        counts = Counter[Event]()
        for part in load_manifest(self.run.folder).of("trees"):
            counts.update(part.events)
        counts.update(Event(EventKind.QUESTION_FAILED, failure.kind) for failure in failures)
        counts.update(self._served_model_mismatches())
        for (role, cause), n in empty_replies(self.ledger).items():
            counts[Event(EventKind.WARNING, f"empty replies of the {role}: {cause}")] += n
        for basis, n in estimates(self.ledger).items():
            counts[Event(EventKind.TOKENS_COUNTED, basis)] += n
        return counts

    def _served_model_mismatches(self) -> Counter[Event]:
        counts = Counter[Event]()
        models = self.run.recipe.annotating_models.items()
        # Roles with one model share its digest and so its calls.
        remote = {self.digests[role]: m for role, m in models if m.engine == "openai"}
        for digest, model in remote.items():
            for name, n in self.ledger.count_calls("model", digest).items():
                if name != model.model:
                    message = f"{model.model} answered as {terminal_safe(name)}"
                    counts[Event(EventKind.WARNING, message)] += n
        return counts

    def _write_failures(self) -> list[Failure]:
        """Rewrites the table of failures; returns failures of questions that are still not done."""
        finished_ids = question_ids(self.run.folder, "trees")
        old = table_to_records(read_parts(self.run.folder, "failures"), Failure)
        latest = {
            f.question_id: f for f in (*old, *self._failures) if f.question_id not in finished_ids
        }
        rows = [latest[key] for key in sorted(latest)]
        if old or rows:
            self._write([self._part("failures", rows, None)])
        return rows
