"""Judges the answers of an evaluation with an LLM (`evaluation.judge`)."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from agent.protocols import protocol_of
from base.errors import BranchwiseError, StorageError
from engines.settings import JudgeSettings
from evaluation.run import Evaluated, askable
from evaluation.settings import EvaluationJudge
from rewards.answer_judge import AnswerJudge, answer_judge_hash
from runs.evaluation.candidates import Candidate
from runs.factories import open_engine
from runs.folder import Run
from runs.progress import Progress, attempt_each
from runs.recipe import Recipe, identity
from runs.stage import Gate, StageContext, listed
from storage.ledger import Ledger
from storage.parts import read_parts
from storage.records import Prediction, Question
from storage.schemas import table_to_records

Asked = tuple[str, str, str]
"""Source and id of a question, and the response to judge."""
UNREADABLE = "neither word"
"""Reason of a missing verdict if the judge replied."""


@dataclass(frozen=True)
class AnswerJudging:
    """The judge and its settings."""

    model: JudgeSettings
    how: EvaluationJudge

    @classmethod
    def of(cls, recipe: Recipe) -> "AnswerJudging | None":
        """Returns the judge of `evaluation.judge`, or None."""
        model, how = recipe.answer_judge, recipe.evaluation.judge
        return None if model is None or how is None else cls(model, how)

    @property
    def deciding(self) -> dict[str, object]:
        """Settings that affect the verdicts."""
        how = {"prompt": self.how.prompt, "reads": self.how.reads}
        prompt_hash = answer_judge_hash(self.how.prompt)
        return {**identity(self.model), **how, "prompt_hash": prompt_hash}

    def judge(
        self,
        context: StageContext,
        ledger: Ledger,
        gate: Gate,
        done: Mapping[str, Evaluated],
        questions: Iterable[Question],
    ) -> dict[str, Evaluated] | None:
        """Returns the predictions with verdicts; None if a limit stopped the judge.

        An answer that policies share is judged once. A question without an answer, or with a
        failure, counts as wrong without a call.

        Raises:
            EndpointError: If a fault is fatal.
        """
        rows = [row for one in done.values() for row in one.predictions]
        asked = list(dict.fromkeys(filter(None, map(self._asked, rows))))
        context.log(
            f"judge: {len(rows)} answers, at most {len(asked)} calls of {self.model.model} "
            "(stored replies need none)"
        )
        verdicts: dict[Asked, bool | str] = {}
        if asked:
            known = {(question.source, question.id): question for question in questions}
            with gate.listening():
                verdicts = asyncio.run(self._ask(context, ledger, gate, asked, known))
        if len(verdicts) < len(asked):
            return None
        if why := Counter(verdict for verdict in verdicts.values() if isinstance(verdict, str)):
            context.log(
                f"judge: {why.total()} of {len(asked)} calls returned no verdict: {listed(why)}"
            )
        return {name: self._with_verdicts(one, verdicts) for name, one in done.items()}

    async def _ask(
        self,
        context: StageContext,
        ledger: Ledger,
        gate: Gate,
        asked: list[Asked],
        known: Mapping[tuple[str, str], Question],
    ) -> dict[Asked, bool | str]:
        """Returns each verdict, or the reason that it is missing."""
        progress = Progress("eval judge", len(asked), spent=ledger.totals)
        opened = open_engine(self.model, context.recipe, ledger, gate.check, context.log)
        async with opened as engine, progress.shown(context.console):
            judge = AnswerJudge(engine, self.model, self.how.prompt, context.recipe.seed)

            async def verdict(one: Asked) -> bool | str:
                source, question_id, response = one
                found = await judge.is_right(known[source, question_id], response)
                return UNREADABLE if found is None else found

            at_once = context.recipe.questions_in_flight
            return {
                one: type(found).__name__ if isinstance(found, BranchwiseError) else found
                async for one, found in attempt_each(gate.admit(asked), verdict, at_once, progress)
            }

    def _asked(self, row: Prediction) -> Asked | None:
        """Returns the text to judge; None without a gold answer or a response."""
        if self.how.reads == "answer":
            response = row.prediction or ""
        else:
            response = "\n\n".join(step["text"] for step in json.loads(row.trajectory))
        if row.em is None or not response.strip():
            return None
        return row.source, row.question_id, response

    def _with_verdicts(self, one: Evaluated, verdicts: Mapping[Asked, bool | str]) -> Evaluated:
        def score(row: Prediction) -> float | None:
            if (asked := self._asked(row)) is None:
                return None if row.em is None else 0.0
            return None if isinstance(verdict := verdicts[asked], str) else float(verdict)

        judged = [
            row.model_copy(update={"judge": score(row), "judge_model": self.model.model})
            for row in one.predictions
        ]
        wrong = [replace(lost, judge=lost.em) for lost in one.unanswered]
        return replace(one, predictions=judged, unanswered=wrong)


def stored_answers(run: Run, candidate: Candidate, name: str) -> Evaluated | None:
    """Returns the stored predictions of an evaluation; None unless every question has one.

    Rows of older versions do not count, because they lack verdicts.
    """
    asked, skipped = askable(candidate.questions, protocol_of(candidate.recipe.agent))
    try:
        table = read_parts(run.folder, f"eval/{candidate.name}/{name}/predictions")
    except StorageError:
        return None
    rows = [row for row in table_to_records(table, Prediction) if row.stop_reason is not None]
    if [(row.source, row.question_id) for row in rows] != [(q.source, q.id) for q in asked]:
        return None
    return Evaluated(rows, failures=[], unanswered=[], skipped=skipped)
