"""Packages of the repository: no dependency shadows one, and every dependency is pinned."""

import importlib
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parents[1]
ROOMS = (
    "agent", "analysis", "annotation", "base", "engines", "evaluation", "experiments", "mcts",
    "pipelines", "report", "retrieval", "rewards", "runs", "sources", "storage", "training",
    "weights",
)  # fmt: skip


def test_every_top_level_package_is_imported_from_this_repository() -> None:
    for room in ROOMS:
        file = importlib.import_module(room).__file__
        assert file is not None
        assert Path(file).parent == REPOSITORY / room


def test_datasets_is_the_hugging_face_package() -> None:
    import datasets

    assert hasattr(datasets, "load_dataset")
    assert not list((REPOSITORY / "datasets").rglob("*.py"))


def test_every_package_is_listed_and_has_an_init_file() -> None:
    listed = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert listed["packages"]["find"]["include"] == [f"{room}*" for room in ROOMS]
    for room in ROOMS:
        folders = {file.parent for file in (REPOSITORY / room).rglob("*.py")}
        assert all((folder / "__init__.py").exists() for folder in folders)


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
