"""Opens input files by their first bytes, whatever their name: packed or plain, text or table."""

import bz2
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import IO, BinaryIO, Literal, cast

Kind = Literal["text", "parquet"]

DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
"""Errors of reading packed data, the file's own `OSError` included."""
SUFFIXES = (".gz", ".bz2", ".xz", ".zip")
"""Endings that a packed file has after the ending of its content."""

_Opener = Callable[[BinaryIO], AbstractContextManager[BinaryIO]]
_PACKED: dict[bytes, _Opener] = {
    b"\x1f\x8b": lambda file: cast(BinaryIO, gzip.GzipFile(fileobj=file)),
    b"BZh": lambda file: cast(BinaryIO, bz2.BZ2File(file)),
    b"\xfd7zXZ\x00": lambda file: cast(BinaryIO, lzma.LZMAFile(file)),  # noqa: SIM115
    b"PK\x03\x04": lambda file: cast(BinaryIO, _only_member(file)),
}
_UNREADABLE = {
    b"(\xb5/\xfd": "is zstd data; unpack it with `zstd -d`",
    b"%PDF": "is a PDF; convert it with `pdftotext`",
    b"\xd0\xcf\x11\xe0": "is an old Office document; save it as CSV or text",
    b"SQLite format 3": "is an SQLite database; export the table as CSV",
    b"ARROW1": "is an Arrow file; save it as parquet",
    b"\xff\xff\xff\xff": "is an Arrow stream; save it as parquet",
    b"7z\xbc\xaf": "is a 7z archive; unpack it",
    b"Rar!": "is a RAR archive; unpack it",
}
_FIRST_BYTES = 4096
MOST_ZEROS = 0.05
"""Share of zero bytes above which a file is not text; a text may have a stray one."""


class NotReadable(ValueError):
    """A file is of a kind that is not read; the message says which, and what to do."""


class Opened(ExitStack):
    """An open file, unpacked; use it in `with`.

    Attributes:
        file: Its content.
        kind: Kind of its content.
    """

    def __init__(self, path: Path) -> None:
        """Opens a file.

        Raises:
            NotReadable: If its first bytes are those of a kind that is not read.
            OSError: If it cannot be opened (see `DAMAGED` for packed data).
        """
        super().__init__()
        try:
            self.file: BinaryIO = self.enter_context(path.open("rb"))
            opener = next((o for magic, o in _PACKED.items() if self._begins(magic)), None)
            if opener is not None:
                self.file = self.enter_context(opener(self.file))
            self.kind: Kind = "parquet" if self._begins(b"PAR1") else "text"
            for magic, advice in _UNREADABLE.items():
                if self._begins(magic):
                    raise NotReadable(advice)
            first = self._first()
            is_utf8 = self.kind == "text" and self.encoding == "utf-8-sig"
            if is_utf8 and first.count(0) > MOST_ZEROS * len(first):
                raise NotReadable("is a binary file, not text (or UTF-16 without a mark)")
        except BaseException:
            self.close()
            raise

    @property
    def encoding(self) -> str:
        """Encoding of a text: UTF-16 if it has such a byte-order mark, else UTF-8."""
        is_utf16 = self._begins(b"\xff\xfe") or self._begins(b"\xfe\xff")
        return "utf-16" if is_utf16 else "utf-8-sig"

    def _begins(self, magic: bytes) -> bool:
        return self._first().startswith(magic)

    def _first(self) -> bytes:
        first = self.file.read(_FIRST_BYTES)
        self.file.seek(0)
        return first


def unpacked_name(name: str) -> str:
    """Returns a file name without the ending of its packing: `a.jsonl.gz` → `a.jsonl`."""
    ending = next((ending for ending in SUFFIXES if name.lower().endswith(ending)), "")
    return name[: len(name) - len(ending)]


def _only_member(file: BinaryIO) -> IO[bytes]:
    archive = zipfile.ZipFile(file)
    names = [
        name
        for name in archive.namelist()
        if not name.endswith("/") and not name.startswith("__MACOSX/")
    ]
    if "[Content_Types].xml" in names:
        raise NotReadable("is an Office document; save it as CSV or text")
    if len(names) != 1:
        raise NotReadable(f"is a zip archive of {len(names)} files; unpack it, and name one")
    return archive.open(names[0])
