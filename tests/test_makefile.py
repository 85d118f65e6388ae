"""`make` evaluates nothing that a user gives: real processes, in a checkout where all is set up.

The virtual environment is pretended: its `branchwise` writes down what it was given, and its
`python` writes down what pip was asked for and is otherwise the real one.
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

from pipelines.stages import STAGES

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
    """A folder in which `make` runs, and what the pretended programs wrote down."""

    folder: Path
    records: Path

    def make(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `make`, without what a `make` around the tests hands down."""
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
        """What `branchwise` was given; the last one is the variable SQL."""
        words = json.loads((self.records / "argv.json").read_text())
        return [os.fsdecode(bytes.fromhex(word)) for word in words]

    @property
    def installed(self) -> str:
        """What pip was asked for."""
        asked = self.records / "pip"
        return asked.read_text() if asked.exists() else ""

    @property
    def fooled(self) -> bool:
        """Whether a value was run."""
        return bool(list(self.folder.rglob("CANARY*")))


def a_checkout(folder: Path, records: Path) -> Checkout:
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
    return a_checkout(tmp_path / "checkout", tmp_path / "records")


RUNNING = tuple(value for value in HOSTILE if "CANARY" in value)
"""Those by which something would be seen to run."""


@pytest.mark.parametrize("way", ["arguments", "environment", "environment first"])
def test_values_are_handed_on_and_never_run(way: str, checkout: Checkout) -> None:
    values = (*HOSTILE, "  blanks around  ") if way != "arguments" else HOSTILE
    for config, run, sql, study in zip(*[iter((*values, *values[:3]))] * 4, strict=False):
        named = {"CONFIG": config, "RUN": run, "SQL": sql, "STUDY": study}
        words = [f"{name}={value}" for name, value in named.items()] if way == "arguments" else []
        if way == "environment first":
            words = ["--environment-overrides"]
        environment = named if way != "arguments" else {}
        done = checkout.make("study", *words, **environment)
        assert done.returncode == 0, done.stderr
        assert not checkout.fooled, named
        told = ["study", f"--name={study}", f"--config={config}", f"--run={run}", sql]
        assert checkout.given == told


@pytest.mark.parametrize("value", RUNNING[::3])
def test_a_name_of_a_run_or_a_recipe_is_not_run(value: str, checkout: Checkout) -> None:
    (checkout.folder / value).mkdir()
    (checkout.folder / value / "config.yaml").write_text(f"name: x\n{DENSE}")
    done = checkout.make("annotate", f"RUN={value}")
    assert done.returncode == 0, done.stderr
    assert "faiss" in (checkout.folder / ".venv/dense.txt").read_text()
    assert "dense.txt" in checkout.installed, "the run's recipe decides what it needs"
    assert checkout.given == ["annotate", f"--run={value}", ""]
    recipe = f"{value}/config.yaml"
    assert checkout.make("annotate", f"CONFIG={recipe}").returncode == 0
    assert checkout.given == ["annotate", f"--config={recipe}", ""]
    assert not checkout.fooled


@pytest.mark.parametrize("value", [RUNNING[0], RUNNING[3], RUNNING[7]])
def test_a_checkout_may_lie_anywhere(value: str, tmp_path: Path) -> None:
    checkout = a_checkout(tmp_path / value, tmp_path / "records")
    done = checkout.make("annotate", "CONFIG=configs/atlas.yaml")
    assert done.returncode == 0, done.stderr
    assert not checkout.fooled
    assert checkout.given == ["annotate", "--config=configs/atlas.yaml", ""]
    shown = checkout.make("help").stdout.splitlines()
    assert [line.split()[0] for line in shown[: len(STAGES)]] == list(STAGES)
    assert checkout.make("test-vllm", "--dry-run").returncode == 0
    assert not checkout.fooled


@pytest.mark.parametrize("value", RUNNING[:12:3])
@pytest.mark.parametrize("name", ["EXTRAS", "TORCH_INDEX", "BRANCHWISE_VLLM_PYTHON"])
def test_other_variables_are_not_run_either(name: str, value: str, checkout: Checkout) -> None:
    for stamp in (checkout.folder / ".venv").glob("*.done"):
        stamp.unlink()
    target = "test-vllm" if name == "BRANCHWISE_VLLM_PYTHON" else "setup"
    for words, environment in (((f"{name}={value}",), {}), ((), {name: value})):
        done = checkout.make(target, *words, **environment)
        assert not checkout.fooled
        assert (done.returncode == 0) == (name != "EXTRAS"), done.stderr
        assert name != "EXTRAS" or "EXTRAS: choose from" in done.stderr


def test_arguments_are_the_shell_s(checkout: Checkout) -> None:
    done = checkout.make("annotate", "ARGS=--limit $(echo 5) --set name='a $HOME' # last")
    assert done.returncode == 0, done.stderr
    home = os.environ.get("HOME", "")
    assert checkout.given == ["annotate", "--limit", "5", "--set", "name=a $HOME", ""], home


