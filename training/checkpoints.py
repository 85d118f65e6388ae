"""Checkpoints of a training run: loads only the run's own, which it lists with hashes.

A checkpoint contains pickles (optimiser, random state), and a pickle can run any code. So a
training run lists the files of every checkpoint it wrote with their hashes, and resumes only from
a listed checkpoint that has not changed.
"""

import hashlib
from pathlib import Path

from branchwise.base import StorageError, atomic_write_json, object_inside

LISTING = "checkpoints.json"


def list_checkpoint(folder: Path, checkpoint: Path, run: str) -> None:
    """Records the files of a checkpoint that the training `run` just wrote."""
    listing = {**_read_listing(folder)[1], checkpoint.name: _hashes(checkpoint)}
    files = {name: hashes for name, hashes in listing.items() if (folder / name).is_dir()}
    atomic_write_json(folder / LISTING, {"run": run, "files": files})


def latest_checkpoint(folder: Path, run: str) -> Path | None:
    """Returns the newest listed checkpoint of the training `run`, verified, or None.

    Args:
        folder: Folder of the checkpoints.
        run: Fingerprint of data, start, settings and seed.

    Raises:
        StorageError: If it belongs to another training, or changed after it was written.
    """
    listed_run, listing = _read_listing(folder)
    names = [name for name in listing if (folder / name).is_dir()]
    if not names:
        return None
    if listed_run != run:
        raise StorageError(
            f"{folder} has checkpoints of another training (its data, start, settings or "
            "seed differ); to replace them, train without --resume"
        )
    newest = max(names, key=lambda name: int(name.rpartition("-")[2]))
    checkpoint = folder / newest
    if _hashes(checkpoint) != listing[newest]:
        raise StorageError(
            f"{checkpoint} has changed since this run wrote it, so it is not loaded; remove "
            "the folder to resume from an earlier checkpoint, or train without --resume"
        )
    return checkpoint


def _read_listing(folder: Path) -> tuple[str, dict[str, dict[str, str]]]:
    """Returns the run that wrote the checkpoints, and the hashes of their files, by checkpoint."""
    try:
        listing = object_inside(folder, LISTING)
        files = {str(name): dict(hashes) for name, hashes in listing["files"].items()}
        return str(listing["run"]), files
    except (FileNotFoundError, NotADirectoryError):
        return "", {}
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise StorageError(
            f"{folder / LISTING}: cannot read the list of checkpoints ({error}); to replace "
            "them, train without --resume"
        ) from error


def _hashes(checkpoint: Path) -> dict[str, str]:
    hashes = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:  # of all weights, it may be larger than the memory
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            hashes[str(path.relative_to(checkpoint))] = digest
    return hashes
