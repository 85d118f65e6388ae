"""Commits annotated questions: a question's tree and pairs enter the manifest together.

Each part is written completely before the manifest names it. A part holds several questions, so
that a large run does not become a folder of tiny files. A question that was finished but not
committed before a crash is replayed from the ledger at no cost.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow.compute as pc

from annotation.annotator import AnnotatedQuestion
from base.terminal_escape import inert
from engines.endpoint.chat import OVERLONG
from runs.costs import estimates, spending
from runs.folder import Run
from runs.inputs import model_digest
from storage.ledger import Ledger
from storage.ledger_rows import QuestionRow
from storage.manifest import load_manifest, problem_of, remove_parts
from storage.parts import Part, part_number, part_of, question_ids, read_part, read_parts
from storage.records import Failure, Question
from storage.schemas import rows_to_table, schema_of, table_to_records

QUESTIONS_A_PART = 16
"""Fewest questions per part; after a kill, at most this many are replayed."""
MOST_QUESTIONS_A_PART = 256
FAILED = "question failed"
"""Prefix of counts of failed questions by kind."""
PARTS = 500
"""Number of parts above which parts get larger, because every commit rewrites the manifest."""


@dataclass
class Committer:
    """Commits finished questions.

    Attributes:
        notes: Numbers of dropped or noted data rows, by reason.
    """

    run: Run
    ledger: Ledger
    questions: Sequence[Question]
    notes: Mapping[str, int]
    _waiting: list[AnnotatedQuestion] = field(default_factory=list)
    _failures: list[Failure] = field(default_factory=list)

    def pending(self) -> list[Question]:
        """Returns questions without a committed tree, in the run's order; retries failed ones."""
        if question_ids(self.run.folder, "questions") != {q.id for q in self.questions}:
            self._write([self.questions_part()])
        done = question_ids(self.run.folder, "trees")
        pending = [q for q in self.questions if q.id not in done]
        self.ledger.mark_pending(q.id for q in pending)
        return pending

    def questions_part(self) -> Part:
        """Returns all questions with every field as a part that is not written yet."""
        return self._part("questions", self.questions, None)

    def drop_part(self, number: int) -> None:
        """Drops a part; its questions become pending."""
        manifest = load_manifest(self.run.folder)
        grown = (*manifest.of("trees"), *manifest.of("pairs"))
        remove_parts(self.run.folder, [part for part in grown if part_number(part) == number])
        name = f"{number:05d}"
        pending = [row.question_id for row in self.ledger.questions() if row.part == name]
        self.ledger.set_questions(QuestionRow(identity, "pending") for identity in pending)

    def add(self, annotated: AnnotatedQuestion) -> None:
        """Adds a finished question; commits when a part is full."""
        if annotated.failure is not None:
            self._failures.append(annotated.failure)
            row = QuestionRow(annotated.question.id, "failed", annotated.failure.kind)
            self.ledger.set_questions([row])
            return
        self._waiting.append(annotated)
        if len(self._waiting) >= self._questions_a_part:
            self.flush()

    @property
    def _questions_a_part(self) -> int:
        return max(QUESTIONS_A_PART, min(len(self.questions) // PARTS, MOST_QUESTIONS_A_PART))

    def flush(self) -> None:
        """Commits the waiting questions as the next part."""
        if not self._waiting:
            return
        numbers = [part_number(part) for part in load_manifest(self.run.folder).of("trees")]
        self.commit(max(numbers, default=-1) + 1, self._waiting)
        self._waiting.clear()

    def commit(self, number: int, annotated: Iterable[AnnotatedQuestion]) -> None:
        """Commits these questions as the part with this number."""
        batch = _in_order(annotated)
        trees, pairs = self.grown_parts(number, batch)
        # Stored in the part, so that counts of all attempts add up without duplicates.
        counts = dict(sum((a.counts for a in batch), Counter[str]()))
        trees = replace(trees, info=trees.info.model_copy(update={"counts": counts}))
        self._write([trees, pairs])
        self.ledger.set_questions(
            QuestionRow(a.question.id, "done", part=f"{number:05d}") for a in batch
        )

    def grown_parts(self, number: int, annotated: Iterable[AnnotatedQuestion]) -> tuple[Part, Part]:
        """Returns the questions' trees and pairs as parts that are not written yet."""
        batch = _in_order(annotated)
        return (
            self._part("trees", [n for a in batch for n in a.nodes], number),
            self._part("pairs", [p for a in batch for p in a.pairs], number),
        )

    def _write(self, parts: Sequence[Part]) -> None:
        for part in parts:
            part.write(self.run.folder)
        self.run.commit([part.info for part in parts])

    def _part(self, table: str, rows: Sequence[Any], number: int | None) -> Part:
        return part_of(table, rows_to_table(rows, schema_of(table), self.run.id), number)

    def finish(self) -> dict[str, Any]:
        """Commits the rest and the failures; returns the run's totals over all attempts."""
        self.flush()
        failures = self._write_failures()
        manifest = load_manifest(self.run.folder)
        done = len(question_ids(self.run.folder, "trees"))
        return {
            "run": str(self.run.folder),
            "questions": len(self.questions),
            "questions_done": done,
            "questions_failed": len(failures),
            "nodes": manifest.rows("trees"),
            "pairs": manifest.rows("pairs"),
            **spending(self.ledger.totals()),
            "counts": self._counts(failures),
        }

    def _counts(self, failures: Iterable[Failure]) -> dict[str, int]:
        """Counts everything dropped or noted in the run, by reason."""
        counts = Counter({f"data: {reason}": n for reason, n in self.notes.items()})
        for part in load_manifest(self.run.folder).of("trees"):
            counts.update(part.counts)
        counts.update(f"{FAILED}: {failure.kind}" for failure in failures)
        counts.update(self._served_model_mismatches())
        if overlong := self.ledger.count_calls("stop_reason").get(OVERLONG):
            counts["warning: replies far above max_new_tokens, kept as empty"] = overlong
        counts.update({f"tokens {words}": n for words, n in estimates(self.ledger).items()})
        return dict(counts)

    def _served_model_mismatches(self) -> Counter[str]:
        recipe, counts = self.run.recipe, Counter[str]()
        asked = [recipe.policy, recipe.active_judge, recipe.asked_verifier]
        remote = [model for model in asked if model is not None and model.engine == "openai"]
        # Roles with one model share its digest and so its calls.
        for digest, model in {model_digest(model, recipe): model for model in remote}.items():
            for name, n in self.ledger.count_calls("model", digest).items():
                if name != model.model:
                    counts[f"warning: {model.model} answered as {inert(name)}"] += n
        return counts

    def _write_failures(self) -> list[Failure]:
        """Rewrites the table of failures; returns failures of questions that are still not done."""
        done = question_ids(self.run.folder, "trees")
        old = table_to_records(read_parts(self.run.folder, "failures"), Failure)
        latest = {f.question_id: f for f in (*old, *self._failures) if f.question_id not in done}
        rows = [latest[key] for key in sorted(latest)]
        if old or rows:
            self._write([self._part("failures", rows, None)])
        return rows


def restate_questions(run: Run, ledger: Ledger) -> int:
    """Replaces damaged rows of the ledger's `questions`; returns their number.

    The rows repeat which part holds a question, so the parts give them again. A question whose part
    is damaged too becomes pending, and is replayed from its calls.
    """
    damaged = ledger.damaged_questions()
    if damaged:
        ledger.drop(damaged)
        for part in load_manifest(run.folder).of("trees"):
            if problem_of(run.folder, part) is None:
                held = read_part(run.folder, part, ["question_id"])["question_id"]
                name = f"{part_number(part):05d}"
                ledger.set_questions(
                    QuestionRow(identity, "done", part=name)
                    for identity in pc.unique(held).to_pylist()
                )
    return len(damaged)


def _in_order(annotated: Iterable[AnnotatedQuestion]) -> list[AnnotatedQuestion]:
    """Sorts by id, so that a part's content does not depend on the order of finishing."""
    return sorted(annotated, key=lambda one: one.question.id)
