"""Writes questions, a corpus and a recipe for benchmarks that need a run but no real answers."""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.simulated_models import NAMES, RELATIONS, golden_answer, question_text

PASSAGES = 1_000
"""Number of passages in the corpus; BM25 really searches them."""
_FILLER = "The town lies on a slow river between low hills and is known for its market. " * 4


def write_run(folder: Path, base_url: str, questions: int, changes: Mapping[str, Any]) -> Path:
    """Writes questions, corpus and recipe into `folder`; returns the recipe.

    Args:
        folder: Existing folder to write to.
        base_url: Address of the endpoint that serves `policy` and `judge`.
        questions: Number of questions.
        changes: Settings of the recipe's blocks, such as `{"mcts": {"iterations": 4}}`.
    """
    _write_lines(folder / "questions.jsonl", map(_question, range(questions)))
    _write_lines(folder / "corpus.jsonl", map(_passage, range(PASSAGES)))
    endpoint = {"engine": "openai", "base_url": base_url}
    recipe: dict[str, Any] = {
        "name": "benchmark",
        "data": {
            "source": "jsonl",
            "questions": str(folder / "questions.jsonl"),
            "corpus": str(folder / "corpus.jsonl"),
            "split": None,
            "limit": None,
        },
        "policy": {**endpoint, "model": "policy"},
        "judge": {**endpoint, "model": "judge"},
        "mcts": {"iterations": 64, "max_children": 2, "temperature": 1.2, "evaluator": "judge"},
        "limits": {},
    }
    for block, settings in changes.items():
        recipe[block] = {**recipe.get(block, {}), **settings}
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe))  # JSON is YAML
    return path


def annotate_command(recipe: Path, run: Path, *arguments: str) -> list[str]:
    """Returns the command of the real stage; run it in the repository's root."""
    program = "from branchwise.cli.command_line import main; main()"
    stage = ["annotate", "--config", str(recipe), "--run", str(run), "--json"]
    return [sys.executable, "-c", program, *stage, *arguments]


def question_id(number: int) -> str:
    """Returns the id of question `number`."""
    return f"q{number:06d}"


def _question(number: int) -> dict[str, Any]:
    text = question_text(number)
    return {
        "id": question_id(number),
        "question": text,
        "answers": [golden_answer(text)],
        "hops": 2,
    }


def _passage(number: int) -> dict[str, Any]:
    name, relation = NAMES[number % len(NAMES)], RELATIONS[number % len(RELATIONS)]
    first = f"{name} {number} lies in a country whose {relation} is well known."
    return {"id": f"p{number}", "title": f"{name} {number}", "text": f"{first} {_FILLER}"}


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
