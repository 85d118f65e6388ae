"""Network traffic: requests go only to the host in the recipe, and replies are bounded."""

import asyncio
import gzip
import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from durable import World, stored_seeds
from fake_endpoint import FakeEndpoint, completion
from loopback import serving
from stages import REPOSITORY, Stages
from tiny_dataset import policy, recipe
from wire import Answer, Listener, certificate, listening

from branchwise.base.errors import ConfigError, EndpointError, RetrievalError
from branchwise.engines.endpoint.openai import OpenAIEngine
from branchwise.engines.endpoint.retry import RetryPolicy
from branchwise.engines.sampling import CallIdentity, SampleRequest, Sampling
from branchwise.engines.settings import ModelSettings
from branchwise.retrieval.http_retriever import HttpRetriever
from branchwise.types import Message

pytestmark = pytest.mark.failure

KEY = "sk-canary-0123456789"
REDIRECTS = (301, 308)
REQUEST = SampleRequest(
    (Message("user", "the gold answer is Paris"),), Sampling(), CallIdentity("policy", "q", "tree")
)
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def engine(url: str, **settings: Any) -> OpenAIEngine:
    asked = {"engine": "openai", "model": "policy", "base_url": url, "server": "openai"}
    model = ModelSettings(**asked | settings)
    return OpenAIEngine(model, timeout_s=20.0, retry=RetryPolicy(base_s=0.0))


async def answering(_: web.Request) -> web.Response:
    return web.json_response(completion("stolen"))


async def searched(_: web.Request) -> web.Response:
    hit = {"document": {"id": "a", "contents": '"A"\ntext'}, "score": 1.0}
    return web.json_response({"result": [[hit]]})


def redirecting(status: int, location: str) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        body = json.dumps(completion("stolen"))
        return web.Response(status=status, headers={"Location": location}, text=body)

    return answer


@pytest.mark.parametrize("status", REDIRECTS)
async def test_a_redirected_call_does_not_reach_another_host(status: int) -> None:
    async with listening(answering) as other:
        target = f"{other.address}/v1/chat/completions?leak={KEY}"
        async with (
            listening(redirecting(status, target)) as server,
            engine(f"{server.address}/v1") as asked,
        ):
            with pytest.raises(EndpointError, match=f"answered {status}.*redirect") as caught:
                await asked.sample(REQUEST)
    assert caught.value.fatal
    assert f"redirect to {other.address}. Redirects" in str(caught.value)
    assert "set base_url" in str(caught.value)
    assert KEY not in str(caught.value)
    assert "completions" not in str(caught.value)
    assert other.requests == []
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", REDIRECTS)
async def test_a_redirected_model_list_does_not_reach_another_host(status: int) -> None:
    async with (
        listening(answering) as other,
        listening(redirecting(status, f"{other.address}/v1/models")) as server,
    ):
        with pytest.raises(EndpointError, match=f"answered {status}.*redirect") as caught:
            async with engine(f"{server.address}/v1", server="auto"):
                pytest.fail("entered")
    assert caught.value.fatal
    assert other.requests == []


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("/v2/chat", "another path of http://127.0.0.1:"),
        ("//user:hunter2@evil.example:8443/hunter2?hunter2", "http://evil.example:8443. Redirects"),
        ("https://[::1]:9/x", "https://[::1]:9. Redirects"),
        (f"http://{KEY}.evil.example/", "http://[key].evil.example. Redirects"),
        ("javascript:hunter2", "an address that cannot be read"),
        ("http://[::1", "an address that cannot be read"),
        ("", "another path of http://127.0.0.1:"),
    ],
)
async def test_redirect_errors_name_only_scheme_and_host_of_the_target(
    location: str, message: str
) -> None:
    async with (
        listening(redirecting(307, location)) as server,
        engine(f"{server.address}/v1") as asked,
    ):
        with pytest.raises(EndpointError, match="redirect") as caught:
            await asked.sample(REQUEST)
    assert f"a redirect to {message}" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("status", REDIRECTS)
async def test_a_redirected_search_does_not_reach_another_host(status: int) -> None:
    async with (
        listening(searched) as other,
        listening(redirecting(status, f"{other.address}/retrieve")) as server,
    ):
        with pytest.raises(RetrievalError, match=f"answered {status}.*redirect") as caught:
            await HttpRetriever(server.address).search("Paris", 3)
    assert other.address in str(caught.value)
    assert other.requests == []


