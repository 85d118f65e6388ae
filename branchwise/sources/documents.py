"""Plain documents, cut into titled passages of a fixed number of words (as DPR cut Wikipedia)."""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from branchwise.base import Faults, Registry, composed
from branchwise.types import Event, EventKind, Passage

from .files import kind_of, text_lines
from .packing import SUFFIXES, unpacked_name

DOCUMENT_READERS: Registry[Callable[[Path], str] | None] = Registry("document reader")
"""Readers of a document's text, by the ending of its files; None for plain text, also packed."""
TEXT_ENDINGS = (".txt", ".md")
for _ending in TEXT_ENDINGS:
    DOCUMENT_READERS.add(_ending, None, __name__)


def register_document_reader(
    ending: str,
) -> Callable[[Callable[[Path], str]], Callable[[Path], str]]:
    """Function decorator: adds a reader of documents, which returns the text of a file.

    A first line `# Title` titles its passages, as in Markdown. The reader raises ValueError if it
    cannot read a file.

    Args:
        ending: Ending of the files, such as ".docx".
    """

    def register(read: Callable[[Path], str]) -> Callable[[Path], str]:
        DOCUMENT_READERS.add(ending, read, read.__module__)
        return read

    return register


_PANDOC = "pandoc -t gfm-raw_html -o {stem}.md {file}"
CONVERTERS = {
    ".pdf": "pdftotext {file} {stem}.txt",
    **dict.fromkeys((".html", ".htm", ".xhtml", ".docx", ".odt", ".rtf", ".epub"), _PANDOC),
}
"""Commands that convert documents of formats that are not read, by ending."""

_HEADING = re.compile(r"#[ \t]+(\S.*)")
_FENCES = ("```", "~~~")


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


def document_files(folder: Path, passed_over: Counter[Event], faults: Faults) -> list[Path]:
    """Returns the text files under `folder` (`.gz` too), by name.

    Counts files with another ending in `passed_over`, except hidden ones. A document of
    `CONVERTERS` is a fault, unless a text file of the same name is in its folder.
    """
    texts = []
    for path in folder.rglob("*"):
        if not path.is_file() or any(p.startswith(".") for p in path.relative_to(folder).parts):
            continue
        if kind_of(path) in DOCUMENT_READERS:
            texts.append(path)
        elif kind_of(path) in CONVERTERS and not _is_converted(path):
            reject_format(path, faults)
        else:
            passed_over[Event(EventKind.FILE_SKIPPED, kind_of(path) or "no ending")] += 1
    return sorted(texts)


def reject_format(path: Path, faults: Faults) -> None:
    """Adds a fault for a document of `CONVERTERS`."""
    names = {"file": shlex.quote(path.name), "stem": shlex.quote(_stem(path))}
    command = CONVERTERS[kind_of(path)].format(**names)
    faults.add(
        str(path),
        f"{kind_of(path)} files are not read. Convert it in its folder with `{command}`, or move "
        "it out of the corpus",
    )


def _is_converted(path: Path) -> bool:
    texts = (_stem(path) + ending for ending in TEXT_ENDINGS)
    return any(path.with_name(name + end).exists() for name in texts for end in ("", *SUFFIXES))


def _stem(path: Path) -> str:
    """Returns the file name without its ending and that of its packing."""
    return unpacked_name(path.name).rpartition(".")[0]


def read_document(path: Path, name: str, passage_words: int, faults: Faults) -> list[Passage]:
    """Returns the passages of a text file, titled by its first heading or its file name.

    Underscores of the file name become spaces, so that a search finds its words.
    """
    before = faults.count
    read = DOCUMENT_READERS[kind_of(path)]
    try:
        text = composed("".join(text_lines(path, faults)) if read is None else read(path))
    except ValueError as error:
        faults.add(str(path), str(error))
    if faults.count > before:
        return []
    title = _first_heading(text) or composed(_stem(path)).replace("_", " ")
    return list(cut(name, title, text, passage_words))


def _first_heading(text: str) -> str | None:
    """Returns the first heading of Markdown's top level, outside code blocks and front matter."""
    in_code, lines = False, text.splitlines()
    if lines[:1] == ["---"] and "---" in lines[1:]:
        lines = lines[lines.index("---", 1) :]
    for line in lines:
        if line.lstrip().startswith(_FENCES):
            in_code = not in_code
        elif not in_code and (heading := _HEADING.match(line)):
            title = heading.group(1).rstrip()
            opened = title.rstrip("#")  # "# Title #" is also a heading, "# C#" is not closed
            return opened.rstrip() if opened[-1:].isspace() else title
    return None
