"""Plain documents, cut into titled passages of a fixed number of words (as DPR cut Wikipedia)."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from sources.files import kind_of, open_lossless, valid_lines
from storage.reading import Faults
from storage.records import Passage

ENDINGS = (".txt", ".md")

_HEADING = re.compile(r"^#\s+(.+?)\s*#*\s*$", re.MULTILINE)


def cut(name: str, title: str, text: str, passage_words: int) -> Iterator[Passage]:
    """Cuts a text into passages of `passage_words` words (the last may be shorter).

    White space becomes single spaces; every word is kept once. If the document is one passage, its
    id is its name; otherwise passages count from 0 ("name#0").
    """
    words = text.split()
    starts = range(0, len(words), passage_words)
    for number, start in enumerate(starts):
        piece = " ".join(words[start : start + passage_words])
        yield Passage(id=name if len(starts) == 1 else f"{name}#{number}", title=title, text=piece)


def document_files(folder: Path, passed_over: Counter[str]) -> list[Path]:
    """Returns the text files under `folder` (`.gz` too), by name.

    Counts files with another ending in `passed_over`, except hidden ones.
    """
    found = []
    for path in folder.rglob("*"):
        if not path.is_file() or any(p.startswith(".") for p in path.relative_to(folder).parts):
            continue
        if kind_of(path) in ENDINGS:
            found.append(path)
        else:
            passed_over[f"corpus files skipped, {kind_of(path) or 'no ending'}"] += 1
    return sorted(found)


def read_document(path: Path, name: str, passage_words: int, faults: Faults) -> list[Passage]:
    """Returns the passages of a text file, titled by its first heading or its file name.

    Underscores of the file name become spaces, so that a search finds its words.
    """
    before = faults.count
    try:
        with open_lossless(path) as file:
            text = "".join(valid_lines(path, file, faults))
    except OSError as error:
        faults.add(str(path), f"cannot be read: {error}")
    if faults.count > before:
        return []
    stem = path.name.removesuffix(".gz").rpartition(".")[0].replace("_", " ")
    heading = _HEADING.search(text)
    return list(cut(name, heading.group(1) if heading else stem, text, passage_words))
