"""Stages whose model is on several servers: the rows are those of one server."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fake_vllm
import pytest
from command_line import branchwise
from fake_endpoint import FakeEndpoint
from loopback import serving
from stored_rows import nodes_of, pairs_of
from tiny_dataset import QUESTIONS, policy, recipe

from branchwise.base.errors import ConfigError
from branchwise.engines.settings import ModelSettings
from branchwise.engines.vllm.command import GPUS, VARIABLE, gpus_of
from branchwise.storage.ledger import Ledger

pytestmark = pytest.mark.usefixtures("own_cache")
IDENTITY = "my-servers"


class Dying:
    """The usual policy, whose server cuts all connections at its `after`-th call."""

    def __init__(self, after: int) -> None:
        self.calls, self.after, self.cut = 0, after, 0
        self.endpoint: FakeEndpoint | None = None

    def __call__(self, request: dict[str, Any]) -> str:
        self.calls += 1
        if self.calls == self.after:
            assert self.endpoint is not None
            self.cut = self.endpoint.under_way
            self.dying = asyncio.ensure_future(self.endpoint.refuse())
        return policy(request)


@pytest.fixture
def three() -> Iterator[list[FakeEndpoint]]:
    with ExitStack() as stack:
        yield [stack.enter_context(serving(policy)) for _ in range(3)]


def fleet(*servers: FakeEndpoint) -> dict[str, Any]:
    return {
        "engine": "openai",
        "model": "policy",
        "base_urls": [server.base_url for server in servers],
        "identity": IDENTITY,
    }


def rows(run: Path) -> list[Any]:
    return [*nodes_of(run), *pairs_of(run)]


def of_one_server(tmp_path: Path) -> list[Any]:
    """Returns the rows of the same recipe with one server."""
    with serving(policy) as server:
        alone = {**fleet(server), "base_urls": [], "base_url": server.base_url}
        assert branchwise("annotate", recipe(tmp_path, "", policy=alone), tmp_path / "one") == 0
    return rows(tmp_path / "one")


def questions_at(server: FakeEndpoint) -> set[str]:
    texts = [body["messages"][-1]["content"] for body in server.requests]
    return {str(q["id"]) for q in QUESTIONS if any(q["question"] in text for text in texts)}


def test_rows_do_not_depend_on_the_number_of_servers(
    tmp_path: Path, three: list[FakeEndpoint], capsys: pytest.CaptureFixture[str]
) -> None:
    run, config = tmp_path / "run", recipe(tmp_path, "", policy=fleet(*three))
    assert branchwise("annotate", config, run) == 0
    shown = capsys.readouterr().out
    assert rows(run) == of_one_server(tmp_path)
    homes = [questions_at(server) for server in three]
    assert sorted(map(len, homes)) == [2, 2, 2]
    assert set.union(*homes) == {question["id"] for question in QUESTIONS}
    with Ledger(run / "ledger.sqlite") as ledger:
        assert ledger.totals().calls == sum(len(server.requests) for server in three)
    for server in three:
        assert f"{server.base_url}: works" in shown
    branchwise("report", config, run)
    assert f"server {three[0].base_url}: works" in (run / "report.html").read_text()


@pytest.mark.parametrize("after", [1, 5, 12])
def test_a_server_that_dies_costs_no_question_and_only_its_calls_in_progress(
    after: int, tmp_path: Path, three: list[FakeEndpoint], capsys: pytest.CaptureFixture[str]
) -> None:
    dying = Dying(after)
    dying.endpoint, three[1].script = three[1], dying
    run, config = tmp_path / "run", recipe(tmp_path, "", policy=fleet(*three))
    assert branchwise("annotate", config, run) == 0
    assert rows(run) == of_one_server(tmp_path)
    with Ledger(run / "ledger.sqlite") as ledger:
        stored = ledger.totals().calls
    received = sum(len(server.requests) for server in three)
    assert received - stored <= dying.cut, "only calls in progress are repeated"
    assert "questions move to other servers" in capsys.readouterr().out


def test_a_run_continues_on_other_servers_without_paying_twice(
    tmp_path: Path, three: list[FakeEndpoint]
) -> None:
    run, config = tmp_path / "run", recipe(tmp_path, "", policy=fleet(three[0]))
    assert branchwise("annotate", config, run, "--set", "limits.max_tokens=600") == 3
    elsewhere = recipe(tmp_path, "", policy=fleet(*three[1:]))
    assert branchwise("annotate", elsewhere, run) == 0
    seeds = [body["seed"] for server in three for body in server.requests]
    assert len(seeds) == len(set(seeds)), "no call was made twice"
    assert rows(run) == of_one_server(tmp_path)


def test_other_stages_use_the_same_servers(tmp_path: Path, three: list[FakeEndpoint]) -> None:
    run = tmp_path / "run"
    asked = {"source": "jsonl", "questions": str(tmp_path / "questions.jsonl"), "split": None}
    config = recipe(
        tmp_path,
        "",
        policy=fleet(*three),
        evaluation={"set": asked, "baselines": ["closed-book"]},
        difficulty={"rollouts": 3, "easy": 1, "medium": 2, "stages": {"1": {"medium": 1}}},
    )
    for stage in ("select", "eval"):
        before = [len(server.requests) for server in three]
        branchwise(stage, config, run)
        after = [len(server.requests) for server in three]
        assert all(b > a for a, b in zip(before, after, strict=True)), stage


def test_servers_that_differ_are_refused_before_the_first_call(
    tmp_path: Path, three: list[FakeEndpoint], capsys: pytest.CaptureFixture[str]
) -> None:
    three[2].models = ("another",)
    config = recipe(tmp_path, "", policy=fleet(*three))
    assert branchwise("annotate", config, tmp_path / "run") == 2
    assert f"{three[2].base_url}: another model" in capsys.readouterr().out
    assert not any(server.requests for server in three)
    assert not (tmp_path / "run").exists()


def test_doctor_names_every_server_that_fails(
    tmp_path: Path, three: list[FakeEndpoint], capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(policy) as gone:
        urls = [gone.base_url]
    settings = fleet(*three[:2])
    settings["base_urls"] += urls
    config = recipe(tmp_path, "", policy=settings)
    assert branchwise("doctor", config, tmp_path / "run") == 2
    assert f"policy: nothing answers at {urls[0]}" in capsys.readouterr().out
    assert branchwise("annotate", config, tmp_path / "run") == 0, "the others are enough"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"identity": None}, "base_urls need an identity"),
        ({"base_url": "http://127.0.0.1:1/v1"}, "set one of them"),
        ({"base_urls": ["http://127.0.0.1:1/v1"] * 2}, "names an address twice"),
        (
            {"base_urls": ["http://127.0.0.1:1/v1", "ftp://x"]},
            "is ftp://x: give an http or https address",
        ),
        ({"replicas": 2}, "policy.replicas has no effect"),
    ],
)
def test_a_fleet_that_cannot_work_is_refused(
    changes: dict[str, Any],
    message: str,
    tmp_path: Path,
    three: list[FakeEndpoint],
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = recipe(tmp_path, "", policy=fleet(*three) | changes)
    assert branchwise("annotate", config, tmp_path / "run") == 2
    assert message in capsys.readouterr().out


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings of a policy on three stand-ins for vLLM that the stage starts."""
    monkeypatch.setenv(VARIABLE, fake_vllm.install(tmp_path))
    model = str(fake_vllm.write_policy(tmp_path))
    return {"engine": "vllm", "model": model, "replicas": 3}


