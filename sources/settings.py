"""What `data:` in a recipe may say."""

from typing import Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from storage.settings import Settings

SourceName = Literal[
    "atlas", "jsonl", "hotpotqa", "2wiki", "musique", "bamboogle", "popqa", "nq", "flashrag", "hub"
]
Split = Literal["warm", "train", "dev", "test"]


class SetSettings(Settings):
    """One question set.

    Attributes:
        source: which reader.
        questions: file of the set; for `hub`, "owner/name" or "owner/name:config". Atlas has
            none.
        split: hash part of the set to draw from (warm, train, dev, test), or unset for all.
        limit: how many questions at most; unset: all.
        types: keep only questions of these types; unset: all.
    """

    source: SourceName = "atlas"
    questions: str | None = None
    split: Split | None = "train"
    limit: int | None = Field(default=None, ge=1)
    types: tuple[str, ...] | None = None

    @field_validator("questions", "corpus", check_fields=False)
    @classmethod
    def _no_blank_path(cls, value: object) -> object:
        """An empty path would be the folder one stands in."""
        paths = value if isinstance(value, tuple) else (value,)
        if not paths or any(isinstance(path, str) and not path.strip() for path in paths):
            raise PydanticCustomError("blank_path", "names no file; leave the setting out for none")
        return value


class DataSettings(SetSettings):
    """Questions and the corpus that they are asked of.

    Attributes:
        corpus: one file or several (a union; identical content is folded). Defaults to the
            source's own: atlas's passages, or the questions' paragraphs.
        mix: several sets instead of one; tables then count by source.
        passage_words: length of the passages that plain documents are cut into.
        cities: how many of atlas's cities get a passage (largest first); unset: all.
        references: paragraphs that each of atlas's questions brings, for protocols that show them:
            its supporting passages, and others of the same country or continent; 0 for none.
        skip: how many questions to leave out of the front of the sample, before the limit: what an
            earlier cycle of a curriculum has seen. With a mix, of the front of the whole.
    """

    limit: int | None = Field(default=24, ge=1)
    corpus: str | tuple[str, ...] | None = None
    mix: tuple[SetSettings, ...] = ()
    passage_words: int = Field(default=100, ge=10)
    cities: int | None = Field(default=None, ge=500)
    references: int = Field(default=0, ge=0, le=100)
    skip: int = Field(default=0, ge=0)
