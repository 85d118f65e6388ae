"""A run whose servers or folder move stays the same run: equal rows, and no call is repeated."""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from command_line import branchwise, evaluated
from durable import stored_seeds
from fake_endpoint import FakeEndpoint
from loopback import in_thread, serving
from tiny_dataset import PASSAGES, QUESTIONS, policy, recipe
from wire import listening

from branchwise.retrieval.index import open_retriever
from branchwise.retrieval.index_server import serving as serving_index
from branchwise.retrieval.settings import Bm25Settings
from branchwise.runs.folder import existing_run
from branchwise.storage.parts import question_ids, read_parts
from branchwise.types import Passage

pytestmark = pytest.mark.usefixtures("own_cache")

RATED = {"rollouts": 3, "easy": 1, "medium": 2, "stages": {"1": {"medium": 1}}}
"""Settings of `select`."""
STOP = ("--set", "limits.max_tokens=1000", "--set", "limits.max_questions_in_flight=1")
"""Ends an annotation at a limit after some of the questions."""


def verdicts(request: dict[str, Any]) -> str:
    """Returns the policy's reply, or a verdict of the judge."""
    if request["model"] == "judge":
        return "yes" if "Paris" in request["messages"][-1]["content"] else "no"
    return policy(request)


@pytest.fixture
def endpoints() -> Iterator[tuple[FakeEndpoint, FakeEndpoint]]:
    """One model behind two addresses."""
    with ExitStack() as stack:
        old, new = (
            stack.enter_context(serving(verdicts, models=("policy", "judge"))) for _ in range(2)
        )
        yield old, new


def config_at(
    folder: Path, name: str, endpoint: FakeEndpoint, identity: str | None = "lab", **blocks: Any
) -> Path:
    """Writes `<name>.yaml`, a recipe of the same run with its models at an endpoint.

    Without an identity, the endpoint's port decides the seeds, and so what the policy replies.
    """
    model = {"engine": "openai", "base_url": endpoint.base_url, "identity": identity}
    asked = {"source": "jsonl", "questions": str(folder / "questions.jsonl"), "split": None}
    written = recipe(
        folder,
        endpoint.base_url,
        policy={**model, "model": "policy"},
        judge={**model, "model": "judge"},
        evaluation={"set": asked, "judge": {"prompt": "yes-no"}},
        **blocks,
    )
    return written.rename(folder / f"{name}.yaml")


def seeds(endpoint: FakeEndpoint) -> list[int]:
    """Returns the seeds of all requests; each identifies a call."""
    return [request["seed"] for request in endpoint.requests]


def rows(run: Path, table: str) -> list[str]:
    return sorted(map(repr, read_parts(run, table).to_pylist()))


def test_one_model_at_two_addresses_gives_the_same_run(
    tmp_path: Path, endpoints: tuple[FakeEndpoint, FakeEndpoint]
) -> None:
    old, new = endpoints
    for number, (name, endpoint) in enumerate([("old", old), ("new", new)]):
        config = config_at(tmp_path, name, endpoint)
        folder = tmp_path / f"run-{number}"
        assert branchwise("annotate", config, folder, "--limit", "4") == 0
    assert rows(tmp_path / "run-0", "pairs"), "the tiny policy must give pairs"
    for table in ("pairs", "trees"):  # with run_id, config_digest and policy_digest
        assert rows(tmp_path / "run-0", table) == rows(tmp_path / "run-1", table)
    assert sorted(seeds(old)) == sorted(seeds(new))
    other = config_at(tmp_path, "other", new, identity=None)
    assert branchwise("annotate", other, tmp_path / "other", "--limit", "4") == 0
    assert not set(rows(tmp_path / "other", "pairs")) & set(rows(tmp_path / "run-0", "pairs"))


def test_a_run_that_stopped_at_a_limit_continues_at_another_address(
    tmp_path: Path,
    endpoints: tuple[FakeEndpoint, FakeEndpoint],
    capsys: pytest.CaptureFixture[str],
) -> None:
    old, new = endpoints
    begun = config_at(tmp_path, "begun", old, identity=None)
    assert branchwise("annotate", begun, tmp_path / "whole") == 0
    whole = stored_seeds(tmp_path / "whole")
    old.requests.clear()
    run = tmp_path / "run"
    assert branchwise("annotate", begun, run, *STOP) == 3
    assert 0 < len(question_ids(run, "trees")) < len(QUESTIONS)
    capsys.readouterr()
    assert branchwise("annotate", config_at(tmp_path, "unnamed", new, None), run) == 2
    assert f"policy.identity: was '{old.base_url}', now '{new.base_url}'" in capsys.readouterr().out
    assert not new.requests
    moved = config_at(tmp_path, "moved", new, identity=old.base_url)
    paid = seeds(old)
    assert branchwise("annotate", moved, run) == 0
    assert seeds(old) == paid, "the old address must not be asked"
    assert set(paid) | set(seeds(new)) == whole
    assert len(paid) + len(seeds(new)) == len(whole), "a call was repeated"
    for table in ("pairs", "trees"):
        assert rows(run, table) == rows(tmp_path / "whole", table)


