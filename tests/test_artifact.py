"""The sdist and the wheel of `make dist`: their files, and the stages of an installed wheel."""

import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from fake_endpoint import Script
from loopback import serving
from packaging.metadata import Metadata
from tiny_dataset import recipe

from branchwise.pipelines.stages import STAGES
from branchwise.storage.parts import read_parts

REPOSITORY = Path(__file__).resolve().parents[1]
ABOUT = "branchwise-0.1.0"
HOSTILE = "raise SystemExit('a module of the current folder was imported')\n"


@dataclass(frozen=True)
class Built:
    """The built files, and the content of every file in them that is not a folder."""

    wheel: Path
    in_wheel: Mapping[str, bytes]
    in_sdist: Mapping[str, bytes]


def output_of(
    *words: object, folder: Path, environment: Mapping[str, str] = os.environ, code: int = 0
) -> str:
    """Runs a command, checks its exit code, and returns its output."""
    command = [str(word) for word in words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def tracked() -> list[str]:
    return output_of("git", "ls-files", "-z", folder=REPOSITORY).rstrip("\0").split("\0")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Runs `make dist` on a commit of the tracked files, in their present state."""
    checkout = tmp_path_factory.mktemp("dist") / "checkout"
    for name in tracked():
        (copy := checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, copy, follow_symlinks=False)
    # Without the variables of a `make` or a git hook that runs the tests.
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "GIT_"))}
    author = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    output_of("git", "init", "--quiet", folder=checkout, environment=kept)
    output_of("git", "add", "--force", ".", folder=checkout, environment=kept)
    output_of(
        "git", *author, "commit", "--quiet", "--message=Test", folder=checkout, environment=kept
    )
    (checkout / "configs" / "mine.yaml").write_text("name: mine\n")  # not committed
    ready = f"--old-file={sys.prefix}/dev.done"
    output_of("make", "dist", f"VENV={sys.prefix}", ready, folder=checkout, environment=kept)
    wheel = checkout / "dist" / f"{ABOUT}-py3-none-any.whl"
    sdist = checkout / "dist" / f"{ABOUT}.tar.gz"
    assert sorted((checkout / "dist").iterdir()) == [wheel, sdist]
    with zipfile.ZipFile(wheel) as packed:
        in_wheel = {name: packed.read(name) for name in packed.namelist()}
        assert not [e.filename for e in packed.infolist() if e.external_attr >> 28 == 0xA], "links"
    in_sdist = {}
    with tarfile.open(sdist) as unpacked:
        for entry in unpacked:
            assert entry.isdir() or entry.isreg(), f"{entry.name} is a link"
            if file := unpacked.extractfile(entry):
                in_sdist[entry.name] = file.read()
    return Built(wheel, in_wheel, in_sdist)


def package_files() -> dict[str, bytes]:
    """Returns the tracked files of the package, as its links show them, without the studies."""
    links = {
        os.path.normpath(f"branchwise/{link.readlink()}/"): f"branchwise/{link.name}"
        for link in (REPOSITORY / "branchwise").iterdir()
        if link.is_symlink() and link.name != "studies"
    }
    files = {}
    for name in tracked():
        for folder, seen in (*links.items(), ("branchwise", "branchwise")):
            if name.startswith(f"{folder}/") and not (REPOSITORY / name).is_symlink():
                files[seen + name.removeprefix(folder)] = (REPOSITORY / name).read_bytes()
    return files


def test_the_wheel_has_all_files_of_the_package_and_no_others(built: Built) -> None:
    expected = package_files()
    for part in (
        "py.typed", "types.py", "runs/__init__.pyi", "annotation/__init__.pyi", "mcts/__init__.py",
        "pipelines/all/stage.py", "recipes/atlas.yaml", "sql/overview.sql", "cards/run.md",
        "evaluation/prompts/judge-yes-no.txt", "report/page/report.html", "report/page/report.css",
    ):  # fmt: skip
        assert f"branchwise/{part}" in expected
    packed = {n: text for n, text in built.in_wheel.items() if not n.startswith(ABOUT)}
    assert packed.keys() == expected.keys()
    assert packed == expected


def test_the_sdist_has_the_same_files_and_what_builds_them(built: Built) -> None:
    names = {name.removeprefix(f"{ABOUT}/"): text for name, text in built.in_sdist.items()}
    packed = {n: text for n, text in names.items() if n.startswith("branchwise/")}
    assert packed == package_files()
    rest = {n for n in names if not n.startswith(("branchwise/", "branchwise.egg-info/"))}
    texts = {"LICENSE", "THIRD_PARTY.md", "README.md", "pyproject.toml", "MANIFEST.in"}
    assert rest == texts | {"PKG-INFO", "setup.cfg"}
    assert all(names[name] == (REPOSITORY / name).read_bytes() for name in texts)


def test_the_metadata_is_what_an_index_accepts(built: Built) -> None:
    about = f"{ABOUT}.dist-info"
    metadata = Metadata.from_email(built.in_wheel[f"{about}/METADATA"], validate=True)
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.description_content_type == "text/markdown"
    assert metadata.description == (REPOSITORY / "README.md").read_text()
    for name in metadata.license_files or ["none"]:
        assert built.in_wheel[f"{about}/licenses/{name}"] == (REPOSITORY / name).read_bytes()
    assert metadata.license_files == ["LICENSE", "THIRD_PARTY.md"]


def with_folders(names: Iterable[str]) -> set[str]:
    return {str(path) for name in names for path in (Path(name), *Path(name).parents)}


def test_files_that_the_image_copies_are_tracked_and_not_ignored() -> None:
    """hadolint (`make lint`) checks the rest of the Dockerfile."""
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert "*" in lines, "only listed files are sent"
    sent: set[str] = set()
    for pattern in (line[1:] for line in lines if line.startswith("!")):
        files = {n for n in tracked() if fnmatch.filter(with_folders([n]), pattern)}
        assert files, f"{pattern} is not tracked"
        sent |= files
    for line in (REPOSITORY / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from=" not in line:
            *sources, _ = (word for word in line.split()[1:] if not word.startswith("--"))
            for source in sources:
                assert fnmatch.filter(with_folders(sent), source), f"{source} is not sent"


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel and its base dependencies, and a hostile current folder."""

    environment: Path
    folder: Path

    def run(self, *words: object, module: bool = False, code: int = 0) -> str:
        """Runs `branchwise`, or `python -m branchwise`, and returns its output."""
        binaries = self.environment / "bin"
        command = [binaries / "python", "-m", "branchwise"] if module else [binaries / "branchwise"]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "BRANCHWISE"))}
        kept["BRANCHWISE_CACHE"] = str(self.environment / "cache")
        kept["OPENAI_API_KEY"] = "test-key"
        return output_of(*command, *words, folder=self.folder, environment=kept, code=code)


