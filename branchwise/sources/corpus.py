"""The corpus: a union of passage files and documents, with identical content merged."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from branchwise.base import ConfigError, Faults, composed, kind_in_words
from branchwise.types import Event, EventKind, Passage, Question

from .documents import (
    CONVERTERS,
    DOCUMENT_READERS,
    cut,
    document_files,
    read_document,
    reject_format,
)
from .files import Raw, existing, in_composed_form, kind_of, read_rows
from .question_lines import content_id, first_words, number_as_text, unset_as_none

_IDS = (
    *("id", "_id", "docid", "doc_id", "pid", "passage_id", "document_id", "chunk_id"),
    *("corpus_id", "ID", "Id"),
)
"""Names of a passage's id: ours and FlashRAG's, BEIR's, Tevatron's, MS MARCO's, and others'."""

PlacedPassage = tuple[str, Passage]
"""A place ("file:line") and its passage."""


@dataclass
class Corpus:
    """Passages with distinct ids and distinct content.

    Attributes:
        passages: Passages in the order in which they were added.
        aliases: Id of a merged passage → id of the passage that it repeats.
        ids: Id of each passage by its title and text.
        counts: Numbers of passages read, merged and skipped.
    """

    passages: list[Passage] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    ids: dict[tuple[str, str], str] = field(default_factory=dict)
    counts: Counter[Event] = field(default_factory=Counter)
    _first: dict[str, PlacedPassage] = field(default_factory=dict)

    def add(self, place: str, passage: Passage, faults: Faults) -> None:
        """Adds a passage, or merges it with an earlier one of the same content; one id with two
        contents is a fault.
        """
        self.counts[Event(EventKind.PASSAGE_READ)] += 1
        earlier_place, earlier = self._first.setdefault(passage.id, (place, passage))
        if earlier is not passage:
            if earlier == passage:
                self.counts[Event(EventKind.PASSAGE_MERGED, "same id and content")] += 1
            else:
                faults.add(
                    place, f"passage {passage.id!r} is also at {earlier_place}, with other content"
                )
            return
        # The first id of a content stays. Otherwise equal passages would take several of the places
        # that a search returns.
        same = self.ids.setdefault((passage.title, passage.text), passage.id)
        if same == passage.id:
            self.passages.append(passage)
        else:
            self.aliases[passage.id] = same
            self.counts[Event(EventKind.PASSAGE_MERGED, "same content, another id")] += 1

    def add_paragraphs(self, place: str, question: Question, faults: Faults) -> None:
        """Adds the paragraphs of a question; the id of one without an id is a hash of its content.

        Skips paragraphs without text: some sets have them, and a search cannot find them.
        """
        for item in question.paragraphs:
            if item.text.strip():
                name = item.id or content_id(item.title, item.text)
                self.add(place, Passage(id=name, title=item.title, text=item.text), faults)
            else:
                self.counts[Event(EventKind.EMPTY_PARAGRAPH)] += 1


def load_corpus(paths: Sequence[str | Path], passage_words: int) -> Corpus:
    """Returns the union of `paths`.

    Args:
        paths: Tables (`sources.files`) of passages `{"id", "title", "text"}` (also BEIR's with
            `_id`, and FlashRAG's `{"id", "contents"}`) or of documents `{"text"}`; `.txt` and `.md`
            files; folders of such files.
        passage_words: Words per passage when documents are cut, at least 1.

    Raises:
        ConfigError: If a path does not exist, a file has faults, or the corpus is empty. Lists up
            to 20 faults with file and line.
    """
    faults, corpus = Faults(), Corpus()
    resolved = (existing(path, "data.corpus", faults, folder=True) for path in paths)
    files = [path for path in resolved if path is not None]
    for path in files:
        for place, passage in _read(path, passage_words, faults, corpus.counts):
            corpus.add(place, passage, faults)
    faults.raise_any()
    if not corpus.passages:
        counts_text = "".join(f"; {event}: {count}" for event, count in corpus.counts.items())
        raise ConfigError(f"the corpus is empty: {', '.join(map(str, files))}{counts_text}")
    return corpus


def _read(
    path: Path, passage_words: int, faults: Faults, passed_over: Counter[Event]
) -> Iterator[PlacedPassage]:
    if not path.is_dir() and kind_of(path) not in DOCUMENT_READERS:
        if kind_of(path) in CONVERTERS:
            reject_format(path, faults)
            return
        for place, raw in in_composed_form(read_rows(path, faults)):
            try:
                of_row = _passages_of(path.name, raw, passage_words)
            except ValueError as error:
                faults.add(place, str(error))
                continue
            for passage in of_row:
                yield place, passage
        return
    for file in document_files(path, passed_over, faults) if path.is_dir() else [path]:
        name = composed((Path(path.name) / file.relative_to(path)).as_posix())
        passages = read_document(file, name, passage_words, faults)
        if not passages:
            passed_over[Event(EventKind.EMPTY_DOCUMENT)] += 1
        for passage in passages:
            yield str(file), passage


def _passages_of(file: str, raw: Raw, passage_words: int) -> Iterable[Passage]:
    """Returns the passage of a row in one of the two passage forms, or those of a document.

    Raises:
        ValueError: If a field is of the wrong type or empty.
    """
    name = next((_text(raw, key) for key in _IDS if unset_as_none(raw.get(key)) is not None), None)
    if "contents" in raw and "text" not in raw:
        contents = _text(raw, "contents")
        title, line_break, text = contents.partition("\n")
        title = title.strip().removeprefix('"').removesuffix('"')
        if raw.get("title"):
            title, text = _text(raw, "title"), contents
        elif not line_break:
            title, text = first_words(contents), contents
        return (Passage(id=name or content_id(title, text), title=title, text=text),)
    text = _text(raw, "text")
    if name is not None and "title" in raw:
        title = raw["title"] or ""
        if not isinstance(title, str):
            raise ValueError(f"'title' must be text, not {kind_in_words(title)}")
        return (Passage(id=name, title=title, text=text),)
    title = _text(raw, "title") if raw.get("title") else first_words(text)
    return cut(name or f"{file}-{content_id(text)}", title, text, passage_words)


def _text(raw: Raw, key: str) -> str:
    value: Any = number_as_text(raw.get(key)) if key in _IDS else raw.get(key)
    if key not in raw:
        raise ValueError(f"lacks the field {key!r}")
    if not isinstance(value, str):
        raise ValueError(f"{key!r} must be text, not {kind_in_words(value)}")
    if not value.strip():
        raise ValueError(f"{key!r} is empty")
    return value
