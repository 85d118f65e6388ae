"""Plug-ins: the tutorial as written, entry points, names that are taken, and versions."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import branchwise
from fake_endpoint import FakeEndpoint
from loopback import serving
from tiny_dataset import recipe

from branchwise.agent.protocol import PROTOCOLS
from branchwise.base.errors import ConfigError
from branchwise.runs import existing_run, plugins
from branchwise.storage import read_parts

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "plugins.md").read_text()
PYTHON, YAML, COMMANDS = (
    str(block) for block in re.findall(r"```(?:python|yaml|)\n(.*?)```", PAGE, re.DOTALL)[:3]
)


def quiz(request: dict[str, Any]) -> str:
    seed, user = int(request["seed"]), request["messages"][-1]["content"]
    if "Answer now." in user or ("<passage>" in user and seed % 3):
        return f"<answer>{('Paris', 'Tokyo', 'Yen')[seed % 3]}</answer>"
    return f"<search>{('capital Lyon', 'Osaka castle', 'Japan')[seed % 3]}</search>"


def at(address: str) -> str:
    """Returns the recipe of the page for the endpoint of a test."""
    text = YAML.replace("http://127.0.0.1:8000/v1", address)
    return text.replace("model: my-model", "model: policy")


@pytest.fixture
def folder(tmp_path: Path, own_cache: None) -> Path:
    recipe(tmp_path, "")
    (tmp_path / "recipe.yaml").unlink()
    (tmp_path / "mine.py").write_text(PYTHON)
    return tmp_path


def run_command(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program, *words = line.split()
    assert program == "branchwise"
    return subprocess.run(
        [sys.executable, "-P", "-m", "branchwise", *words],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_tutorial_runs_as_written(folder: Path) -> None:
    with serving(quiz) as endpoint:
        (folder / "mine.yaml").write_text(at(endpoint.base_url))
        for line in COMMANDS.strip().splitlines():
            ended = run_command(line, folder)
            assert ended.returncode == 0, ended.stdout + ended.stderr
        made = len(endpoint.requests)
        assert made
        run = folder / "datasets" / "mine"
        rewards = {row["reward"] for row in read_parts(run, "trees").to_pylist()}
        assert len(rewards - {None}) > 2, "rewards of several depths"
        assert read_parts(run, "pairs").num_rows
        assert read_parts(run, "relabelled/strict/labels").num_rows
        actions = {row["action"] for row in read_parts(run, "trees").to_pylist()}
        assert {"search", "answer"} <= actions
        # Without the plug-in, its names are unknown; with another content, the run is refused.
        command = COMMANDS.splitlines()[0]
        without = run_command(command.replace("--plugin mine.py ", ""), folder)
        assert without.returncode == 2
        assert "no such protocol" in without.stdout
        (folder / "mine.py").write_text(PYTHON + "\n# another version\n")
        changed = run_command(command, folder)
        assert changed.returncode == 2
        assert "protocol_plugin" in changed.stdout
        assert len(endpoint.requests) == made


def test_a_recipe_cannot_load_a_plugin(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = recipe(folder, "http://127.0.0.1:9/v1", plugin="mine.py")
    assert branchwise("annotate", config, folder / "run") == 2
    assert "`plugin` is not a setting" in capsys.readouterr().out
    config = recipe(folder, "http://127.0.0.1:9/v1", agent={"protocol": "mine:Quiz"})
    assert branchwise("annotate", config, folder / "run") == 2
    assert "no such protocol" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("import no_such_module_here", "No module named 'no_such_module_here'"),
        ("1 / 0", "ZeroDivisionError"),
        (PYTHON.replace('name = "quiz"', 'name = "arena"'), "the protocol `arena` exists already"),
    ],
)
def test_a_faulty_plugin_is_an_error_before_any_work(
    content: str, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "faulty.py"
    file.write_text(content)
    with pytest.raises(ConfigError, match=re.escape(says)):
        plugins.load_plugins([str(file)])
    with pytest.raises(ConfigError, match="cannot be imported"):
        plugins.load_plugins(["no.such.plugin"])


def test_an_entry_point_loads_a_plugin_and_its_version_is_part_of_the_run(
    folder: Path, endpoint: FakeEndpoint
) -> None:
    """A distribution on the path of a child process, as pip would install it."""
    site = folder / "site"
    info = site / "quizzes-2.5.dist-info"
    info.mkdir(parents=True)
    (site / "quizzes.py").write_text(PYTHON)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: quizzes\nVersion: 2.5\n")
    (info / "top_level.txt").write_text("quizzes\n")
    (info / "entry_points.txt").write_text("[branchwise]\nquizzes = quizzes\n")
    (info / "RECORD").write_text("quizzes.py,,\n")
    with serving(quiz) as served:
        (folder / "mine.yaml").write_text(at(served.base_url))
        code = (
            f"import sys; sys.path.append({str(site)!r}); from branchwise.cli.entry import main; "
        )
        words = ["branchwise", "annotate", "--config", "mine.yaml", "--run", "run"]
        ended = subprocess.run(
            [sys.executable, "-P", "-c", f"{code}sys.argv = {words!r}; main()"],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    record = (folder / "run" / "provenance.json").read_text()
    assert record.count("quizzes 2.5") == 3, "protocol, reward and retriever"
    assert "quiz" not in PROTOCOLS, "the plug-in was loaded in the child alone"
    with pytest.raises(ConfigError, match="no such protocol"):
        existing_run(folder / "run")
