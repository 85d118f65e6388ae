"""Hostile text in any field that is ever printed: it must not control the terminal.

Every stage that prints runs as a process of its own on a pseudo-terminal. It may print only text,
our own styles and the cursor moves of the live display; see `pseudo_terminal.reject_harmful`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fake_endpoint import FakeEndpoint, completion, failure
from loopback import serving
from pseudo_terminal import HOSTILE, PseudoTerminal, reject_harmful
from stages import REPOSITORY, Ended, Stages
from tiny_dataset import PASSAGES, QUESTIONS, policy, recipe

from branchwise.storage.manifest import add_parts
from branchwise.storage.parts import read_parts, write_part
from branchwise.storage.schemas import SCHEMAS, table_to_records
from branchwise.storage.views import VIEWS
from branchwise.types import Pair

pytestmark = pytest.mark.failure

NAME = HOSTILE.replace("/", "|")
"""The hostile text as the name of a file or folder."""
MODEL, JUDGE = f"policy{HOSTILE}", f"judge{HOSTILE}"


def hostile_policy(request: dict[str, Any]) -> Any:
    """Returns good answers with hostile text in all other fields, queries and critiques.

    Every tenth seed gets a reply of hostile text only. The last question gets a hostile error.
    """
    said = {"model": HOSTILE, "finish_reason": HOSTILE, "id": HOSTILE, "object": HOSTILE}
    if request["model"] == JUDGE:
        score = len(request["messages"][-1]["content"]) % 3 / 2
        return completion(json.dumps({"critique": HOSTILE, "score": score}), **said)
    if QUESTIONS[-1]["question"] in request["messages"][-1]["content"]:
        return failure(400, HOSTILE)
    if not request.get("seed", 0) % 10:
        return completion(HOSTILE, **said)
    reply = policy(request)
    return completion(reply.replace("</query", f" {HOSTILE}</query"), **said)


@dataclass
class World:
    """A hostile recipe, its endpoint, and the path of its run."""

    endpoint: FakeEndpoint
    recipe: Path
    run: Path
    stages: Stages

    def on_terminal(self, *arguments: object, **more: Any) -> tuple[Ended, PseudoTerminal]:
        """Runs a stage on a terminal of its own."""
        environment = PseudoTerminal.environment | more.pop("environment", {})
        with PseudoTerminal() as terminal:
            ended = self.stages.run(
                *arguments, output=terminal.path, environment=environment, **more
            )
        return ended, terminal


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, stages: Stages) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("hostile")
    with serving(hostile_policy, models=(MODEL, JUDGE, HOSTILE)) as endpoint:
        at_endpoint = {"engine": "openai", "base_url": endpoint.base_url}
        config = recipe(
            folder,
            endpoint.base_url,
            policy={"model": MODEL, **at_endpoint},
            judge={"model": JUDGE, **at_endpoint},
            mcts={"iterations": 20, "max_children": 3, "evaluator": "judge"},
            evaluation={
                "policies": {"p": MODEL, "q": MODEL},
                "set": {
                    "source": "jsonl",
                    "questions": str(folder / "exam.jsonl"),
                    "split": None,
                },
            },
            limits={"max_failed_share": 1.0},
        )
        corpus = [{key: f"{text} {HOSTILE}" for key, text in row.items()} for row in PASSAGES]
        asked = [
            {
                "id": f"{row['id']} {HOSTILE}",
                "question": f"{row['question']} {HOSTILE}",
                "answers": [*row["answers"], HOSTILE],
                "type": HOSTILE,
                "licence": HOSTILE,
                HOSTILE: HOSTILE,
            }
            for row in QUESTIONS
        ]
        exam = [
            {**row, "id": f"{row['id']}?", "question": f"So, {row['question']}"} for row in asked
        ]
        for name, rows in (("corpus", corpus), ("questions", asked), ("exam", exam[:2])):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        yield World(endpoint, config, folder / NAME, stages)


@pytest.fixture(scope="module")
def annotated(world: World) -> PseudoTerminal:
    """The terminal that the run was annotated on."""
    ended, terminal = world.on_terminal("annotate", "--config", world.recipe, "--run", world.run)
    assert ended.code == 0, terminal.said
    return terminal


@pytest.fixture(scope="module")
def run(world: World, annotated: PseudoTerminal) -> Path:
    """The folder of the annotated run."""
    return world.run


def test_hostile_replies_are_escaped_on_the_terminal(annotated: PseudoTerminal) -> None:
    annotated.harmless("annotate: counted", "answered as \\x1b]0;pwned\\x07")


def test_text_files_of_a_run_are_safe_to_display(world: World, run: Path) -> None:
    pairs = table_to_records(read_parts(run, "pairs"), Pair)
    assert any(HOSTILE in pair.chosen[0].content for pair in pairs), (
        "stored data must not be escaped"
    )
    assert read_parts(run, "failures").num_rows == 1
    for stage in (["eval"], ["diagnose", "--no-model"]):
        assert world.stages.run(*stage, "--run", run).code == 0
    texts = {
        path.name: path.read_bytes().decode("utf-8")
        for path in run.rglob("*")
        if path.suffix in {".csv", ".json", ".jsonl", ".md", ".yaml"}
    }
    for name, text in texts.items():
        reject_harmful(text.replace("\r\n", "\n"))
        known = {"README.md", "config.yaml", "diagnosis.md"}
        assert ("pwned" in text) >= (name in known), name


def of_the_run(*arguments: str) -> list[str]:
    return [*arguments, "--run", "RUN"]


STAGES = {
    "doctor": (["doctor", "--config", "CONFIG", "--run", "RUN"], "ignores constraints"),
    "data as JSON": (["data", "--config", "CONFIG", "--json"], "pwned"),
    "annotate": (["annotate", "--config", "CONFIG", "--run", "FOLDER/run"], "pwned"),
    "diagnose": (of_the_run("diagnose", "--no-model"), "pwned"),
    "eval": (of_the_run("eval"), "Differences"),
    "inspect": (of_the_run("inspect"), "pwned"),
    "train-dpo": (of_the_run("train-dpo", "--dry-run"), "pwned"),
    "study": (["study", "--name", HOSTILE, "--config", "CONFIG"], "pwned"),
    "stage": ([HOSTILE], "pwned"),
    "no recipe": (["data", "--config", HOSTILE], "pwned"),
    "--set": (["data", "--config", "CONFIG", "--set", HOSTILE], "pwned"),
}


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_escapes_hostile_text(
    name: str, world: World, run: Path, tmp_path: Path
) -> None:
    arguments, shown = STAGES[name]
    placeholders = {"RUN": str(run), "CONFIG": str(world.recipe)}
    words = [placeholders.get(word, word.replace("FOLDER", str(tmp_path))) for word in arguments]
    ended, terminal = world.on_terminal(*words)
    assert "Traceback" not in terminal.said
    assert ended.code in {0, 2}, terminal.said
    terminal.harmless(shown)


HOSTILE_RECIPES = {
    "a key": json.dumps({HOSTILE: 1, "mcts": {HOSTILE: 1}}),
    "a value": json.dumps({"name": HOSTILE, "mcts": {"selection": HOSTILE}}),
    "a path": json.dumps({"name": "x", "data": {"source": "jsonl", "questions": HOSTILE}}),
    "no YAML": f"name: [{HOSTILE}",
    "a tag": f"name: !{'pwned%1B%5B2J'} x",
}


@pytest.mark.parametrize("name", HOSTILE_RECIPES)
def test_errors_about_a_hostile_recipe_are_escaped(name: str, world: World, tmp_path: Path) -> None:
    config = tmp_path / f"{NAME}.yaml"
    config.write_text(HOSTILE_RECIPES[name], encoding="utf-8")
    ended, terminal = world.on_terminal("data", "--config", config, "--run", tmp_path / "run")
    assert ended.code == 2, terminal.said
    terminal.harmless("error: ", "pwned")


@pytest.fixture(scope="module")
def filled(world: World, run: Path) -> Path:
    """A run with hostile text in every text column of every table."""
    folder = run.parent / "filled"
    folder.mkdir()
    for name in ("config.yaml", "provenance.json"):
        (folder / name).write_bytes((run / name).read_bytes())
    for table in VIEWS:
        schema = SCHEMAS[table]
        row = {field.name: hostile_value(field.type) for field in schema}
        at = f"eval/p/{NAME}/predictions" if table == "predictions" else table
        part = write_part(folder, at, pa.Table.from_pylist([row], schema=schema), 0)
        add_parts(folder, [part])
    return folder


def hostile_value(kind: pa.DataType) -> Any:
    """Returns a value of this type in which every text is hostile."""
    if pa.types.is_string(kind):
        return HOSTILE
    if pa.types.is_list(kind):
        return [hostile_value(kind.value_type)]
    if pa.types.is_struct(kind):
        return {field.name: hostile_value(field.type) for field in kind}
    return True if pa.types.is_boolean(kind) else 1


def test_sql_results_are_escaped_in_every_column(world: World, filled: Path) -> None:
    for view in VIEWS:
        sql = f"select * from {view}"
        ended, terminal = world.on_terminal(
            "inspect", "--run", filled, environment={"SQL": sql, "COLUMNS": "20000"}
        )
        assert ended.code == 0, terminal.said
        terminal.harmless()


def test_canned_queries_escape_every_column(world: World, filled: Path) -> None:
    ended, terminal = world.on_terminal("inspect", "--run", filled)
    assert ended.code == 0, terminal.said
    terminal.harmless()


QUOTED = HOSTILE.replace('"', '""')
HOSTILE_SQL = {
    "a heading": (f'select 1 as "{QUOTED}"', 0),
    "a syntax error": (f"selekt {HOSTILE}", 2),
    "an error of its own": ("select error(question) from pairs", 2),
}


@pytest.mark.parametrize("name", HOSTILE_SQL)
def test_sql_headings_and_errors_are_escaped(name: str, world: World, filled: Path) -> None:
    sql, code = HOSTILE_SQL[name]
    ended, terminal = world.on_terminal("inspect", "--run", filled, environment={"SQL": sql})
    assert ended.code == code, terminal.said
    terminal.harmless("pwned")


@pytest.mark.parametrize("field", ["id", HOSTILE])
def test_errors_about_question_files_are_escaped(field: str, world: World, tmp_path: Path) -> None:
    broken = tmp_path / f"{NAME}.jsonl"
    row = {"id": HOSTILE, "question": HOSTILE, "answers": ["x"], field: {HOSTILE: HOSTILE}}
    same = {"id": HOSTILE, "question": HOSTILE, "answers": ["x"]}
    rows = (row, same, {**same, "question": "else"})
    broken.write_text("".join(json.dumps(row) + "\n" for row in rows) + HOSTILE)
    setting = f"data.questions={json.dumps(str(broken))}"
    ended, terminal = world.on_terminal("data", "--config", world.recipe, "--set", setting)
    assert ended.code == 2, terminal.said
    terminal.harmless()


PRINTED = f"""
import logging, sys, threading, warnings
from branchwise.base.terminal_escape import guard_streams
guard_streams()
said = {HOSTILE!r}
print(said, said, sep=said)
print(said, file=sys.stderr)
sys.stdout.writelines([said, "\\n"])
warnings.warn(said)
logging.getLogger(said).warning(said)
logging.basicConfig()
logging.getLogger(said).error("%s", said)
thread = threading.Thread(target=lambda: {{}}[said])
thread.start()
thread.join()
"""
"""Ways to print that bypass the console; the last one is an unhandled error in a thread."""
LIVE = r"""
import asyncio
from branchwise.runs.progress import Progress
from branchwise.runs.terminal import Terminal

