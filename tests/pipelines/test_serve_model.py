"""Stages with `engine: vllm`, and `branchwise serve-model`, over a stand-in for vLLM."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import fake_vllm
import pytest
import tiny_dataset

from branchwise.cli.command_line import main
from branchwise.engines.vllm.command import VARIABLE
from branchwise.pipelines.serve_model.stage import served_settings
from branchwise.runs.recipe_file import load_recipe
from branchwise.storage.manifest import load_manifest
from branchwise.storage.parts import read_parts

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Recipe with a policy that vLLM serves."""
    monkeypatch.setenv(VARIABLE, fake_vllm.install(tmp_path))
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    policy = {"engine": "vllm", "model": str(fake_vllm.write_policy(tmp_path))}
    return tiny_dataset.recipe(tmp_path, "", policy=policy)


def annotate(recipe: Path, *more: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["annotate", "--config", str(recipe), "--run", str(recipe.parent / "run"), *more])
    return int(ended.value.code or 0)


def test_a_resumed_stage_starts_another_server(recipe: Path) -> None:
    folder, run = recipe.parent, recipe.parent / "run"
    assert annotate(recipe, "--set", "limits.max_tokens=400") == 3
    assert annotate(recipe) == 0
    assert len(load_manifest(run).of("trees")) > 0
    asked = fake_vllm.kept(folder, "requests")
    seeds = [row["seed"] for row in asked if row["messages"][-1]["content"] != "Hi"]
    assert len(seeds) == len(set(seeds)), "no call was made twice"
    starts = fake_vllm.kept(folder, "starts")
    assert len(starts) == 2
    assert len({start["pid"] for start in starts}) == 2
    assert list((run / "logs").glob("vllm-branchwise-*.log"))

    assert annotate(recipe) == 0
    assert len(fake_vllm.kept(folder, "starts")) == 2, "a finished run starts no server"
    (digest,) = set(read_parts(run, "trees", ["policy_digest"])["policy_digest"].to_pylist())
    name = words_after("--lora-modules", starts[0]["words"]).partition("=")[0]
    assert name == f"branchwise-{digest[:16]}", "rows and server have the same name for the weights"


def words_after(option: str, words: list[str]) -> str:
    return words[words.index(option) + 1]


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_serve_model_prints_its_address_and_ends_with_its_server(
    recipe: Path, sent: signal.Signals
) -> None:
    pipe = recipe.parent / "alive"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    command = [
        sys.executable,
        "-m",
        "branchwise",
        "serve-model",
        "--config",
        str(recipe),
        "--json",
    ]
    serving = subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert serving.stderr is not None
    said = ""
    while "Ctrl-C stops it" not in said:
        line = serving.stderr.readline()
        assert line, said
        said += line
    serving.send_signal(sent)
    out, _ = serving.communicate()
    totals: dict[str, Any] = json.loads(out)
    assert serving.returncode == 0
    (base_url,) = totals["base_urls"]
    assert base_url in said
    assert totals["model"] in said
    assert base_url.startswith("http://127.0.0.1:")
    os.set_blocking(reading, True)
    assert os.read(reading, 1) == b"", "a process of the server is still running"
    os.close(reading)


@pytest.mark.parametrize("role", ["judge", "verifier"])
def test_serve_model_refuses_a_role_that_the_recipe_lacks(
    recipe: Path, role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve-model", "--config", str(recipe), "--role", role])
    assert ended.value.code == 2
    assert f"the recipe lacks a `{role}` block" in capsys.readouterr().out


def test_served_settings_are_those_of_the_role() -> None:
    address = "http://127.0.0.1:1/v1"
    verifier = f"{{engine: openai, base_url: '{address}', model: m, weights: hub:o/m}}"
    recipe = load_recipe(Path("configs/evo-rag.yaml"), [f"verifier={verifier}"])
    assert served_settings(recipe, "policy").model == recipe.policy.model
    assert served_settings(recipe, "verifier").model == "hub:o/m"
