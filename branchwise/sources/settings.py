"""Settings of the `data:` block."""

from typing import Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from branchwise.base import Settings

SourceName = Literal[
    "atlas",
    "jsonl",
    "hotpotqa",
    "2wiki",
    "musique",
    "bamboogle",
    "popqa",
    "nq",
    "strategyqa",
    "reading",
    "flashrag",
    "hub",
]
OWN_SOURCES = frozenset({"atlas", "jsonl"})
"""Sources that are no published benchmark."""
Split = Literal["warm", "train", "dev", "test"]


class SetSettings(Settings):
    """One question set.

    Attributes:
        source: Reader of the set.
        questions: File of the set, looked up in the recipe's folder, then in the current folder.
            For `hub`, "owner/name[:config[:split]]". Not used by atlas.
        split: Split to draw from, by hash (warm, train, dev, test). Unset: all.
        limit: Most questions. Unset: all.
    """

    source: SourceName = "atlas"
    questions: str | None = None
    split: Split | None = "train"
    limit: int | None = Field(default=None, ge=1)

    @field_validator("questions", "corpus", check_fields=False)
    @classmethod
    def _no_blank_path(cls, value: object) -> object:
        """Rejects an empty path, which would be the current folder."""
        paths = value if isinstance(value, tuple) else (value,)
        if not paths or any(isinstance(path, str) and not path.strip() for path in paths):
            raise PydanticCustomError("blank_path", "is empty; name a file, or remove the setting")
        return value


class DataSettings(SetSettings):
    """Questions and their corpus.

    Attributes:
        corpus: One file or folder, or several, looked up as `questions`; identical passages are
            merged. Defaults to the source's own: atlas's passages, or the questions' paragraphs.
        mix: Several sets instead of one; tables then count by source.
        passage_words: Words per passage when plain documents are cut.
        cities: Number of atlas's cities with a passage, largest first. Unset: all.
        references: Paragraphs per atlas question, for protocols that show them: its supporting
            passages, and others of the same country or continent. 0: none.
        skip: Questions to leave out at the front of the sample, before the limit; later cycles of a
            curriculum use it. With a mix, at the front of the whole sample.
    """

    limit: int | None = Field(default=24, ge=1)
    corpus: str | tuple[str, ...] | None = None
    mix: tuple[SetSettings, ...] = ()
    passage_words: int = Field(default=100, ge=10)
    cities: int | None = Field(default=None, ge=500)
    references: int = Field(default=0, ge=0, le=100)
    skip: int = Field(default=0, ge=0)