def test_a_run_ends_when_its_endpoint_redirects_and_resumes_later(
    world: World, tmp_path: Path
) -> None:
    run, before = tmp_path / "run", len(world.endpoint.requests)
    with serving(lambda _: "stolen") as other:

        def redirecting_later(request: dict[str, Any]) -> Any:
            if len(world.endpoint.requests) < before + 30:
                return policy(request)
            url = f"{other.base_url}/chat/completions"
            return web.Response(status=307, headers={"Location": url})

        with world.scripted(redirecting_later):
            ended = world.annotate(run)
        assert other.requests == []
    assert ended.code == 1, ended.said
    assert "answered 307, a redirect to http://127.0.0.1:" in ended.said
    assert stored_seeds(run)
    world.finish(run)


async def test_cookies_are_not_sent_back() -> None:
    async def setting_cookie(_: web.Request) -> web.Response:
        baked = web.json_response(completion("Paris"))
        baked.set_cookie("session", "who-you-are")
        return baked

    async with listening(setting_cookie) as server:
        # For a numeric host, aiohttp never keeps cookies.
        named = server.address.replace("127.0.0.1", "localhost")
        async with engine(f"{named}/v1") as asked:
            for _ in range(3):
                await asked.sample(REQUEST)
    assert len(server.headers) == 3
    assert not any("Cookie" in sent for sent in server.headers)


@pytest.mark.parametrize("host", ["127.0.0.2", "[::1]", "localhost"])
async def test_loopback_addresses_bypass_the_proxy(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listened = {"[::1]": "::1", "127.0.0.2": "127.0.0.2"}.get(host, "127.0.0.1")
    async with listening(answering) as proxy:
        for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(variable, proxy.address)
        async with listening(answering, listened) as server:
            url = f"http://{host}:{server.address.rpartition(':')[2]}/v1"
            async with engine(url) as asked:
                assert (await asked.sample(REQUEST)).text == "stolen"
    assert proxy.requests == []
    assert len(server.requests) == 1


async def test_a_proxy_sees_http_requests_and_netrc_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A proxy sees whole HTTP requests, as the guide says. A password in ~/.netrc is not sent."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine model.invalid login me password hunter2\n")
    monkeypatch.setenv("NETRC", str(netrc))
    async with listening(answering) as proxy, listening(searched) as search_proxy:
        monkeypatch.setenv("http_proxy", proxy.address.replace("//", "//me:pass%40word@"))
        async with engine("http://model.invalid/v1") as asked:
            await asked.sample(REQUEST)
        monkeypatch.setenv("http_proxy", search_proxy.address)
        await HttpRetriever("http://search.invalid/retrieve").search("Paris", 3)
    assert proxy.requests == [("POST", "http://model.invalid/v1/chat/completions")]
    assert proxy.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert proxy.headers[0]["Proxy-Authorization"] == "Basic bWU6cGFzc0B3b3Jk"
    assert search_proxy.requests == [("POST", "http://search.invalid/retrieve")]
    assert "Authorization" not in search_proxy.headers[0]


async def test_an_unreachable_proxy_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    async with engine("http://model.invalid/v1") as asked:
        with pytest.raises(EndpointError, match="the proxy for") as caught:
            await asked.sample(REQUEST)
    assert caught.value.fatal


@needs_openssl
async def test_the_recommended_ssl_cert_file_works_for_engine_and_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, context = certificate(tmp_path)
    async with (
        listening(answering, trust=context) as server,
        listening(searched, trust=context) as search,
    ):
        url = f"{server.address}/v1"
        async with engine(url) as asked:
            with pytest.raises(EndpointError, match="set SSL_CERT_FILE") as caught:
                await asked.sample(REQUEST)
        assert caught.value.fatal
        monkeypatch.setenv("SSL_CERT_FILE", str(kept))
        async with engine(url) as asked:
            assert (await asked.sample(REQUEST)).text == "stolen"
        assert await HttpRetriever(search.address).search("Paris", 3)
        for unusable in (tmp_path / "missing.pem", tmp_path / "key.pem"):
            monkeypatch.setenv("SSL_CERT_FILE", str(unusable))
            with pytest.raises(ConfigError, match=r"SSL_CERT_FILE.*cannot be read"):
                await engine(url).__aenter__()


