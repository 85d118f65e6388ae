"""A pseudo-terminal that records all bytes sent to it, and hostile text to send there.

with PseudoTerminal() as terminal:
    stages.run("annotate", …, output=terminal.path, environment=terminal.environment)
terminal.harmless()
"""

import os
import pty
import re
import threading
from pathlib import Path
from typing import ClassVar, Self

HOSTILE = (
    "\x1b]0;pwned\x07\x1b[2J\x1b[38;5;213m\x1b]8;;evil\x1b\\\x9b31m\x85\u2028\u202e\u2066\u200f"
    "\u061c\ufeff\x7f\b\x0c\r[bold red]FORGED[/]\r\nFORGED"
)
"""Sets a title, clears, colours, links, moves back, reverses the text, and forges a line."""

OWN_STYLES = re.compile(
    # Colours that Rich gives our tables, and the moves of its live display.
    r"\x1b\[(?!38;5;213m)[0-9;]*m|\x1b\[\?25[lh]|\r(?:\x1b\[(?:1A|2K))+|\r(?=\n)"
)
ACTED_ON = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def reject_harmful(said: str) -> None:
    """Fails if the text has other control characters than our own, or a forged line."""
    left = OWN_STYLES.sub("", said)
    found = ACTED_ON.search(left)
    assert not found, f"{left[max(found.start() - 80, 0) :][:160]!r}"
    assert not re.search(r"^FORGED", left, re.MULTILINE), left
    assert "UnicodeEncodeError" not in left


class PseudoTerminal:
    """A pseudo-terminal and a thread that reads from it, until the block ends.

    Attributes:
        path: Device that programs print to.
        said: All printed text, available after the block.
    """

    environment: ClassVar = {"TERM": "xterm-256color", "COLUMNS": "400"}

    def __init__(self) -> None:
        self.said = ""
        self._read, self.descriptor = pty.openpty()
        self.path = Path(os.ttyname(self.descriptor))
        self._chunks: list[bytes] = []
        self._reader = threading.Thread(target=self._drain)

    def harmless(self, *shown: str) -> str:
        """Checks that the printed text is harmless; returns it without our own styles.

        Args:
            shown: Texts that must be in it; by default, a part of the hostile text.
        """
        reject_harmful(self.said)
        left = OWN_STYLES.sub("", self.said)
        for words in shown or ("pwned",):
            assert words in left, left
        return left

    def _drain(self) -> None:
        try:
            while chunk := os.read(self._read, 1 << 16):
                self._chunks.append(chunk)
        except OSError:  # the last program has closed the terminal
            pass

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self.descriptor)
        self._reader.join()
        os.close(self._read)
        # Strict: a C1 control as a single byte would not be UTF-8.
        self.said = b"".join(self._chunks).decode("utf-8")
