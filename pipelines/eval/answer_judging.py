"""Judges the answers of an evaluation with an LLM (`evaluation.judge`)."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from branchwise.base import BranchwiseError, StorageError
from branchwise.engines import JudgeSettings
from branchwise.evaluation import (
    AnswerJudge,
    Evaluated,
    EvaluationJudge,
    answer_judge_hash,
    fitting_questions,
)
from branchwise.runs import (
    Gate,
    Prepared,
    Progress,
    Recipe,
    Run,
    attempt_each,
    identity,
    listed,
)
from branchwise.storage import Ledger, read_parts, table_to_records
from branchwise.types import Prediction

from .candidates import Candidate

Response = tuple[str, str, str]
"""Source and id of a question, and the response to judge."""
Verdict = bool | str
"""A verdict, or the reason that it is missing."""
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
        prepared: Prepared,
        ledger: Ledger,
        gate: Gate,
        answers: Mapping[str, Evaluated],
    ) -> dict[str, Evaluated] | None:
        """Returns the predictions with verdicts; None if a limit stopped the judge.

        An answer that policies share is judged once. A question without an answer, or with a
        failure, counts as wrong without a call.

        Raises:
            EndpointError: If a fault is fatal.
        """
        context = prepared.context
        rows = [row for evaluated in answers.values() for row in evaluated.predictions]
        responses = list(dict.fromkeys(filter(None, map(self._response, rows))))
        context.log(
            f"judge: {len(rows)} answers, at most {len(responses)} calls of {self.model.model} "
            "(stored replies need none)"
        )
        verdicts: dict[Response, Verdict] = {}
        if responses:
            with gate.listening():
                verdicts = asyncio.run(self._judge_all(prepared, ledger, gate, responses))
        if len(verdicts) < len(responses):
            return None
        missing = Counter(verdict for verdict in verdicts.values() if isinstance(verdict, str))
        if missing:
            context.log(
                f"judge: {missing.total()} of {len(responses)} calls returned no verdict: "
                f"{listed(missing)}"
            )
        return {name: self._with_verdicts(rows, verdicts) for name, rows in answers.items()}

    async def _judge_all(
        self,
        prepared: Prepared,
        ledger: Ledger,
        gate: Gate,
        responses: list[Response],
    ) -> dict[Response, Verdict]:
        questions = {(row.source, row.id): row for row in prepared.data.questions}
        recipe = prepared.recipe
        progress = Progress("eval judge", len(responses), spent=ledger.totals)
        opened = prepared.open_engine(self.model, ledger, gate)
        async with opened as engine, progress.shown(prepared.context.console):
            progress.watch(engine)
            judge = AnswerJudge(engine, self.model, self.how.prompt, recipe.seed)

            async def judge_one(response: Response) -> Verdict:
                source, question_id, text = response
                is_right = await judge.is_right(questions[source, question_id], text)
                return UNREADABLE if is_right is None else is_right

            at_once = recipe.limits.questions_in_flight(recipe.policy)
            admitted = gate.admit(responses)
            return {
                response: type(v).__name__ if isinstance(v, BranchwiseError) else v
                async for response, v in attempt_each(admitted, judge_one, at_once, progress)
            }

    def _response(self, row: Prediction) -> Response | None:
        """Returns the text to judge; None without a gold answer or a response."""
        if self.how.reads == "answer":
            response = row.prediction or ""
        else:
            response = "\n\n".join(step["text"] for step in json.loads(row.trajectory))
        if row.em is None or not response.strip():
            return None
        return row.source, row.question_id, response

    def _with_verdicts(
        self, evaluated: Evaluated, verdicts: Mapping[Response, Verdict]
    ) -> Evaluated:
        def score(row: Prediction) -> float | None:
            if (response := self._response(row)) is None:
                return None if row.em is None else 0.0
            return None if isinstance(verdict := verdicts[response], str) else float(verdict)

        judged = [
            row.model_copy(update={"judge": score(row), "judge_model": self.model.model})
            for row in evaluated.predictions
        ]
        wrong = [replace(failed, judge=failed.em) for failed in evaluated.unanswered]
        return replace(evaluated, predictions=judged, unanswered=wrong)


def stored_answers(run: Run, candidate: Candidate, name: str) -> Evaluated | None:
    """Returns the stored predictions of an evaluation; None unless every question has one.

    Rows of older versions do not count, because they lack verdicts.
    """
    questions, skipped = fitting_questions(candidate.questions, candidate.policy.protocol)
    try:
        table = read_parts(run.folder, f"eval/{candidate.name}/{name}/predictions")
    except StorageError:
        return None
    rows = [row for row in table_to_records(table, Prediction) if row.stop_reason is not None]
    if [(row.source, row.question_id) for row in rows] != [(q.source, q.id) for q in questions]:
        return None
    return Evaluated(rows, failures=[], unanswered=[], skipped=skipped)
