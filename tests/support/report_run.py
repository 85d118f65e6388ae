"""A small run with hostile text, and its report."""

from pathlib import Path
from typing import Any

import pytest
from command_line import branchwise
from loopback import serving
from tiny_dataset import QUESTIONS, policy, recipe

HOSTILE = '</script><script>document.title = "taken"</script><img src=x onerror=alert(1)>'


def hostile_policy(request: dict[str, Any]) -> str:
    """Returns the tiny policy's reply with markup in its evidence and in its reasoning."""
    reply = policy(request).replace("The capital is Paris", f"The capital is Paris {HOSTILE}")
    return f"<think>I should look closer. {HOSTILE}</think>{reply}"


def a_run_with_report(folder: Path) -> Path:
    """Annotates the tiny questions, one of them hostile, and writes the report with a curve."""
    questions = [{**QUESTIONS[0], "question": f"{HOSTILE} Where?"}, *QUESTIONS[1:]]
    with pytest.MonkeyPatch.context() as patch, serving(hostile_policy) as endpoint:
        patch.setenv("BRANCHWISE_CACHE", str(folder / "cache"))
        patch.setenv("OPENAI_API_KEY", "test-key")
        patch.setattr("tiny_dataset.QUESTIONS", questions)
        patch.chdir(folder)
        config = recipe(folder, endpoint.base_url)
        model = folder / "models" / "run" / "grpo"
        model.mkdir(parents=True)
        (model / "metrics.jsonl").write_text(
            '{"step": 1, "reward": 0.5, "reward/format": 1, "other": 2}\n'
            '{"step": 2, "reward": 0.6, "reward/format": 1, "reward/accuracy": 0.2}\n'
        )
        for stage in ("annotate", "report"):
            assert branchwise(stage, config, folder / "run") == 0
    return folder / "run"