def test_a_stage_starts_its_replicas_and_survives_one_that_dies(
    tmp_path: Path, vllm: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run, config = tmp_path / "run", recipe(tmp_path, "", policy=vllm)
    (tmp_path / "die at").write_text("2 4")  # the second one, at its fourth call
    assert branchwise("annotate", config, run) == 0
    starts = fake_vllm.kept(tmp_path, "starts")
    assert len(starts) in {3, 4}, "the dead one may be restarted before the end"
    ports = [start["words"][start["words"].index("--port") + 1] for start in starts[:3]]
    assert len(set(ports)) == 3
    assert len(list((run / "logs").glob("vllm-*.log"))) == 3
    assert "questions move to other servers" in capsys.readouterr().out
    alone = tmp_path / "alone"
    assert branchwise("annotate", config, alone, "--set", "policy.replicas=1") == 0
    assert rows(alone) == rows(run)
    for start in fake_vllm.kept(tmp_path, "starts"):
        with pytest.raises(ProcessLookupError):
            os.kill(start["pid"], signal.SIGTERM)


def test_replicas_share_the_gpus_that_the_process_sees() -> None:
    def gpus(visible: str, **settings: Any) -> list[list[str]]:
        model = ModelSettings(engine="vllm", **settings)
        return [gpus_of(model, n, {GPUS: visible}) for n in range(model.replicas)]

    assert gpus("0,1,2,3", replicas=2, gpus_per_replica=2) == [["0", "1"], ["2", "3"]]
    assert gpus("4,6,7", replicas=3) == [["4"], ["6"], ["7"]]
    assert gpus("GPU-a,GPU-b", gpus_per_replica=2) == [["GPU-a", "GPU-b"]]
    assert gpus("0,1") == [[]], "a single server sees all GPUs, as before"
    with pytest.raises(ConfigError, match=r"4 replicas of .* with 2 GPUs each need 8.* has 3"):
        gpus("0,1,2", replicas=4, gpus_per_replica=2)
