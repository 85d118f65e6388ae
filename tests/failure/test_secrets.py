"""API keys appear in the environment and in requests, never in files or output."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from durable import World
from fake_endpoint import completion, failure
from loopback import serving
from seams import Seam
from stages import Stages
from tiny_dataset import policy, recipe

from branchwise.storage.manifest import load_manifest
from branchwise.storage.parts import read_parts

pytestmark = pytest.mark.failure

CANARY = "CANARY"
KEY = f"sk-{CANARY}/4+2="
ENVIRONMENT = {"OPENAI_API_KEY": KEY}


def echoing_key(request: dict[str, Any]) -> Any:
    """Policy that includes the key in every error message."""
    asked = request["messages"][-1]["content"]
    if "currency" in asked:
        return failure(400, f"Bearer {KEY} asked too much; see ?key={quote(KEY, safe='')}")
    if "money" in asked:
        return completion(None, choices=[], note=f"\\{KEY}")
    return policy(request)


@pytest.fixture
def world(tmp_path: Path, stages: Stages) -> Iterator[World]:
    with serving(echoing_key, key=KEY) as endpoint:
        yield World(endpoint, recipe(tmp_path, endpoint.base_url), stages, tmp_path / "run")


def places_of_canary(folder: Path) -> list[str]:
    """Returns the files and tables that contain the canary, also inside compressed parquet."""
    found = [str(p) for p in folder.rglob("*") if p.is_file() and CANARY in read(p)]
    if (folder / "manifest.json").exists():
        tables = {part.table for part in load_manifest(folder).parts}
        found += [table for table in tables if CANARY in str(read_parts(folder, table).to_pylist())]
    return found


def read(path: Path) -> str:
    return path.read_bytes().decode("latin-1")


def test_a_key_in_server_errors_is_redacted_in_files_and_output(
    world: World, stages: Stages, tmp_path: Path
) -> None:
    run = world.whole
    killed = world.annotate(run, seam=Seam("close"), environment=ENVIRONMENT)
    assert killed.code == -signal.SIGKILL, killed.said
    assert (run / "ledger.sqlite-wal").stat().st_size, (
        "the write-ahead log must exist, so that it is searched, too"
    )
    assert places_of_canary(run) == []
    done = world.annotate(run, environment=ENVIRONMENT)
    assert done.code == 4, done.said
    details = {row["detail"] for row in read_parts(run, "failures").to_pylist()}
    assert all("[key]" in detail for detail in details)
    assert len(details) == 2
    outputs = [killed, done]
    for stage in ("inspect", "relabel", "doctor"):
        outputs.append(stages.run(stage, "--run", run, environment=ENVIRONMENT))
    assert places_of_canary(run) == places_of_canary(tmp_path / "cache") == []
    assert all(CANARY not in ended.said for ended in outputs)
    sent = world.endpoint.headers
    assert {headers["Authorization"] for headers in sent} == {f"Bearer {KEY}"}


def test_a_wrong_key_is_not_shown_in_the_error(world: World) -> None:
    wrong = {"OPENAI_API_KEY": f"wrong-{CANARY}"}
    refused = world.annotate(world.whole, environment=wrong)
    assert refused.code == 1
    assert "OPENAI_API_KEY is not valid" in refused.said
    assert CANARY not in refused.said
    assert not world.whole.exists()


@pytest.mark.parametrize("odd", ["\n", "\r\nX-Evil: 1\n", "\x7f", "é", "\u2019"])
def test_a_key_with_invalid_header_characters_is_refused_before_any_call(
    odd: str, world: World
) -> None:
    refused = world.annotate(world.whole, environment={"OPENAI_API_KEY": f"sk-{CANARY}{odd}x"})
    assert refused.code == 2, refused.said
    assert "the key in OPENAI_API_KEY contains a character that an HTTP header" in refused.said
    assert CANARY not in refused.said
    assert world.endpoint.headers == []
    assert not world.whole.exists()


URLS = (
    f"http://user:{CANARY}@127.0.0.1:9/v1",
    f"http://127.0.0.1:9/v1?api-version=1&key={CANARY}",
    f"http://127.0.0.1:9/v1#{CANARY}",
    f"http://127.0.0.1:9/v1;key={CANARY}",
    f"http://127.0.0.1:9/%73k-{CANARY}/v1",
)
OTHERS = ("judge.base_url", "verifier.base_url", "retrieval.url")


@pytest.mark.parametrize(
    ("setting", "url"),
    [*(("policy.base_url", url) for url in URLS), *((name, URLS[0]) for name in OTHERS)],
)
def test_a_url_that_contains_a_key_is_refused(setting: str, url: str, world: World) -> None:
    """Also if the run does not use the address, because its recipe would contain the key."""
    refused = world.annotate(world.whole, "--set", f"{setting}={url}", environment=ENVIRONMENT)
    assert refused.code == 2, refused.said
    assert setting.rpartition(".")[2] in refused.said
    assert CANARY not in refused.said
    assert not world.whole.exists()


@pytest.mark.parametrize(
    "override",
    [
        f"policy.api_key={CANARY}",
        f"policy.api_key: {CANARY}",
        f"policy.apiKey=[{CANARY}",
        f"token={CANARY}",
        f"evaluation.policies.secret={CANARY}",
        f"policy={{api_key: {CANARY}, temperature: hot}}",
        f"policy.password={{a: {CANARY}}}",
        f"policy.api_key_env=sk-{CANARY}",
        f"policy.api_key_env=hf_{CANARY}0123456789abcdef",
        f"policy.api_key_env=[{CANARY}]",
        f"policy.base_url=[{CANARY}]",
        f"policy.server_args=[--api-key, {CANARY}]",
        f"policy.server_args=[--hf-token={CANARY}]",
    ],
)
def test_a_key_in_the_settings_is_refused_and_not_shown(override: str, world: World) -> None:
    refused = world.annotate(world.whole, "--set", override, environment=ENVIRONMENT)
    assert refused.code == 2, refused.said
    assert CANARY not in refused.said
    assert not world.whole.exists()
