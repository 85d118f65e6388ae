"""The corpus: a union of passage files and documents, with identical content folded."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sources.documents import ENDINGS, cut, document_files, read_document
from sources.files import Placed, Raw, existing, kind_of, read_rows
from sources.rows import content_id
from storage.errors import ConfigError
from storage.reading import Faults
from storage.records import Passage, Question

READ = "passages read"
PlacedPassage = tuple[str, Passage]
"""A place ("file:line") and the passage that stands there."""


@dataclass(frozen=True)
class Corpus:
    """Passages with distinct ids and distinct content.

    Attributes:
        passages: in the order of the files.
        aliases: id of a folded passage → id of the one that was kept.
        counts: what was read and folded, by name.
    """

    passages: tuple[Passage, ...]
    aliases: Mapping[str, str]
    counts: Mapping[str, int]


def load_corpus(paths: Sequence[str | Path], passage_words: int) -> Corpus:
    """The union of `paths`.

    Args:
        paths: JSONL files (`.gz` too) of passages `{"id", "title", "text"}` (also FlashRAG's
            `{"id", "contents"}`) or of documents `{"text"}`; `.txt` and `.md` files; folders of
            those.
        passage_words: length of the passages that documents are cut into, at least 1.

    Raises:
        ConfigError: a path that does not exist, no passages, or faults in the files (all of them
            up to 20, with file and line).
    """
    faults = Faults()
    files = [existing(path, "data.corpus") for path in paths]
    corpus = unite(
        (placed for path in files for placed in _read(path, passage_words, faults)), faults
    )
    faults.raise_any()
    if not corpus.passages:
        raise ConfigError(f"the corpus has no passages: {', '.join(str(path) for path in files)}")
    return corpus


def corpus_of_paragraphs(questions: Iterable[tuple[str, Question]]) -> Corpus:
    """The corpus of all paragraphs of `questions` (each with its place).

    Raises:
        ConfigError: two paragraphs share an id and differ.
    """
    faults = Faults()
    passages = (
        (
            place,
            Passage(
                id=paragraph_id(item.id, item.title, item.text), title=item.title, text=item.text
            ),
        )
        for place, question in questions
        for item in question.paragraphs
    )
    corpus = unite(passages, faults)
    faults.raise_any()
    return corpus


def paragraph_id(given: str | None, title: str, text: str) -> str:
    """The passage id of a paragraph: its own, or one made of its content."""
    return given or content_id(title, text)


def unite(passages: Iterable[PlacedPassage], faults: Faults) -> Corpus:
    """Folds passages that repeat an earlier one; one id with two contents is a fault."""
    first: dict[str, PlacedPassage] = {}
    by_content: dict[tuple[str, str], str] = {}
    kept: list[Passage] = []
    aliases: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for place, passage in passages:
        counts[READ] += 1
        earlier_place, earlier = first.setdefault(passage.id, (place, passage))
        if earlier is not passage:
            if earlier == passage:
                counts["passages folded: same id and content"] += 1
            else:
                faults.add(
                    place, f"passage {passage.id!r} stands at {earlier_place} with another content"
                )
            continue
        same = by_content.setdefault((passage.title, passage.text), passage.id)
        if same == passage.id:
            kept.append(passage)
        else:
            aliases[passage.id] = same
            counts["passages folded: same content, another id"] += 1
    return Corpus(tuple(kept), aliases, dict(counts))


def _read(path: Path, passage_words: int, faults: Faults) -> Iterator[PlacedPassage]:
    if path.is_dir():
        for file in document_files(path):
            name = (Path(path.name) / file.relative_to(path)).as_posix()
            for passage in read_document(file, name, passage_words, faults):
                yield str(file), passage
    elif kind_of(path) in ENDINGS:
        for passage in read_document(path, path.name, passage_words, faults):
            yield str(path), passage
    else:
        for placed in read_rows(path, faults):
            yield from _passages_of(path, placed, passage_words, faults)


def _passages_of(
    path: Path, placed: Placed, passage_words: int, faults: Faults
) -> Iterator[PlacedPassage]:
    place, raw = placed
    try:
        form = _form_of(raw)
        if form is not None:
            yield place, form
            return
        text = _text(raw, "text")
        name = _text(raw, "id") if "id" in raw else f"{path.name}-{content_id(text)}"
        title = _text(raw, "title") if raw.get("title") else " ".join(text.split()[:8])
    except ValueError as error:
        faults.add(place, str(error))
        return
    for passage in cut(name, title, text, passage_words):
        yield place, passage


def _form_of(raw: Raw) -> Passage | None:
    """The passage of a row in one of the two passage forms; null for a document.

    Raises:
        ValueError: a field is of the wrong type or empty.
    """
    if "contents" in raw and "text" not in raw:
        title, line_break, text = _text(raw, "contents").partition("\n")
        title = title.strip().removeprefix('"').removesuffix('"')
        return Passage(id=_text(raw, "id"), title=title, text=text if line_break else title)
    if "id" not in raw or "title" not in raw:
        return None
    title = raw["title"]
    if not isinstance(title, str):
        raise ValueError(f"'title' must be text, not {type(title).__name__}")
    return Passage(id=_text(raw, "id"), title=title, text=_text(raw, "text"))


def _text(raw: Raw, key: str) -> str:
    value: Any = raw.get(key)
    if key == "id" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if key not in raw:
        raise ValueError(f"has no field {key!r}")
    if not isinstance(value, str):
        raise ValueError(f"{key!r} must be text, not {type(value).__name__}")
    if not value.strip():
        raise ValueError(f"{key!r} is empty")
    return value
