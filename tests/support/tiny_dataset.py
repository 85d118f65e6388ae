"""Six questions over four passages, and a policy that is right often enough to learn from."""

import json
from pathlib import Path
from typing import Any

PASSAGES = [
    {"id": "lyon", "title": "Lyon", "text": "Lyon is a city in France on the Rhone."},
    {"id": "france", "title": "France", "text": "France has the capital Paris. It uses the Euro."},
    {"id": "osaka", "title": "Osaka", "text": "Osaka is a city in Japan with a castle."},
    {"id": "japan", "title": "Japan", "text": "Japan has the capital Tokyo. It uses the Yen."},
]
QUESTIONS = [
    {"id": "q1", "question": "What is the capital of the country of Lyon?", "answers": ["Paris"]},
    {"id": "q2", "question": "What is the capital of the country of Osaka?", "answers": ["Tokyo"]},
    {"id": "q3", "question": "Which currency is used around Osaka?", "answers": ["Yen"]},
    {"id": "q4", "question": "Which city governs the country of Lyon?", "answers": ["Paris"]},
    {"id": "q5", "question": "Which city governs the country of Osaka?", "answers": ["Tokyo"]},
    {"id": "q6", "question": "What money do people in Osaka pay with?", "answers": ["Yen"]},
]


def policy(request: dict[str, Any]) -> str:
    """Returns a reply that depends only on the request and its seed."""
    seed = int(request.get("seed", 0))
    system, user = request["messages"][0]["content"], request["messages"][-1]["content"]
    if "no searches left" in system:
        return f"<answer>{('Paris', 'Tokyo', 'Yen')[seed % 3]}</answer>"
    if "<passage>" in user:
        return ("<evidence>None</evidence>", "<evidence>The capital is Paris</evidence>")[seed % 2]
    if "Evidence:" in user and seed % 3:
        return f"<answer>{('Paris', 'Tokyo', 'Yen')[seed % 3]}</answer>"
    return f"<query>{('Lyon', 'Osaka', 'capital', 'France', 'Japan')[seed % 5]}</query>"


def write_rows(path: Path, *rows: Any) -> str:
    """Writes one line of JSON per row; returns the path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def recipe(folder: Path, base_url: str, **changes: Any) -> Path:
    """Writes a recipe, its questions and its corpus; `changes` replace whole blocks."""
    for name, rows in (("questions", QUESTIONS), ("corpus", PASSAGES)):
        write_rows(folder / f"{name}.jsonl", *rows)
    blocks: dict[str, Any] = {
        "name": "little",
        "data": {
            "source": "jsonl",
            "questions": str(folder / "questions.jsonl"),
            "corpus": str(folder / "corpus.jsonl"),
            "split": None,
            "limit": None,
        },
        "agent": {"max_steps": 6},
        "policy": {"engine": "openai", "model": "policy", "base_url": base_url},
        "mcts": {"iterations": 12, "max_children": 3},
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps({**blocks, **changes}))  # JSON is YAML
    return path