async def shown():
    async with Progress(said, 1).shown(Terminal()):
        await asyncio.sleep(0)
        print(said, flush=True)
        warnings.warn(said, stacklevel=2)
        logging.getLogger(said).error(said)
    assert type(sys.stdout).__name__ == "TerminalSafeStream"

asyncio.run(shown())
"""


@pytest.mark.parametrize("more", ["", LIVE, "raise RuntimeError(said)"])
def test_output_that_bypasses_the_console_is_escaped(more: str) -> None:
    with PseudoTerminal() as terminal:
        done = subprocess.run(
            # The program may begin lines itself, so the mark of forged lines is replaced.
            [sys.executable, "-c", (PRINTED + more).replace("FORGED", "printed")],
            stdin=subprocess.DEVNULL,
            stdout=terminal.descriptor,
            stderr=terminal.descriptor,
            env={**os.environ, **terminal.environment, "PYTHONPATH": str(REPOSITORY)},
            check=False,
        )
    assert done.returncode == ("raise" in more), terminal.said
    terminal.harmless("UserWarning: \\x1b]0;pwned", "KeyError", "ERROR:")


NARROW = {
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}
"""Encodings without some characters that we print: box drawings, minus signs, other scripts."""


@pytest.mark.parametrize("encoding", NARROW)
def test_stages_work_with_an_encoding_that_lacks_characters(
    encoding: str, world: World, run: Path, tmp_path: Path
) -> None:
    row = {"id": "ø", "question": "ما هي عاصمة 日本 é?", "answers": ["東京"], "type": "日本"}
    little: tuple[object, ...] = ("--config", world.recipe)
    for name, setting in (("ask", "data.questions"), ("exam", "evaluation.set.questions")):
        path = tmp_path / f"{name}.jsonl"
        path.write_text(json.dumps({**row, "id": name, "question": f"{name} {row['question']}"}))
        little += ("--set", f"{setting}={path}")
    for arguments, code, shown in (
        (("data", *little), 0, r"\u65e5\u672c"),
        (("annotate", *little, "--run", tmp_path / "run", "--json"), 0, '"questions_done": 1'),
        (("eval", *little, "--run", tmp_path / "run"), 0, r"\u2212"),
        (("data", "--config", "日本"), 2, r"\u65e5\u672c"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "branchwise", *map(str, arguments)],
            cwd=REPOSITORY,
            env={
                **os.environ,
                "PYTHONPATH": str(REPOSITORY),
                "BRANCHWISE_CACHE": str(tmp_path / "cache"),
                "OPENAI_API_KEY": "test-key",
                **NARROW[encoding],
            },
            capture_output=True,
            check=False,
        )
        said = (done.stdout + done.stderr).decode("latin-1")
        assert done.returncode == code, said
        assert "Traceback" not in said
        reject_harmful(said)
        assert shown in said, said
        if "--json" in arguments:
            assert json.loads(done.stdout.splitlines()[-1])


def test_a_folder_name_that_is_not_unicode_is_escaped(world: World, tmp_path: Path) -> None:
    name = os.fsdecode(b"run-\xff\x9b31m")
    ended, terminal = world.on_terminal(
        "annotate", "--config", world.recipe, "--run", tmp_path / name
    )
    assert ended.code == 2, terminal.said
    terminal.harmless(r"run-\xff\x9b31m: is not text")
