"""MuSiQue (Ans and Full) in its own JSONL."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from branchwise.types import Question

from .question_lines import Answers, Identifier, Row, Text, distinct, paragraph, with_answers


class MusiqueParagraph(BaseModel):
    """A paragraph of a MuSiQue line."""

    model_config = ConfigDict(extra="ignore", strict=True)

    idx: int | None = None
    title: str
    paragraph_text: str
    is_supporting: bool = False


class SubQuestion(BaseModel):
    """A step of `question_decomposition`; `#1` in its question marks the first answer."""

    model_config = ConfigDict(extra="ignore", strict=True)

    question: str = ""
    answer: str = ""
    paragraph_support_idx: int | None = None


class MusiqueRow(Row):
    """`{"id", "question", "answer", "answer_aliases", "answerable", "paragraphs", …}`.

    MuSiQue-Full has each question twice under one id, the second time without the passage that
    answers it. Here the second one has `answerable` false, no answers (the answer stays in
    `extra`), and its own id.
    """

    format: ClassVar[str] = "MuSiQue's own format"

    id: Identifier
    question: Text
    answer: Text
    answer_aliases: Answers = Field(default_factory=list)
    answerable: bool = True
    paragraphs: list[MusiqueParagraph] = Field(default_factory=list)
    question_decomposition: list[SubQuestion] = Field(default_factory=list)

    @classmethod
    def recognises(cls, raw: dict[str, Any]) -> bool:
        return "question_decomposition" in raw or "answer_aliases" in raw

    def to_question(self, source: str) -> Question:
        extra = {**self.others(), "decomposition": self._decomposition()}
        answers = [self.answer, *self.answer_aliases]
        if not self.answerable:
            extra["answer"] = self.answer
        kind = self.id.partition("__")[0] if "__" in self.id else None
        kind_hops = int(kind[0]) if kind and kind[0] in "234" else None
        supporting = [p.title for p in self.paragraphs if p.is_supporting]
        return Question(
            id=self.id if self.answerable else f"{self.id}__unanswerable",
            source=source,
            question=self.question,
            answers=with_answers(answers) if self.answerable else (),
            type=kind,
            hops=len(self.question_decomposition) or kind_hops,
            answerable=self.answerable,
            supporting_titles=distinct(supporting),
            paragraphs=tuple(
                paragraph(p.title, p.paragraph_text, p.is_supporting) for p in self.paragraphs
            ),
            extra=extra,
        )

    def _decomposition(self) -> list[dict[str, Any]]:
        """Returns sub-questions in order, each with the title of the paragraph that answers it."""
        titles: dict[int | None, str] = {
            place if p.idx is None else p.idx: p.title for place, p in enumerate(self.paragraphs)
        }
        return [
            {
                "question": step.question,
                "answer": step.answer,
                "support_title": titles.get(step.paragraph_support_idx),
            }
            for step in self.question_decomposition
        ]
