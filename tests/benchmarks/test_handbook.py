"""Questions of benchmarks/handbook: gold passages, answers, uniqueness and mixture."""

from collections import Counter
from pathlib import Path

import pytest

from branchwise.base.text import holds_phrase
from branchwise.rewards.answers import normalise
from branchwise.runs.question_set import evaluation_data
from branchwise.runs.recipe_file import load_recipe
from branchwise.sources.load import Data
from branchwise.types import EventKind

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks" / "handbook"


@pytest.fixture(scope="module")
def data() -> Data:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return evaluation_data(load_recipe(ROOT / "configs" / "handbook.yaml"))


def test_every_piece_of_evidence_is_in_its_gold_passage(data: Data) -> None:
    texts = {passage.id: passage.text for passage in data.passages}
    assert not [n for n in data.notes if n.kind in (EventKind.WARNING, EventKind.WITHOUT_GOLD)]
    for question in data.questions:
        evidence = question.extra["evidence"]
        assert len(evidence) == len(set(question.supporting_ids)) == question.hops, question.id
        for passage, phrase in zip(question.supporting_ids, evidence, strict=True):
            assert phrase in texts[passage], question.id


def test_answers_are_short_and_the_first_is_in_the_last_gold_passage(data: Data) -> None:
    texts = {passage.id: passage.text for passage in data.passages}
    for question in data.questions:
        assert all(1 <= len(answer.split()) <= 6 for answer in question.answers), question.id
        if question.type == "yesno":
            assert question.answers in (("yes",), ("no",)), question.id
            continue
        answer, last = question.answers[0], question.supporting_ids[-1]
        assert holds_phrase(texts[last], answer), question.id
        assert not any(holds_phrase(question.question, a) for a in question.answers), question.id


def test_questions_are_unique_and_every_document_is_used(data: Data) -> None:
    asked = Counter(normalise(question.question) for question in data.questions)
    assert asked.most_common(1)[0][1] == 1
    used = {i.rpartition("#")[0] for question in data.questions for i in question.supporting_ids}
    assert used == {f"documents/{path.name}" for path in (FOLDER / "documents").iterdir()}


def test_the_numbers_of_hops_and_question_types_are_as_documented(data: Data) -> None:
    assert Counter(question.hops for question in data.questions) == {1: 110, 2: 90}
    kinds = Counter(question.type for question in data.questions)
    assert kinds == {"span": 107, "number": 70, "yesno": 17, "date": 6}
