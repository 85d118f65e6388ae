"""Packages of the repository: no dependency shadows one, and every dependency is pinned."""

import importlib
import os
import subprocess
import sys
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
ROOMS = sorted({path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()})


def git_files(checkout: Path, *patterns: str) -> list[str]:
    """Returns the tracked files that match."""
    command = ["git", "-C", str(checkout), "ls-files", *patterns]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def product_files() -> dict[str, Path]:
    """Returns the modules that users run, and studies, by import name."""
    modules = {}
    for name in git_files(REPOSITORY, "*.py"):
        top = name.split("/")[0]
        if top == "branchwise" or top in LINKS:
            path = name if top == "branchwise" else f"branchwise/{name}"
            dotted = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            modules[dotted] = REPOSITORY / name
    return modules


def test_the_package_is_imported_from_this_repository() -> None:
    file = importlib.import_module("branchwise").__file__
    assert file is not None
    assert Path(file).parent == PACKAGE
    assert {p.name: str(p.readlink()) for p in PACKAGE.iterdir() if p.is_symlink()} == LINKS


IMPORT_EVERYTHING = """
import importlib, os, sys
names = sys.stdin.read().split()
for name in names:
    importlib.import_module(name)
files = [os.path.realpath(m.__file__) for m in sys.modules.values() if getattr(m, "__file__", 0)]
ours = [f for f in files if f.startswith(os.getcwd() + os.sep) and "site-packages" not in f]
assert len(ours) >= len(names), "modules are loaded from elsewhere"
assert len(ours) == len(set(ours)), "a file is loaded under two names"
bare = {room for room in sys.argv[1].split() if room in sys.modules}
assert not bare, bare
"""


def test_no_module_is_loaded_under_a_bare_name() -> None:
    modules = [name for name in product_files() if not name.endswith("__main__")]
    # The root is on the path, as under pytest, so a bare import would succeed.
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ended = subprocess.run(
        [sys.executable, "-c", IMPORT_EVERYTHING, " ".join(ROOMS)],
        cwd=REPOSITORY, env=environment, input="\n".join(modules), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


FAULTY = {
    "import mcts\n": "import branchwise.mcts, not mcts",
    "from rewards.spre import Spre\n": "import branchwise.rewards, not rewards",
    "from branchwise.rewards.spre import Spre\n": "another room through branchwise.rewards",
    "from branchwise.agent import State\n": "relative import",
    "from ..rewards import Spre\n": "leaves its room",
}


def run_check(check: str, checkout: Path, files: dict[str, str]) -> tuple[int, list[str]]:
    """Runs a script of `.ci/` on a new checkout with these files; returns its status and lines."""
    for name, text in files.items():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", str(checkout)], check=True)
    subprocess.run(["git", "-C", str(checkout), "add", "."], check=True)
    (checkout / ".ci").mkdir()
    script = checkout / ".ci" / check
    script.write_text((REPOSITORY / ".ci" / check).read_text())
    process = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    return process.returncode, process.stdout.splitlines()


@pytest.mark.parametrize("line", FAULTY)
def test_the_import_check_finds(line: str, tmp_path: Path) -> None:
    files = {f"branchwise/{room}/__init__.py": "" for room in ("agent", "rewards", "mcts")}
    files["branchwise/agent/faulty.py"] = "\n" + line
    status, lines = run_check("check_imports.py", tmp_path, files)
    assert status == 1
    assert lines[0].startswith("branchwise/agent/faulty.py:2: ")
    assert FAULTY[line] in lines[0]


VAGUE = {
    "found = 1\n": "found",
    "for one in (): ...\n": "one",
    "def count(asked): ...\n": "asked",
    "class Policy:\n    own: int\n": "own",
    "with open(0) as stuff: ...\n": "stuff",
    "try: ...\nexcept OSError as what: ...\n": "what",
    "[done_ for done_ in ()]\n": "done_",
    "match 1:\n    case tmp: ...\n": "tmp",
    "self.told = 1\n": "told",
}


@pytest.mark.parametrize("code", VAGUE)
def test_the_name_check_finds(code: str, tmp_path: Path) -> None:
    files = {"mcts/faulty.py": code, "branchwise/runs/clear.py": "hits = 1\n"}
    status, lines = run_check("check_names.py", tmp_path, files)
    assert status == 1
    assert lines[0] == "mcts: 1 of 1 names are vague"
    assert lines[1].startswith("mcts/faulty.py:")
    assert lines[1].endswith(f": {VAGUE[code]}")
    assert len(lines) == 2


@pytest.mark.parametrize(("names", "status"), [(99, 1), (100, 0)])
def test_a_room_may_have_one_vague_name_in_a_hundred(
    names: int, status: int, tmp_path: Path
) -> None:
    clear = "".join(f"hit_{number} = 1\n" for number in range(names - 1))
    files = {"branchwise/runs/rows.py": clear, "branchwise/runs/row.py": "one = 1\n"}
    # Neither tests nor the names of other rooms count.
    files |= {"tests/test_rows.py": "one = 1\n", "mcts/clear.py": "hits = 1\n"}
    assert run_check("check_names.py", tmp_path, files)[0] == status


def test_the_folders_of_a_clone_are_real_and_tracked(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    source = f"file://{REPOSITORY}"
    subprocess.run(["git", "clone", "--quiet", "--depth=1", source, str(clone)], check=True)
    for folder in ("pipelines", "mcts", "annotation", "training", "datasets", "tests"):
        assert (clone / folder).is_dir()
        assert not (clone / folder).is_symlink()
        assert git_files(clone, folder)
    for link, target in LINKS.items():
        assert (clone / "branchwise" / link).resolve() == (clone / "branchwise" / target).resolve()
        assert (clone / "branchwise" / link).is_dir()


def test_datasets_is_the_hugging_face_package() -> None:
    import datasets

    assert hasattr(datasets, "load_dataset")
    assert not list((REPOSITORY / "datasets").rglob("*.py"))


def test_every_folder_with_modules_has_an_init_file() -> None:
    files = product_files().values()
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
