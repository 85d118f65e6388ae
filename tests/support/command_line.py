"""Runs stages in the process of the test."""

from pathlib import Path

from branchwise.cli.command_line import parser, run_stage


def branchwise(stage: str, config: Path, run: Path, *more: object) -> int:
    """Runs a stage as the command line does; returns its exit code."""
    words = (stage, "--config", config, "--run", run, *more)
    return run_stage(parser().parse_args([str(word) for word in words]))


def evaluated(config: Path, run: Path, *settings: str) -> int:
    """Runs `eval` with these settings; returns its exit code."""
    return branchwise("eval", config, run, *(w for one in settings for w in ("--set", one)))
