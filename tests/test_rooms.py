"""Packages of the repository: no dependency shadows one, and every dependency is pinned."""

import importlib
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "branchwise"
LINKS = {
    **{room: f"../{room}" for room in ("annotation", "mcts", "pipelines", "studies", "training")},
    "recipes": "../configs",
    "sql": "../datasets/sql",
    "cards": "../datasets/cards",
}
"""Links of the import package."""


def test_the_package_is_imported_from_this_repository() -> None:
    file = importlib.import_module("branchwise").__file__
    assert file is not None
    assert Path(file).parent == PACKAGE
    assert {p.name: str(p.readlink()) for p in PACKAGE.iterdir() if p.is_symlink()} == LINKS


def test_datasets_is_the_hugging_face_package() -> None:
    import datasets

    assert hasattr(datasets, "load_dataset")
    assert not list((REPOSITORY / "datasets").rglob("*.py"))


def test_every_folder_with_modules_has_an_init_file() -> None:
    listed = subprocess.run(
        ["git", "-C", str(REPOSITORY), "ls-files", "*.py"],
        check=True,
        capture_output=True,
        text=True,
    )
    packages = ("branchwise", "annotation", "mcts", "pipelines", "studies", "training")
    files = [REPOSITORY / f for f in listed.stdout.split() if f.split("/")[0] in packages]
    assert len(files) > 300
    assert all((file.parent / "__init__.py").exists() for file in files)


def test_every_extra_is_pinned() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *(r for name in extras if name != "vllm" for r in extras[name]),
    ]
    pins = {one.name.lower() for one in pinned("constraints.txt")}
    missing = {Requirement(r).name for r in wanted if Requirement(r).name.lower() not in pins}
    assert not missing


PINS = sorted(file.name for file in REPOSITORY.glob("constraints*.txt"))


def pinned(file: str) -> list[Requirement]:
    """Returns the pinned requirements of a constraints file."""
    lines = (REPOSITORY / file).read_text().splitlines()
    return [Requirement(line.rstrip(" \\")) for line in lines if line[:1].isalnum()]


@pytest.mark.parametrize("file", PINS)
def test_every_pin_has_a_hash(file: str) -> None:
    text = (REPOSITORY / file).read_text().replace("\\\n", "")
    pins = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert pins
    assert not [line for line in pins if "==" not in line or "--hash=sha256:" not in line]


def test_constraint_files_that_are_installed_together_agree() -> None:
    first = {one.name: one.specifier for one in pinned("constraints-first.txt")}
    for file in ("constraints.txt", "constraints-cuda.txt"):
        assert [
            one for one in pinned(file) if first.get(one.name, one.specifier) != one.specifier
        ] == []
    rest = {one.name for one in pinned("constraints.txt")}
    assert not rest & {one.name for one in pinned("constraints-cuda.txt")}