HUGE = 200_000_000
CHILD = """
import asyncio, re, sys
from pathlib import Path
from branchwise.engines.endpoint.openai import OpenAIEngine
from branchwise.engines.sampling import CallIdentity, SampleRequest, Sampling
from branchwise.types import Message
from branchwise.engines.settings import ModelSettings
from branchwise.retrieval.http_retriever import HttpRetriever
from branchwise.base.errors import BranchwiseError

def held():
    # Not `getrusage`: a child's maximum starts at its parent's memory.
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

async def ask(url):
    settings = ModelSettings(
        engine="openai", model="policy", base_url=f"{url}/v1", server="openai"
    )
    call = SampleRequest((Message("user", "x"),), Sampling(), CallIdentity("policy", "q", "t"))
    async with OpenAIEngine(settings) as engine:
        for call in (engine.sample(call), engine.check(), HttpRetriever(url).search("q", 1)):
            try:
                await call
            except BranchwiseError as error:
                print("refused:", str(error)[:300])

async def both():
    await ask(sys.argv[1])
    before = held()
    await ask(sys.argv[2])
    print(held() - before)

asyncio.run(both())
"""


def packed(how: str, status: int) -> Answer:
    """Answers with 200 MB of JSON, compressed or not."""
    pack: dict[str, Callable[[bytes], bytes]] = {
        "gzip": lambda body: gzip.compress(body, 1),
        "deflate": lambda body: zlib.compress(body, 1),
        "identity": lambda body: body,
    }
    huge = pack[how](json.dumps(completion("x" * HUGE)).encode())

    async def answer(_: web.Request) -> web.Response:
        headers = {"Content-Encoding": how, "Content-Type": "application/json"}
        return web.Response(status=status, headers=headers, body=huge)

    return answer


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc for peak memory")
@pytest.mark.parametrize(
    ("how", "status"), [("gzip", 200), ("gzip", 400), ("deflate", 200), ("identity", 400)]
)
async def test_a_reply_of_200_mb_is_refused_with_little_memory(how: str, status: int) -> None:
    async with listening(answering) as usual, listening(packed(how, status)) as huge:
        child = await asked_by_a_child(usual, huge)
    *said, grown = child.splitlines()
    assert int(grown) < 64, f"{grown} MiB more than after replies of the usual size"
    refused = [line for line in said if huge.address in line]
    assert len(refused) == 3, said
    if status == 200:
        assert all("more than 8,388,608 bytes" in line for line in refused)
    # `check` draws a reply if the list of models is refused.
    calls = 3 if status == 200 else 4
    assert len(huge.requests) == calls, "a reply refused for its size must not be requested again"


async def asked_by_a_child(usual: Listener, huge: Listener) -> str:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CHILD, usual.address, huge.address),
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
    )
    said, _ = await child.communicate()
    assert child.returncode == 0
    return said.decode()


def test_overlong_replies_are_stored_as_empty(stages: Stages, tmp_path: Path) -> None:
    def endless(request: dict[str, Any]) -> Any:
        if request["seed"] % 4:
            return policy(request)
        return completion("x" * 2_000_000, model="m" * 2_000_000, finish_reason="f" * 2_000_000)

    with serving(endless) as endpoint:
        config = recipe(tmp_path, endpoint.base_url, mcts={"iterations": 4, "max_children": 2})
        run = tmp_path / "run"
        done = stages.run("annotate", "--config", config, "--run", run)
        assert done.code == 0, done.said
        overlong_ones = sum(request["seed"] % 4 == 0 for request in endpoint.requests)
    reported = [
        line
        for line in done.said.splitlines()
        if "far above the token limit" in line and "│" in line
    ]
    assert len(reported) == 1, done.said
    assert overlong_ones
    assert str(overlong_ones) in reported[0].replace("│", " ").split()
    held = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    assert held < 2_000_000


async def test_texts_are_kept_up_to_65536_characters() -> None:
    texts = ["x" * 65_536, "x" * 65_537]
    async with (
        FakeEndpoint(lambda _: texts.pop(0)) as server,
        engine(server.base_url) as asked,
    ):
        kept, refused = [await asked.sample(REQUEST) for _ in range(2)]
    assert (len(kept.text), kept.stop_reason) == (65_536, "stop")
    assert (refused.text, refused.finish_reason, refused.stop_reason) == ("", "length", "overlong")
