"""The `/retrieve` client and server, against each other and against a misbehaving server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fake_endpoint import reset
from hypothesis import given
from hypothesis import strategies as st
from loopback import in_thread
from wire import listening

from branchwise.base.errors import RetrievalError
from branchwise.base.text import digest_of
from branchwise.retrieval.http_retriever import HttpRetriever, join_contents, split_contents
from branchwise.retrieval.index import open_retriever
from branchwise.retrieval.index_server import serving
from branchwise.retrieval.settings import Bm25Settings, HttpSettings
from branchwise.types import Passage

CORPUS = [
    Passage(id="a", title='The "Ada" story', text="wrote\nthe first program"),
    Passage(id="b", title="Bob", text="wrote a letter"),
]


@asynccontextmanager
async def answering(text: str, status: int = 200) -> AsyncIterator[str]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text, status=status)

    async with listening(answer) as server:
        yield server.address


async def test_server_results_equal_those_of_the_local_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # not used for loopback
    local = open_retriever(Bm25Settings(), CORPUS, tmp_path)
    async with serving(local) as url:
        remote = open_retriever(HttpSettings(kind="http", url=url), [])
        for query in ("wrote", "program", "nothing alike"):
            assert await remote.search(query, 5) == await local.search(query, 5)


async def test_scores_below_zero_are_kept_and_ordered() -> None:
    hits = ", ".join(
        f'{{"document": {{"id": "{name}", "contents": "x"}}, "score": {score}}}'
        for name, score in (("a", -3.0), ("b", -0.5), ("c", 0.0))
    )
    async with answering(f'{{"result": [[{hits}]]}}') as url:
        assert [one.id for one in await HttpRetriever(url).search("q", 2)] == ["c", "b"]


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ({"title": "France", "text": "Paris…", "contents": '"France"\nParis…'}, None),
        ({"title": "France", "text": "Paris…"}, None),
        ({"title": "France", "text": "Paris…", "contents": None}, None),
        ({"title": "France", "text": "Paris…", "contents": "Paris…"}, None),
        ({"id": 7, "contents": '"France"\nParis…'}, "7"),
        ({"_id": "d7", "title": "France", "contents": "Paris…"}, "d7"),
    ],
)
async def test_documents_without_an_id_or_contents_are_read(
    document: dict[str, Any], name: str | None
) -> None:
    reply = {"result": [[{"document": document, "score": 3.2}]]}
    async with answering(json.dumps(reply)) as url:
        (passage,) = await HttpRetriever(url).search("q", 2)
    assert (passage.title, passage.text, passage.score) == ("France", "Paris…", 3.2)
    assert passage.id == (name or digest_of("France", "Paris…"))


async def test_a_passage_without_text_is_read() -> None:
    reply = {"result": [[{"document": {"id": "3", "contents": '"France"\n'}, "score": 1}]]}
    async with answering(json.dumps(reply)) as url:
        (passage,) = await HttpRetriever(url).search("q", 2)
    assert (passage.id, passage.title, passage.text) == ("3", "France", "")


async def test_a_bad_request_is_refused_naming_the_field(tmp_path: Path) -> None:
    local = open_retriever(Bm25Settings(), CORPUS, tmp_path)
    async with serving(local) as url:
        client = HttpRetriever(url)
        with pytest.raises(RetrievalError, match=r"422.*topk"):
            await client.search("wrote", 0)


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ("busy", 503, "answered 503: busy"),
        ("<html>", 200, "no JSON"),
        ('{"answers": []}', 200, "does not follow"),
        ('{"result": [[{"document": {"id": "a"}, "score": 1}]]}', 200, "does not follow"),
        ('{"result": {}}', 200, "does not follow"),
        ('{"error": "index not loaded"}', 200, "index not loaded"),
        ('{"result": [[{"document": {"contents": "x"}, "score": NaN}]]}', 200, "not a number"),
        (
            f'{{"result": [[{{"document": {{"contents": "x"}}, "score": 1{"0" * 4000}}}]]}}',
            200,
            "does not follow",
        ),
        (
            f'{{"result": [[{{"document": {{"contents": "x"}}, "score": 1{"0" * 9000}}}]]}}',
            200,
            "no JSON",
        ),
    ],
)
async def test_bad_responses_of_the_server_raise_a_clear_error(
    text: str, status: int, message: str
) -> None:
    async with answering(text, status) as url:
        client = HttpRetriever(url, pause_s=0.0)
        with pytest.raises(RetrievalError, match=message):
            await client.search("q", 3)


async def test_temporary_faults_are_retried_up_to_four_attempts() -> None:
    hit = {"document": {"id": "a", "contents": '"A"\ntext'}, "score": 1.0}
    statuses = [0, 503, 429, 200, 503, 503, 503, 503, 404]

    async def answer(request: web.Request) -> web.StreamResponse:
        status = statuses.pop(0)
        if not status:
            return await reset(request)
        return web.json_response({"result": [[hit]]}, status=status)

    async with listening(answer) as server:
        client = HttpRetriever(server.address, pause_s=0.0)
        assert [passage.id for passage in await client.search("q", 3)] == ["a"]
        with pytest.raises(RetrievalError, match=r"503.*4 attempts") as caught:
            await client.search("q", 3)
        assert type(caught.value) is RetrievalError, "the class name is the reason in tables"
        with pytest.raises(RetrievalError, match="404"):
            await client.search("q", 3)
    assert statuses == []


async def test_an_unreachable_server_is_reported() -> None:
    async with answering("") as url:
        pass
    client = HttpRetriever(url, pause_s=0.0)
    with pytest.raises(RetrievalError, match="Check that it runs"):
        await client.search("q", 3)


@given(title=st.text(), text=st.text())
def test_contents_round_trip(title: str, text: str) -> None:
    one_line = " ".join(title.splitlines()).strip()
    assert split_contents(join_contents(one_line, text)) == (one_line, text)


def digest_at(url: str, identity: str | None = None) -> str:
    return open_retriever(HttpSettings(kind="http", url=url, identity=identity), []).digest


def test_the_digest_is_the_one_that_the_server_reports_for_its_index(tmp_path: Path) -> None:
    local = open_retriever(Bm25Settings(), CORPUS, tmp_path / "here")
    copy = open_retriever(Bm25Settings(), [*reversed(CORPUS)], tmp_path / "there")
    other = open_retriever(Bm25Settings(), CORPUS[:1], tmp_path / "here")
    with in_thread(serving(local)) as url, in_thread(serving(copy)) as moved:
        assert digest_at(url) == digest_at(moved, identity="not used") == local.digest
    with in_thread(serving(other)) as url:
        assert digest_at(url) == other.digest != local.digest


def test_the_digest_is_requested_once_and_also_inside_an_event_loop() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"digest": "abc123"})

    with in_thread(listening(answer)) as server:
        remote = open_retriever(HttpSettings(kind="http", url=f"{server.address}/a/search"), [])
        assert server.requests == []

        async def read() -> str:
            return remote.digest

        assert asyncio.run(read()) == remote.digest == "abc123"
        assert server.requests == [("GET", "/a/health")]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("nothing here", 404),
        ("no", 403),
        ("<html>", 200),
        ("[]", 200),
        ('{"status": "ok"}', 200),
        ('{"digest": 7}', 200),
        ('{"digest": ""}', 200),
        ('{"digest": "a\\nb"}', 200),
        (json.dumps({"digest": "a" * 1000}), 200),
    ],
)
def test_a_server_that_reports_no_digest_has_that_of_its_identity_or_address(
    text: str, status: int
) -> None:
    with in_thread(answering(text, status)) as url:
        assert digest_at(url) == digest_at(f"{url}/") == f"{url}/retrieve"
        assert digest_at(f"{url}/v2/search") == f"{url}/v2/search"
        assert digest_at(url, identity="wiki-2018") == "wiki-2018"
        old = "http://old.example:8001"
        assert digest_at(url, identity=old) == digest_at(url, identity=f"{old}/retrieve")
        assert digest_at(url, identity=old) == f"{old}/retrieve"


def test_a_redirected_request_for_the_digest_is_not_followed() -> None:
    async def away(_: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "http://elsewhere.example/health"})

    with in_thread(listening(away)) as server:
        assert HttpRetriever(server.address).digest == f"{server.address}/retrieve"


def test_a_digest_is_not_replaced_by_the_address_while_the_server_is_down() -> None:
    statuses = [503, 200, 503, 503, 503, 503]

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"digest": "abc123"}, status=statuses.pop(0))

    with in_thread(listening(answer)) as server:
        assert HttpRetriever(server.address, pause_s=0.0).digest == "abc123"
        with pytest.raises(RetrievalError, match=r"health answered 503.*4 attempts"):
            HttpRetriever(server.address, pause_s=0.0).digest  # noqa: B018
    assert statuses == []
    with pytest.raises(RetrievalError, match="Check that it runs"):
        HttpRetriever(server.address, pause_s=0.0).digest  # noqa: B018
