"""The machine and the software of a run, for its provenance."""

import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from branchwise.base import redacted_command
from branchwise.retrieval import VectorSettings

from .recipe import Recipe

VERSIONED = (
    "branchwise",
    "openvino-genai",
    "openai",
    "torch",
    "transformers",
    "trl",
    "peft",
    "duckdb",
    "pyarrow",
)


def environment_facts() -> dict[str, Any]:
    """Returns facts that results depend on: versions, git revision, processor and threads."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "threads": _threads(),
        "cpu_flags": _cpu_flags(),
        "git_revision": _git_revision(),
        "versions": {name: installed_version(name) for name in VERSIONED},
        "command": redacted_command(sys.argv),
    }


def installed_version(name: str) -> str | None:
    """Returns the version of an installed distribution; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git_revision() -> str | None:
    root = checkout()
    if root is None:
        return None
    described = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or None


def _threads() -> int | None:
    """Counts cores of this process; the embedded engine and torch start a thread on each."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity else os.cpu_count()


def _cpu_flags() -> list[str]:
    """Returns instruction sets that affect speed and rounding of a model on this CPU."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return []
    flags = next((ln for ln in info.read_text().splitlines() if ln.startswith("flags")), "")
    return sorted(f for f in flags.split() if f.startswith(("avx", "amx", "fma")))


def checkout() -> Path | None:
    """Returns the checkout that this package is in; None if a wheel was installed."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "studies").is_dir() else None


def extras_of(recipe: Recipe) -> tuple[str, ...]:
    """Returns the names of the extras that a recipe needs, as in pyproject.toml."""
    dense = ("dense",) if isinstance(recipe.retrieval, VectorSettings) else ()
    return tuple(dict.fromkeys((*dense, *recipe.scheme.extras)))


def missing_packages(extra: str) -> list[str]:
    """Returns the names of an extra's packages that are not installed."""
    required = [r for r in requires("branchwise") or [] if r.endswith(f'extra == "{extra}"')]
    names = [re.split(r"[^\w.-]", requirement)[0] for requirement in required]
    return [name for name in names if installed_version(name) is None]