def test_later_stages_at_another_address_repeat_no_call(
    tmp_path: Path, endpoints: tuple[FakeEndpoint, FakeEndpoint]
) -> None:
    old, new = endpoints
    run, asked = tmp_path / "run", tmp_path / "asked"
    before = config_at(tmp_path, "before", old, difficulty=RATED)
    after = config_at(tmp_path, "after", new, difficulty=RATED)
    assert branchwise("annotate", before, run) == 0
    assert evaluated(before, asked) in (0, 4)
    assert branchwise("select", before, run) in (0, 2)
    assert branchwise("diagnose", before, run, "--sample", "3") == 0
    files = {path.name for path in (asked / "eval").iterdir()}
    made = len(old.requests)
    assert evaluated(after, asked) in (0, 4)
    assert branchwise("select", after, run) in (0, 2)
    assert branchwise("diagnose", after, run, "--sample", "3") == 0
    again = ("--reread", str(run))
    assert branchwise("annotate", after, tmp_path / "again", *again) == 0
    assert not new.requests
    assert len(old.requests) == made
    assert {path.name for path in (asked / "eval").iterdir()} == files, "the same question set"
    # More fresh rollouts of the same trees are drawn at the new address.
    assert branchwise("diagnose", after, run, "--sample", "6") == 0
    assert new.requests
    asked_anew = len(new.requests)
    assert branchwise("annotate", after, run) == 0
    assert len(new.requests) == asked_anew
    assert len(old.requests) == made


@contextmanager
def index_server(folder: Path, passages: list[dict[str, str]] = PASSAGES) -> Iterator[str]:
    corpus = [Passage.model_validate(passage) for passage in passages]
    with in_thread(serving_index(open_retriever(Bm25Settings(), corpus, folder))) as url:
        yield url


def searching_at(url: str, **settings: Any) -> dict[str, Any]:
    return {"retrieval": {"kind": "http", "url": url, **settings}}


def test_a_run_continues_with_a_search_server_that_moved_but_not_with_another_index(
    tmp_path: Path,
    endpoints: tuple[FakeEndpoint, FakeEndpoint],
    capsys: pytest.CaptureFixture[str],
) -> None:
    endpoint, run = endpoints[0], tmp_path / "run"
    changed = [{**passage, "text": f"{passage['text']} It rains."} for passage in PASSAGES]
    with index_server(tmp_path / "here") as url:
        begun = config_at(tmp_path, "begun", endpoint, **searching_at(url))
        assert branchwise("annotate", begun, tmp_path / "whole") == 0
        endpoint.requests.clear()
        assert branchwise("annotate", begun, run, *STOP) == 3
    made = len(endpoint.requests)
    digest = existing_run(run).record.inputs["index"]
    with index_server(tmp_path / "there", changed) as url:
        other = config_at(tmp_path, "other", endpoint, **searching_at(url))
        capsys.readouterr()
        assert branchwise("annotate", other, run) == 2
        assert f"index: was '{digest}', now '" in capsys.readouterr().out
    assert len(endpoint.requests) == made
    with index_server(tmp_path / "there") as url:
        moved = config_at(tmp_path, "moved", endpoint, **searching_at(url))
        assert branchwise("annotate", moved, run) == 0
        assert len(endpoint.requests) == len(stored_seeds(tmp_path / "whole")), "a call repeated"
        assert rows(run, "trees") == rows(tmp_path / "whole", "trees")
        made = len(endpoint.requests)
        assert branchwise("diagnose", begun, run, "--sample", "1") == 1, "its server is down"
        assert len(endpoint.requests) == made
        assert branchwise("diagnose", moved, run, "--sample", "1") == 0
        assert len(endpoint.requests) > made
    made = len(endpoint.requests)
    assert branchwise("annotate", moved, run) == 0, "a finished run needs no search server"
    assert len(endpoint.requests) == made