def test_arguments_change_what_a_recipe_needs(checkout: Checkout) -> None:
    assert checkout.make("annotate", "ARGS=--limit 2 > kept.txt").returncode == 0
    assert checkout.installed == ""
    assert checkout.make("annotate", "ARGS=--set retrieval.kind=dense").returncode == 0
    assert "dense.txt" in checkout.installed


def test_make_leaves_the_recipe_to_the_run(checkout: Checkout) -> None:
    run = checkout.folder / "run"
    run.mkdir()
    (run / "config.yaml").write_text(f"name: x\n{DENSE}")
    assert checkout.make("annotate", "RUN=run", "CONFIG=configs/atlas.yaml").returncode == 0
    assert checkout.given == ["annotate", "--config=configs/atlas.yaml", "--run=run", ""]
    assert checkout.installed == "", "a recipe that is named goes first"
    done = checkout.make("annotate", "RUN=run")
    assert "setting up: dense" in done.stdout
    assert checkout.given == ["annotate", "--run=run", ""]


def test_a_plan_runs_nothing(checkout: Checkout) -> None:
    planned = checkout.make("annotate", "--dry-run", "CONFIG=configs/evo-rag.yaml")
    assert '"$CONFIG"' in planned.stdout
    assert checkout.installed == ""
    assert not (checkout.records / "argv.json").exists()


def a_package(folder: Path, name: str, *needs: str, version: str = "1.0") -> str:
    """Writes a wheel; returns its hash."""
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
    """Two packages, of which the extra `study` needs one that needs the other; and their hashes."""
    (tmp_path / "shelf").mkdir()
    (checkout.folder / ".venv" / "study.done").unlink()
    (checkout.folder / "pyproject.toml").write_text(
        "[project]\ndependencies = []\n[project.optional-dependencies]\nstudy = ['bw-first>=1']\n"
    )
    return {
        "bw-first": a_package(tmp_path / "shelf", "bw_first", "bw-second"),
        "bw-second": a_package(tmp_path / "shelf", "bw_second"),
    }


def set_up(
    checkout: Checkout, pins: dict[str, str], extra: str = "study"
) -> subprocess.CompletedProcess[str]:
    """Lets make install an extra by a list of pins, into a folder beside the checkout."""
    beside = checkout.folder.parent
    (checkout.folder / "constraints.txt").write_text(
        "".join(
            f"{name}=={'1.0' if name != 'torch' else '2.13.0'} \\\n    --hash=sha256:{pin}\n"
            for name, pin in pins.items()
        )
    )
    # In their order: one that is older than what it needs would be set up again.
    for stamp in STAMPS:
        if stamp != extra:
            (checkout.folder / ".venv" / f"{stamp}.done").touch()
    return checkout.make(
        f".venv/{extra}.done",
        REAL_PIP="yes",
        PIP_CONFIG_FILE=os.devnull,
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(beside / "shelf"),
        PIP_TARGET=str(beside / "installed"),
    )


def installed(checkout: Checkout) -> set[str]:
    return {file.stem for file in (checkout.folder.parent / "installed").glob("*.py")}


def test_files_of_the_listed_hash_are_installed(checkout: Checkout, shelf: dict[str, str]) -> None:
    done = set_up(checkout, shelf)
    assert done.returncode == 0, done.stderr
    assert installed(checkout) == {"bw_first", "bw_second"}


@pytest.mark.parametrize("name", ["bw-first", "bw-second"])
def test_a_file_of_another_hash_is_not_installed(
    name: str, checkout: Checkout, shelf: dict[str, str]
) -> None:
    done = set_up(checkout, {**shelf, name: "0" * 64})
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert installed(checkout) == set()
    assert not (checkout.folder / ".venv" / "study.done").exists()


def test_a_package_without_a_hash_is_not_installed(
    checkout: Checkout, shelf: dict[str, str]
) -> None:
    done = set_up(checkout, {"bw-first": shelf["bw-first"]})
    assert done.returncode != 0
    assert installed(checkout) == set()


@pytest.mark.parametrize("listed", [True, False])
def test_of_torch_the_build_that_the_machine_offers_is_checked(
    listed: bool, checkout: Checkout, shelf: dict[str, str], tmp_path: Path
) -> None:
    a_package(tmp_path / "shelf", "torch", version="2.13.0")
    for_cpus = a_package(tmp_path / "shelf", "torch", "bw-second", version="2.13.0+cpu")
    (checkout.folder / ".venv" / "torch.done").unlink()
    done = set_up(checkout, {**shelf, "torch": for_cpus if listed else "0" * 64}, "torch")
    assert (done.returncode == 0) == listed, done.stderr
    assert listed or "TORCH_INDEX=<address>" in done.stderr
    assert installed(checkout) == ({"torch", "bw_second"} if listed else set())


def test_what_a_torch_index_names_is_the_only_thing_unchecked(checkout: Checkout) -> None:
    (checkout.folder / ".venv" / "torch.done").unlink()
    done = checkout.make(".venv/torch.done", "TORCH_INDEX=file:///some where/$(else)")
    assert done.returncode == 0, done.stderr
    checked, unchecked = checkout.installed.splitlines()
    assert "--require-hashes" in checked
    assert " torch" not in checked
    assert unchecked.endswith("--index-url file:///some where/$(else) torch==2.13.0")
