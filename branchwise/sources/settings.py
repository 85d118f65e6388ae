"""Settings of the `data:` block."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, field_validator
from pydantic_core import PydanticCustomError

from branchwise.base import NamedBlock, Settings, did_you_mean

from .question_lines import READERS

ATLAS = "atlas"
"""The built-in source; all others are files (`READERS`)."""
OWN_SOURCES = frozenset({"atlas", "jsonl"})
"""Sources that are not published benchmarks."""
Split = Literal["warm", "train", "dev", "test"]


class SetSettings(Settings):
    """One question set.

    Attributes:
        source: `atlas` is built in. Files: `jsonl` (any table; docs/your-data.md), `reading`,
            `flashrag`, and the published files of `hotpotqa`, `2wiki`, `musique`, `bamboogle`,
            `popqa`, `nq` and `strategyqa`. `hub` is a set of the Hugging Face hub.
        questions: File of the set, looked up in the recipe's folder, then in the current folder.
            For `hub`, "owner/name[:config[:split]]". Not used by atlas.
        split: Split to draw from, by hash (warm, train, dev, test). Unset: all.
        limit: Most questions. Unset: all.
    """

    source: str = ATLAS
    questions: str | None = None
    split: Split | None = "train"
    limit: int | None = Field(default=None, ge=1)

    @field_validator("source")
    @classmethod
    def _check_source(cls, name: str) -> str:
        if name != ATLAS and name not in READERS:
            hint = did_you_mean(name, (ATLAS, *READERS))
            hint = hint or f"; use one of {', '.join((ATLAS, *READERS))}"
            raise PydanticCustomError("unknown_name", "no such source{hint}", {"hint": hint})
        return name

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
        skip: Questions to leave out at the front of the sample, before the limit; later cycles of a
            curriculum use it. With a mix, at the front of the whole sample.
    """

    limit: int | None = Field(default=24, ge=1)
    corpus: str | tuple[str, ...] | None = None
    mix: tuple[SetSettings, ...] = ()
    passage_words: int = Field(default=100, ge=10)
    skip: int = Field(default=0, ge=0)


class AtlasSettings(DataSettings):
    """Questions of atlas, or of a mix with atlas in it.

    Attributes:
        cities: Number of cities with a passage, largest first. Unset: all.
        references: Paragraphs per question, for protocols that show them: its supporting passages,
            and others of the same country or continent. 0: none.
    """

    cities: int | None = Field(default=None, ge=500)
    references: int = Field(default=0, ge=0, le=100)


DATA_BLOCK = NamedBlock(
    "source",
    ATLAS,
    "source",
    lambda: {ATLAS: AtlasSettings, **dict.fromkeys(READERS, DataSettings)},
)

DataBlock = Annotated[DataSettings, SerializeAsAny(), BeforeValidator(DATA_BLOCK)]
"""Type of a recipe's `data:`: the settings of its source."""