def test_evaluations_and_ratings_do_not_depend_on_the_address_of_the_search_server(
    tmp_path: Path, endpoints: tuple[FakeEndpoint, FakeEndpoint]
) -> None:
    endpoint, run = endpoints[0], tmp_path / "run"
    written: list[tuple[int, list[str], list[str]]] = []
    for name in ("before", "after"):
        with index_server(tmp_path / "index") as url:
            config = config_at(tmp_path, name, endpoint, difficulty=RATED, **searching_at(url))
            assert evaluated(config, run) in (0, 4)
            assert branchwise("select", config, run) in (0, 2)
        evaluations = sorted(path.name for path in (run / "eval").glob("*.json"))
        rated = read_parts(run, "select/difficulty")["config_digest"].to_pylist()
        written.append((len(endpoint.requests), evaluations, rated))
    assert written[0] == written[1]


def test_dry_runs_need_no_search_server(
    tmp_path: Path,
    endpoints: tuple[FakeEndpoint, FakeEndpoint],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    with index_server(tmp_path / "index") as url:
        blocks = {"difficulty": RATED, **searching_at(url)}
        config = config_at(tmp_path, "config", endpoints[0], **blocks)
        assert branchwise("select", config, run) in (0, 2)
        capsys.readouterr()
        assert branchwise("select", config, run, "--dry-run") == 0
        assert "expected calls: none" in capsys.readouterr().out
    for stage in ("annotate", "eval", "select"):
        assert branchwise(stage, config, run, "--dry-run") == 0
    said = capsys.readouterr().out
    assert f"all questions count as pending, because cannot reach the search server {url}" in said


def test_a_search_server_that_reports_no_digest_moves_by_its_identity(
    tmp_path: Path,
    endpoints: tuple[FakeEndpoint, FakeEndpoint],
    capsys: pytest.CaptureFixture[str],
) -> None:
    endpoint, run = endpoints[0], tmp_path / "run"

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.Response(status=404)
        hits = [{"document": passage, "score": 1.0} for passage in PASSAGES]
        return web.json_response({"result": [hits]})

    with in_thread(listening(answer)) as before, in_thread(listening(answer)) as after:
        begun = config_at(tmp_path, "begun", endpoint, **searching_at(before.address))
        assert branchwise("annotate", begun, run, *STOP) == 3
        unnamed = config_at(tmp_path, "unnamed", endpoint, **searching_at(after.address))
        capsys.readouterr()
        assert branchwise("annotate", unnamed, run) == 2
        told = capsys.readouterr().out
        assert f"index: was '{before.address}/retrieve', now '{after.address}/retrieve'" in told
        there = searching_at(after.address, identity=before.address)
        assert branchwise("annotate", config_at(tmp_path, "named", endpoint, **there), run) == 0
    assert question_ids(run, "trees") == {question["id"] for question in QUESTIONS}


def test_a_run_folder_that_was_renamed_and_moved_is_the_same_run(
    tmp_path: Path, endpoints: tuple[FakeEndpoint, FakeEndpoint]
) -> None:
    endpoint = endpoints[0]
    config = config_at(tmp_path, "config", endpoint)
    assert branchwise("annotate", config, tmp_path / "whole") == 0
    endpoint.requests.clear()
    assert branchwise("annotate", config, tmp_path / "run", *STOP) == 3
    (tmp_path / "archive").mkdir()
    moved = Path(shutil.move(tmp_path / "run", tmp_path / "archive" / "renamed"))
    assert branchwise("annotate", config, moved) == 0
    assert len(endpoint.requests) == len(stored_seeds(tmp_path / "whole")), "a call repeated"
    for table in ("pairs", "trees"):
        assert rows(moved, table) == rows(tmp_path / "whole", table)
    assert branchwise("verify", config, moved) == 0


def test_questions_of_a_renamed_run_are_refused_for_a_policy_that_was_trained_on_it(
    tmp_path: Path,
    endpoints: tuple[FakeEndpoint, FakeEndpoint],
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = config_at(tmp_path, "config", endpoints[0])
    runs = tmp_path / "datasets"
    assert branchwise("annotate", config, runs / "grown", "--limit", "2") == 0
    grown = existing_run(runs / "grown").id
    (tmp_path / "dpo").mkdir()
    record = tmp_path / "dpo" / "training.json"
    mine = f"evaluation.policies.mine={{model: policy, weights: {tmp_path / 'dpo'}}}"
    other = ("--set", "name=other", "--set", mine)  # another run, with the same questions
    record.write_text(json.dumps({"data": {"run": "grown", "run_id": grown}}))
    (runs / "grown").rename(runs / "renamed")
    assert branchwise("eval", config, runs / "run", *other) == 2
    assert f"were annotated or trained on in {runs}/renamed" in capsys.readouterr().out
    # Another run that has the name now is not the one of the training.
    record.write_text(json.dumps({"data": {"run": "renamed", "run_id": "0" * 12}}))
    assert branchwise("eval", config, runs / "run", *other) in (0, 4)
