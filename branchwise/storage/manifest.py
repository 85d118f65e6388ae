"""`manifest.json`: the files of a run's tables. Other files are ignored.

A part is committed once it is named here, so readers see neither incomplete nor stray files.
"""

import hashlib
import os
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath
from typing import Annotated

import pyarrow.parquet as pq
from pyarrow import ArrowException
from pydantic import AfterValidator, Field, ValidationError

from branchwise.base import (
    LOG_BYTES,
    StorageError,
    atomic_write_text,
    describe_errors,
    digest_of,
    open_inside,
    read_inside,
)
from branchwise.types import SCHEMA_VERSION, Event, Record

MANIFEST = "manifest.json"
DAMAGED = (
    "The part was damaged or removed after it was committed. "
    "`branchwise verify --run DIR` removes the part, then the stage that it names rebuilds the rows"
)
"""Message for a damaged part."""


def _inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if PurePosixPath(path).is_absolute() or ".." in parts or "\0" in path or not parts:
        raise ValueError("the part's path must be inside the run folder")
    return path


class PartInfo(Record):
    """One committed parquet file.

    Attributes:
        table: Name of the part's table ("pairs", "eval/<policy>/<set>/predictions").
        path: File path relative to the run folder, with forward slashes.
        sha256: Hash of the file's bytes, hexadecimal.
        counts: Numbers dropped or noted while making these rows, by the text of their event.
    """

    table: str
    path: Annotated[str, AfterValidator(_inside)]
    rows: int
    sha256: str
    counts: dict[str, int] = Field(default_factory=dict)

    @property
    def events(self) -> dict[Event, int]:
        """The counts by event."""
        return {Event.parse(text): n for text, n in self.counts.items()}


class Manifest(Record):
    """The committed parts of a run, in the order of their paths.

    Attributes:
        seal: Hash of all other fields; None if it was never written. Without it, damage to a part's
            hash would look like damage to the part.
    """

    schema_version: int = SCHEMA_VERSION
    parts: tuple[PartInfo, ...] = ()
    seal: str | None = None

    def hash(self) -> str:
        """Returns the seal of the fields as they are."""
        # Exclude defaults, so that the seal stays valid in a later version with another field.
        parts = (part.model_dump_json(exclude_defaults=True) for part in self.parts)
        return digest_of(str(self.schema_version), *parts)

    def of(self, table: str) -> tuple[PartInfo, ...]:
        """Returns the parts of one table."""
        return tuple(part for part in self.parts if part.table == table)

    def rows(self, table: str) -> int:
        """Returns the number of rows of one table."""
        return sum(part.rows for part in self.of(table))


def load_manifest(run: Path) -> Manifest:
    """Returns the manifest of a run folder; empty if nothing was committed yet.

    Raises:
        ConfigError: If the manifest is not a regular file, or too large to be one.
        StorageError: If the folder is missing, or the manifest is damaged or of a newer version.
    """
    path = run / MANIFEST
    try:
        manifest = Manifest.model_validate_json(read_inside(run, MANIFEST, LOG_BYTES))
    except FileNotFoundError:
        if not run.is_dir():
            raise StorageError(f"{run}: no such run folder") from None
        return Manifest()
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValidationError as error:
        raise _not_a_manifest(path, describe_errors(error, most=1)) from error
    if manifest.schema_version > SCHEMA_VERSION:
        raise StorageError(
            f"{path}: has schema version {manifest.schema_version}, this Branchwise reads up to "
            f"{SCHEMA_VERSION}: install a newer version"
        )
    if manifest.seal != manifest.hash():
        raise _not_a_manifest(path, "its content changed since it was written")
    return manifest


def _not_a_manifest(path: Path, problem: str) -> StorageError:
    return StorageError(
        f"{path}: not a manifest ({problem}). Restore it from a copy of the run, or remove it and "
        "rerun the same stages; the ledger replays paid calls"
    )


def add_parts(run: Path, parts: Iterable[PartInfo], replaced: Collection[str] = ()) -> Manifest:
    """Commits parts, all or none; a part replaces an older one with the same path.

    Parts without rows are not committed: they have no file.

    The caller must hold the run (see `base.lock`), or two writers would undo each other's work.

    Args:
        replaced: Names of tables whose older parts are dropped.
    """
    older = (part for part in load_manifest(run).parts if part.table not in replaced)
    by_path = {part.path: part for part in (*older, *parts)}
    current = tuple(by_path[path] for path in sorted(by_path) if by_path[path].rows)
    return _write(run, Manifest(parts=current))


def _write(run: Path, manifest: Manifest) -> Manifest:
    manifest = manifest.model_copy(update={"seal": manifest.hash()})
    atomic_write_text(run / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    return manifest


def remove_parts(run: Path, parts: Iterable[PartInfo]) -> Manifest:
    """Removes parts from the manifest, all or none; their files stay until they are replaced."""
    before, removed = load_manifest(run), {part.path for part in parts}
    remaining = tuple(part for part in before.parts if part.path not in removed)
    return _write(run, before.model_copy(update={"parts": remaining}))


def bad_parts(run: Path) -> list[tuple[PartInfo, str]]:
    """Returns damaged parts, each with its problem."""
    parts = load_manifest(run).parts
    return [(part, problem) for part in parts if (problem := problem_of(run, part))]


def verify_manifest(run: Path) -> list[str]:
    """Returns the problems of the committed parts, one line per part."""
    return [f"{run / part.path}: {problem}" for part, problem in bad_parts(run)]


def problem_of(run: Path, part: PartInfo) -> str | None:
    """Returns the reason a committed part must not be read; None if it is intact.

    Hashes the file, because a flipped bit can make parquet read another value without an error. A
    process hashes an unchanged file once.

    Raises:
        ConfigError: If the part is not a regular file, or its path goes through a link.
    """
    try:
        with open_inside(run, part.path) as file:
            state = os.fstat(file.fileno())
            identity = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, part.sha256)
            if identity in _INTACT:
                return None
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != part.sha256:
                return f"its content changed (sha256 {digest[:12]}…, committed {part.sha256[:12]}…)"
            rows = pq.read_metadata(file).num_rows
    except FileNotFoundError:
        return "missing"
    except (OSError, ArrowException) as error:
        return f"unreadable ({error})"
    if rows != part.rows:
        return f"has {rows} rows, but {part.rows} were committed"
    _INTACT.add(identity)
    return None


_INTACT: set[tuple[int | str, ...]] = set()
"""Files that this process has found intact, with the time of their last change."""
