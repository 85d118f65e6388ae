"""Kinds of damage to a file: flipped bits, and truncated, missing or replaced files.

for harm in HARMS:
    harm(one_file, random)
"""

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

Harm = Callable[[Path, Random], None]


def flipped(path: Path, random: Random, bits: int = 1) -> None:
    """Flips random bits; keeps size and modification time."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    for place in random.sample(range(8 * len(content)), bits):
        content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def cut(path: Path, random: Random) -> None:
    path.write_bytes(path.read_bytes()[: random.randint(1, path.stat().st_size // 2)])


def emptied(path: Path, random: Random) -> None:
    path.write_bytes(b"")


def lost(path: Path, random: Random) -> None:
    path.unlink()


def another_beside(path: Path, random: Random) -> None:
    path.with_name(f"also-{path.name}").write_bytes(path.read_bytes())


def fifo(path: Path, random: Random) -> None:
    """Replaces the file by a pipe, whose readers wait for a writer forever."""
    path.unlink()
    os.mkfifo(path)


def device(path: Path, random: Random) -> None:
    """Replaces the file by an endless device; reading it whole never ends."""
    path.unlink()
    path.symlink_to("/dev/zero")


def folder(path: Path, random: Random) -> None:
    path.unlink()
    path.mkdir()


HARMS: tuple[Harm, ...] = (
    flipped,
    cut,
    emptied,
    lost,
    another_beside,
    fifo,
    device,
    folder,
)
"""All kinds of damage to a single file."""
