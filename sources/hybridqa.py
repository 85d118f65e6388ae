"""HybridQA and OTT-QA: paragraphs are the rows of a table, and the passages that it links to."""

from typing import Any, ClassVar

from sources.jsonl import ParagraphField, QuestionLine
from sources.rows import paragraph
from storage.records import Question


class HybridLine(QuestionLine):
    """Our schema with `intro` (the start of the table's page) and `trace_unique`.

    HybridQA's and OTT-QA's supporting cells are found by matching texts. If `trace_unique` is
    false, the marked paragraphs are alternatives, up to fifty of them, and not the documents that
    the question needs. Such questions are read without gold documents.
    """

    format: ClassVar[str] = "HybridQA's or OTT-QA's lines"

    trace_unique: bool
    intro: ParagraphField | None = None

    @classmethod
    def recognises(cls, raw: dict[str, Any]) -> bool:
        return "trace_unique" in raw

    def to_question(self, source: str) -> Question:
        question = super().to_question(source)
        paragraphs = question.paragraphs
        if self.intro:
            intro = paragraph(self.intro.title, self.intro.text, False, self.intro.id)
            paragraphs = (*paragraphs, intro)
        changed: dict[str, Any] = {"extra": {**question.extra, "trace_unique": self.trace_unique}}
        if not self.trace_unique:
            paragraphs = tuple(paragraph(p.title, p.text, False, p.id) for p in paragraphs)
            changed |= {"supporting_titles": (), "supporting_ids": ()}
        return question.model_copy(update={**changed, "paragraphs": paragraphs})
