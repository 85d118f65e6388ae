"""The house: no dependency shadows a room, and `datasets` is Hugging Face's."""

import importlib
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
ROOMS = (
    "agent", "annotation", "engines", "evaluation", "mcts", "pipelines", "retrieval", "rewards",
    "sources", "storage", "training",
)  # fmt: skip


def test_every_room_is_ours() -> None:
    for room in ROOMS:
        file = importlib.import_module(room).__file__
        assert file is not None
        assert Path(file).parent == REPOSITORY / room


def test_datasets_is_hugging_face_s() -> None:
    import datasets

    assert hasattr(datasets, "load_dataset")
    assert not list((REPOSITORY / "datasets").rglob("*.py"))


def test_every_package_is_built() -> None:
    listed = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    there = {
        str(init.parent.relative_to(REPOSITORY)).replace("/", ".")
        for room in ROOMS
        for init in (REPOSITORY / room).rglob("__init__.py")
    }
    assert set(listed["packages"]) == there


def test_every_extra_is_pinned() -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *(r for name in extras if name != "vllm" for r in extras[name]),
    ]
    pins = {
        Requirement(line).name.lower().replace("_", "-")
        for line in (REPOSITORY / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    missing = {Requirement(r).name for r in wanted if Requirement(r).name.lower() not in pins}
    assert not missing
