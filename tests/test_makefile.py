"""`make` never executes values that a user gives: real processes, in a prepared checkout.

The virtual environment is a stand-in: its `branchwise` records its arguments, and its `python`
records the arguments of pip and otherwise runs the real Python.
"""

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from branchwise.pipelines.stages import STAGES

REPOSITORY = Path(__file__).resolve().parents[1]
VARIABLES = ("CONFIG", "RUN", "SQL", "STUDY", "ARGS", "EXTRAS")
STAMPS = ("first", "package", "torch", "cpu", "train", "study")
DENSE = "retrieval:\n  kind: dense\n"

BRANCHWISE = """#!{python}
import json, os, sys
from pathlib import Path
given = [os.fsencode(a).hex() for a in (*sys.argv[1:], os.environ.get("SQL", ""))]
Path("{record}").write_text(json.dumps(given))
"""
PYTHON = """#!/bin/sh
case "$1 $2 $REAL_PIP" in
    "-m pip " | "-m pytest "*) echo "$@" >>'{record}' && exit ;;
esac
exec '{python}' "$@"
"""

HOSTILE = (
    "`touch CANARY`",
    "$(touch CANARY)",
    "$$(touch CANARY)",
    "$(shell touch CANARY)",
    "${shell touch CANARY}",
    "$(eval X := $(shell touch CANARY))",
    "$(if 1,$(shell touch CANARY))",
    "a'; touch CANARY; '",
    'a"; touch CANARY; "',
    '"$(touch CANARY)"',
    "'`touch CANARY`'",
    "a; touch CANARY",
    "a & touch CANARY",
    "a | touch CANARY",
    "a\ntouch CANARY",
    "a\nexport Y := $(shell touch CANARY)\n",
    "a\n\t@touch CANARY",
    "a # b",
    "# a",
    "--help",
    "-x",
    "two  words and a\ttab",
    "$@ $< $(MAKE) $(RUN)",
    "a\\",
    "a\\ b\\\nc\\$(shell touch CANARY)",
    "a=b:=c!=touch CANARY",
    "* ? ~ %",
    "$(info $(shell touch CANARY))é",
)