@pytest.fixture
def installed(built: Built, tmp_path: Path) -> Installed:
    environment, folder = tmp_path / "environment", tmp_path / "work"
    python = (sys.executable, "-m")
    output_of(*python, "venv", "--without-pip", environment, folder=tmp_path)
    digest = hashlib.sha256(built.wheel.read_bytes()).hexdigest()
    pins = tmp_path / "pins.txt"
    pins.write_text(f"{built.wheel.as_uri()} --hash=sha256:{digest}\n")
    pip = (*python, "pip", "--python", environment / "bin" / "python", "install", "--quiet")
    pinned = ("--require-hashes", "--constraint", REPOSITORY / "constraints.txt")
    output_of(*pip, *pinned, "--requirement", pins, folder=tmp_path)
    for room in ("training", "mcts"):
        (folder / room).mkdir(parents=True)
        (folder / room / "__init__.py").write_text(HOSTILE)
    (folder / "agent.py").write_text(HOSTILE)
    return Installed(environment, folder)


def alternating_policy() -> Script:
    """Returns a policy that searches once and then answers right and wrong in turn."""
    answers = cycle(("Paris", "Tokyo"))

    def reply(request: dict[str, Any]) -> str:
        user = request["messages"][-1]["content"]
        if "<passage>" in user:
            return "<evidence>France has the capital Paris</evidence>"
        if "Evidence:" in user:
            return f"<answer>{next(answers)}</answer>"
        return "<query>capital of France</query>"

    return reply


@pytest.mark.long
def test_stages_of_an_installed_wheel(installed: Installed, tmp_path: Path) -> None:
    assert "grow trees, label their steps" in installed.run("--help")
    for stage in STAGES:
        assert f"branchwise {stage} " in installed.run(stage, "--help")
    assert "has no studies" in installed.run("study", "--name", "labels", code=2)
    atlas = json.loads(installed.run("data", "--json").splitlines()[-1])
    assert atlas["passages"] > 30_000, "the default recipe is part of the wheel"

    run = installed.folder / "datasets" / "little"
    of_run = ("--run", run)
    with serving(alternating_policy()) as endpoint:
        config = recipe(tmp_path, endpoint.base_url)
        annotated = installed.run("annotate", "--config", config, "--limit", 1)
    assert "next: branchwise report --run datasets/little" in annotated
    assert len(read_parts(run, "trees")) >= 4
    assert len(read_parts(run, "pairs")) == 1
    assert "little" in (run / "README.md").read_text(), "the dataset card"

    assert "Overview (the statistics of" in installed.run("inspect", *of_run)
    installed.run("report", *of_run)
    assert "</html>" in (run / "report.html").read_text()
    assert "parts are as they were committed" in installed.run("verify", *of_run, module=True)
