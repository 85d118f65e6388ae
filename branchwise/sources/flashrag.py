"""FlashRAG's JSONL, one format for many sets."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from branchwise.types import Question

from .hotpotqa import Context, SupportingFacts, hops_of, paragraphs_of
from .question_lines import Answers, Identifier, Row, Text, content_id, distinct, with_answers


class Metadata(BaseModel):
    """Metadata keys of HotpotQA and 2WikiMultiHopQA in FlashRAG; others stay unchanged."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str | None = None
    supporting_facts: SupportingFacts = Field(default_factory=list)
    context: Context = Field(default_factory=list)


class FlashRow(Row):
    """`{"id", "question", "golden_answers", "metadata"}`.

    FlashRAG uses the same ids in every set ("test_0"), so eight digits of the question's hash are
    added to the id. This allows a mix of sets.
    """

    format: ClassVar[str] = "FlashRAG's JSONL"

    id: Identifier
    question: Text
    golden_answers: Answers
    metadata: Metadata | None = None

    @classmethod
    def recognises(cls, raw: dict[str, Any]) -> bool:
        return "golden_answers" in raw

    def to_question(self, source: str) -> Question:
        metadata = self.metadata or Metadata()
        titles = distinct(title for title, _ in metadata.supporting_facts)
        facts = bool(metadata.supporting_facts)
        metadata_fields = metadata.model_extra or {}
        return Question(
            id=f"{self.id}-{content_id(self.question)[:8]}",
            source=source,
            question=self.question,
            answers=with_answers(self.golden_answers),
            type=metadata.type,
            hops=hops_of(metadata.type) if facts else None,
            supporting_titles=titles,
            paragraphs=paragraphs_of(metadata.context, titles),
            extra={**self.others(), **({"metadata": metadata_fields} if metadata_fields else {})},
        )