@dataclass(frozen=True)
class Checkout:
    """Folder in which `make` runs, and the records of the stand-in programs."""

    folder: Path
    records: Path

    def make(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs `make`, without the variables of a `make` that runs the tests."""
        handed_down = ("MAKE", "MFLAGS", "TORCH_INDEX", "BRANCHWISE", *VARIABLES)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(handed_down)}
        return subprocess.run(
            ["make", *arguments],
            cwd=self.folder,
            env={**kept, "PYTHONPATH": str(REPOSITORY), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def given(self) -> list[str]:
        """Arguments of `branchwise`; the last one is the variable SQL."""
        words = json.loads((self.records / "argv.json").read_text())
        return [os.fsdecode(bytes.fromhex(word)) for word in words]

    @property
    def installed(self) -> str:
        """Arguments of all calls of pip, one call per line."""
        asked = self.records / "pip"
        return asked.read_text() if asked.exists() else ""

    @property
    def value_was_executed(self) -> bool:
        """Whether a value was executed."""
        return bool(list(self.folder.rglob("CANARY*")))


def make_checkout(folder: Path, records: Path) -> Checkout:
    binaries = folder / ".venv" / "bin"
    binaries.mkdir(parents=True)
    records.mkdir()
    shutil.copytree(REPOSITORY / "configs", folder / "configs")
    for file in (REPOSITORY / "Makefile", REPOSITORY / "pyproject.toml"):
        shutil.copy(file, folder)
    for file in REPOSITORY.glob("constraints*.txt"):
        shutil.copy(file, folder)
    (folder / "pipelines").mkdir()
    shutil.copy(REPOSITORY / "pipelines" / "stages.py", folder / "pipelines")
    for name, text in (("branchwise", BRANCHWISE), ("python", PYTHON)):
        record = records / ("pip" if name == "python" else "argv.json")
        (binaries / name).write_text(text.format(python=sys.executable, record=record))
        (binaries / name).chmod(stat.S_IRWXU)
    for stamp in STAMPS:
        (folder / ".venv" / f"{stamp}.done").touch()
    return Checkout(folder, records)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return make_checkout(tmp_path / "checkout", tmp_path / "records")


RUNNING = tuple(value for value in HOSTILE if "CANARY" in value)
"""Values that create a file named CANARY if they are executed."""


@pytest.mark.parametrize("way", ["arguments", "environment", "environment first"])
def test_variable_values_are_passed_on_and_never_executed(way: str, checkout: Checkout) -> None:
    values = (*HOSTILE, "  blanks around  ") if way != "arguments" else HOSTILE
    for config, run, sql, study in zip(*[iter((*values, *values[:3]))] * 4, strict=False):
        named = {"CONFIG": config, "RUN": run, "SQL": sql, "STUDY": study}
        words = [f"{name}={value}" for name, value in named.items()] if way == "arguments" else []
        if way == "environment first":
            words = ["--environment-overrides"]
        environment = named if way != "arguments" else {}
        done = checkout.make("study", *words, **environment)
        assert done.returncode == 0, done.stderr
        assert not checkout.value_was_executed, named
        told = ["study", f"--name={study}", f"--config={config}", f"--run={run}", sql]
        assert checkout.given == told


@pytest.mark.parametrize("value", RUNNING[::3])
def test_run_and_recipe_names_are_never_executed(value: str, checkout: Checkout) -> None:
    (checkout.folder / value).mkdir()
    (checkout.folder / value / "config.yaml").write_text(f"name: x\n{DENSE}")
    done = checkout.make("annotate", f"RUN={value}")
    assert done.returncode == 0, done.stderr
    assert "faiss" in (checkout.folder / ".venv/dense.txt").read_text()
    assert "dense.txt" in checkout.installed, "extras are those of the run's recipe"
    assert checkout.given == ["annotate", f"--run={value}", ""]
    recipe = f"{value}/config.yaml"
    assert checkout.make("annotate", f"CONFIG={recipe}").returncode == 0
    assert checkout.given == ["annotate", f"--config={recipe}", ""]
    assert not checkout.value_was_executed


@pytest.mark.parametrize("value", [RUNNING[0], RUNNING[3], RUNNING[7]])
def test_a_checkout_works_in_a_folder_of_any_name(value: str, tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / value, tmp_path / "records")
    done = checkout.make("annotate", "CONFIG=configs/atlas.yaml")
    assert done.returncode == 0, done.stderr
    assert not checkout.value_was_executed
    assert checkout.given == ["annotate", "--config=configs/atlas.yaml", ""]
    shown = checkout.make("help").stdout.splitlines()
    assert [line.split()[0] for line in shown[: len(STAGES)]] == list(STAGES)
    assert checkout.make("test-vllm", "--dry-run").returncode == 0
    assert not checkout.value_was_executed


@pytest.mark.parametrize("value", [RUNNING[0], RUNNING[3]])
@pytest.mark.parametrize("name", ["EXTRAS", "TORCH_INDEX", "BRANCHWISE_VLLM_PYTHON"])
def test_values_of_other_variables_are_never_executed(
    name: str, value: str, checkout: Checkout
) -> None:
    for stamp in (checkout.folder / ".venv").glob("*.done"):
        stamp.unlink()
    target = "test-vllm" if name == "BRANCHWISE_VLLM_PYTHON" else "setup"
    for words, environment in (((f"{name}={value}",), {}), ((), {name: value})):
        done = checkout.make(target, *words, **environment)
        assert not checkout.value_was_executed
        assert (done.returncode == 0) == (name != "EXTRAS"), done.stderr
        assert name != "EXTRAS" or "EXTRAS: choose from" in done.stderr


def test_args_are_expanded_by_the_shell_and_may_have_line_breaks(checkout: Checkout) -> None:
    done = checkout.make("annotate", "ARGS=--limit $(echo 5)\n--set name='a $HOME' # last")
    assert done.returncode == 0, done.stderr
    assert checkout.given == ["annotate", "--limit", "5", "--set", "name=a $HOME", ""]


def test_args_change_which_extras_are_installed(checkout: Checkout) -> None:
    assert checkout.make("annotate", "ARGS=--limit 2 > kept.txt").returncode == 0
    assert checkout.installed == ""
    assert checkout.make("annotate", "ARGS=--set retrieval.kind=dense").returncode == 0
    assert "dense.txt" in checkout.installed


def test_a_named_recipe_has_priority_over_the_recipe_of_the_run(checkout: Checkout) -> None:
    run = checkout.folder / "run"
    run.mkdir()
    (run / "config.yaml").write_text(f"name: x\n{DENSE}")
    assert checkout.make("annotate", "RUN=run", "CONFIG=configs/atlas.yaml").returncode == 0
    assert checkout.given == ["annotate", "--config=configs/atlas.yaml", "--run=run", ""]
    assert checkout.installed == "", "a named recipe has priority"
    done = checkout.make("annotate", "RUN=run")
    assert "setting up: dense" in done.stdout
    assert checkout.given == ["annotate", "--run=run", ""]


def test_make_dry_run_installs_and_runs_nothing(checkout: Checkout) -> None:
    planned = checkout.make("annotate", "--dry-run", "CONFIG=configs/evo-rag.yaml")
    assert '"$CONFIG"' in planned.stdout
    assert checkout.installed == ""
    assert not (checkout.records / "argv.json").exists()


def test_a_room_is_tested_with_the_tests_that_import_it(checkout: Checkout) -> None:
    for stamp in ("dense", "dev"):
        (checkout.folder / ".venv" / f"{stamp}.done").touch()
    for name, text in {
        "mcts/test_tree.py": "",
        "annotation/test_grower.py": "import branchwise.mcts\n",
        "runs/test_stage.py": "def late():\n    from branchwise.mcts.tree import Tree\n",
        "agent/test_tags.py": "from branchwise.agent import mcts_tags\n",
    }.items():
        (file := checkout.folder / "tests" / name).parent.mkdir(parents=True)
        file.write_text(text)
    assert checkout.make("test-room", "ROOM=mcts").returncode == 0
    words = checkout.installed.split()
    assert words[words.index("tests/mcts") :] == [
        "tests/mcts", "tests/annotation/test_grower.py", "tests/runs/test_stage.py",
    ]  # fmt: skip
    for room in ("", "nowhere", "$(touch CANARY)"):
        refused = checkout.make("test-room", f"ROOM={room}")
        assert refused.returncode != 0
        assert "ROOM: name a folder" in refused.stderr
    assert not checkout.value_was_executed


def write_package(folder: Path, name: str, *needs: str, version: str = "1.0") -> str:
    """Writes a wheel and returns its hash."""
    file = folder / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    needed = "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(
            f"{about}/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}",
        )
        wheel.writestr(f"{about}/RECORD", f"{name}.py,,\n")
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def shelf(checkout: Checkout, tmp_path: Path) -> dict[str, str]:
    """Hashes of two packages: the extra `study` requires the first, which requires the second."""
    (tmp_path / "shelf").mkdir()
    (checkout.folder / ".venv" / "study.done").unlink()
    (checkout.folder / "pyproject.toml").write_text(
        "[project]\ndependencies = []\n[project.optional-dependencies]\nstudy = ['bw-first>=1']\n"
    )
    return {
        "bw-first": write_package(tmp_path / "shelf", "bw_first", "bw-second"),
        "bw-second": write_package(tmp_path / "shelf", "bw_second"),
    }


def set_up(
    checkout: Checkout, pins: dict[str, str], extra: str = "study"
) -> subprocess.CompletedProcess[str]:
    """Runs make to install an extra with pinned hashes, into a folder next to the checkout."""
    outer = checkout.folder.parent
    (checkout.folder / "constraints.txt").write_text(
        "".join(
            f"{name}=={'1.0' if name != 'torch' else '2.13.0'} \\\n    --hash=sha256:{pin}\n"
            for name, pin in pins.items()
        )
    )
    # In this order: a stamp that is older than one of its prerequisites would be rebuilt.
    for stamp in STAMPS:
        if stamp != extra:
            (checkout.folder / ".venv" / f"{stamp}.done").touch()
    return checkout.make(
        f".venv/{extra}.done",
        REAL_PIP="yes",
        PIP_CONFIG_FILE=os.devnull,
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(outer / "shelf"),
        PIP_TARGET=str(outer / "installed"),
    )


def installed(checkout: Checkout) -> set[str]:
    return {file.stem for file in (checkout.folder.parent / "installed").glob("*.py")}


def test_packages_with_the_pinned_hash_are_installed(
    checkout: Checkout, shelf: dict[str, str]
) -> None:
    done = set_up(checkout, shelf)
    assert done.returncode == 0, done.stderr
    assert installed(checkout) == {"bw_first", "bw_second"}


@pytest.mark.parametrize(
    ("name", "pin", "says"),
    [
        ("bw-first", "0" * 64, "DO NOT MATCH THE HASHES"),
        ("bw-second", "0" * 64, "DO NOT MATCH THE HASHES"),
        ("bw-second", None, ""),
    ],
)
def test_a_package_without_its_hash_is_not_installed(
    name: str, pin: str | None, says: str, checkout: Checkout, shelf: dict[str, str]
) -> None:
    pins: dict[str, str | None] = {**shelf, name: pin}
    done = set_up(checkout, {package: hashed for package, hashed in pins.items() if hashed})
    assert done.returncode != 0
    assert says in done.stderr
    assert installed(checkout) == set()
    assert not (checkout.folder / ".venv" / "study.done").exists()


@pytest.mark.parametrize("listed", [True, False])
def test_torch_is_checked_by_the_hash_of_the_build_for_this_machine(
    listed: bool, checkout: Checkout, shelf: dict[str, str], tmp_path: Path
) -> None:
    write_package(tmp_path / "shelf", "torch", version="2.13.0")
    for_cpus = write_package(tmp_path / "shelf", "torch", "bw-second", version="2.13.0+cpu")
    (checkout.folder / ".venv" / "torch.done").unlink()
    done = set_up(checkout, {**shelf, "torch": for_cpus if listed else "0" * 64}, "torch")
    assert (done.returncode == 0) == listed, done.stderr
    assert listed or "TORCH_INDEX=<address>" in done.stderr
    assert installed(checkout) == ({"torch", "bw_second"} if listed else set())


def test_only_torch_is_unchecked_if_torch_index_is_set(checkout: Checkout) -> None:
    (checkout.folder / ".venv" / "torch.done").unlink()
    done = checkout.make(".venv/torch.done", "TORCH_INDEX=file:///some where/$(else)")
    assert done.returncode == 0, done.stderr
    checked, unchecked = checkout.installed.splitlines()
    assert "--require-hashes" in checked
    assert " torch" not in checked
    assert unchecked.endswith("--index-url file:///some where/$(else) torch==2.13.0")
