"""Ctrl-C while a command imports its modules ends it with code 130, without a traceback."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
SCRIPT_MODULE, _, FUNCTION = PROJECT["scripts"]["branchwise"].partition(":")

INTERRUPTED_IMPORT = """
import runpy, signal, sys

class Interrupting:
    @staticmethod
    def find_spec(name, *_):
        if name == {imported!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting)
sys.argv = {arguments!r}
"""
SCRIPT = f"from {SCRIPT_MODULE} import {FUNCTION}; {FUNCTION}()"
MODULE = "runpy.run_module('{}', run_name='__main__', alter_sys=True)"


def interrupted(
    entry: str, imported: str, *arguments: str, ignored: bool = False
) -> subprocess.CompletedProcess[str]:
    """Runs an entry point that gets SIGINT when it first imports a module."""
    handler = "SIG_IGN" if ignored else "default_int_handler"  # the tests may run in the background
    before = f"signal.signal(signal.SIGINT, signal.{handler})\n"
    program = INTERRUPTED_IMPORT.format(imported=imported, arguments=["branchwise", *arguments])
    return subprocess.run(
        [sys.executable, "-c", program + before + entry],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "imported",
    ["branchwise.base.memory", "branchwise.pipelines.inspect.stage", "branchwise.runs.recipe_file"],
)
@pytest.mark.parametrize("entry", [SCRIPT, MODULE.format("branchwise")], ids=["script", "module"])
def test_ctrl_c_during_an_import_ends_a_stage(entry: str, imported: str) -> None:
    ended = interrupted(entry, imported, "inspect", "--run", "datasets/none")
    assert (ended.returncode, ended.stderr) == (130, "")


def test_ctrl_c_during_an_import_ends_a_child_of_a_study() -> None:
    parent = str(os.getpid())
    ended = interrupted(
        MODULE.format("branchwise.cli.child"), "branchwise.base.memory", parent, "inspect", "--help"
    )
    assert (ended.returncode, ended.stderr) == (130, "")


def test_ctrl_c_during_an_import_ends_the_extras_command() -> None:
    ended = interrupted(MODULE.format("branchwise.cli.extras"), "branchwise.base.memory", "inspect")
    assert (ended.returncode, ended.stderr) == (130, "")


def test_a_background_job_continues_to_ignore_ctrl_c() -> None:
    ended = interrupted(SCRIPT, "branchwise.base.memory", "inspect", "--help", ignored=True)
    assert ended.returncode == 0, ended.stderr


def test_ctrl_c_in_a_stage_raises_keyboard_interrupt(tmp_path: Path) -> None:
    """Checks that the stage handles the interrupt itself, and prints that a rerun resumes."""
    raising = (
        "import branchwise.runs\n"
        "branchwise.runs.load_recipe = lambda *_: signal.raise_signal(signal.SIGINT)\n"
    )
    ended = interrupted(raising + SCRIPT, "", "inspect", "--run", str(tmp_path))
    assert ended.returncode == 130, ended.stderr
    assert ended.stdout == "interrupted; rerun the same command to resume\n"
    assert ended.stderr == ""
