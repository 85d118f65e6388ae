"""A real vLLM server instead of the embedded engine, for single calls and for whole stages.

Run by `make test-vllm`. Everything runs on the CPU with the shipped policy, an adapter on the
packaged model.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from branchwise.agent.reasonrag import ReasonRAG
from branchwise.agent.state import State
from branchwise.engines.embedded.openvino import embedded_engine
from branchwise.engines.endpoint.openai import OpenAIEngine
from branchwise.engines.sampling import (
    CallIdentity,
    Completion,
    Engine,
    SampleRequest,
    Sampling,
    Structure,
)
from branchwise.engines.settings import ModelSettings
from branchwise.engines.vllm.command import installed_vllm
from branchwise.engines.vllm.served_weights import served_digest
from branchwise.engines.vllm.vllm_engine import KEY_VARIABLE, VllmEngine
from branchwise.storage.parts import read_parts
from branchwise.types import Message

pytestmark = pytest.mark.vllm

REPOSITORY = Path(__file__).resolve().parents[2]
LOOPBACK_ONLY = REPOSITORY / "tests" / "support" / "loopback_only"
POLICY = str(REPOSITORY / "models" / "smollm2-135m-atlas")
SETTINGS = ModelSettings(engine="vllm", model=POLICY)
STEP_TOKENS = 2048
"""Most tokens that the server takes in one step; equal to its longest prompt, as on any CPU."""
CHECK_TIMEOUT_S = 1800.0
"""Anything that takes longer has hung. This is not a limit on speed."""

CITIES = ("Lyon", "Osaka", "Lima", "Kyoto", "Perth", "Turin", "Quito", "Porto", "Leeds", "Accra")
GREEDY = Sampling(temperature=0.0, top_p=1.0, max_new_tokens=24)
ANSWER = Structure("regex", "<answer>(yes|no|perhaps)</answer>")
SCORE = Structure(
    "json_schema",
    '{"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"], '
    '"additionalProperties": false}',
)


@dataclass(frozen=True)
class Observed:
    """Results of one engine and its server.

    Lists of texts are in the order of `CITIES`. The prompts of `crowd` were sent at once and have
    more tokens than the server takes in one step. `interrupted` was in flight when its server was
    killed.
    """

    trained: list[str]
    base: list[str]
    embedded: list[str]
    continued: tuple[Completion, Completion]
    constrained: str
    scored: str
    cached_tokens: int
    repeated: tuple[str, str]
    crowd: list[Completion]
    addresses: set[str]
    interrupted: list[Completion]
    lives: int
    survivors: bool  # whether processes were left after it was killed or stopped


def asking(city: str, sampling: Sampling = GREEDY, **changes: Any) -> SampleRequest:
    """Returns the request for the first step of a question about a city."""
    messages = ReasonRAG().messages(State(f"In which country does {city} lie?"), last=False)
    request = SampleRequest(messages, sampling, CallIdentity("policy", city, "0"))
    return replace(request, **changes)


async def texts(engine: Engine, requests: Sequence[SampleRequest]) -> list[str]:
    return [one.text for one in await drawn(engine, requests)]


async def drawn(engine: Engine, requests: Sequence[SampleRequest]) -> list[Completion]:
    return await asyncio.gather(*map(engine.sample, requests))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def observed(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Observed:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("BRANCHWISE_CACHE", str(cache))
        return asyncio.run(
            asyncio.wait_for(_observed(tmp_path_factory.mktemp("logs")), CHECK_TIMEOUT_S)
        )


async def _observed(logs: Path) -> Observed:
    asked = [asking(city) for city in CITIES]
    prefixed = asking("Lyon", prefix=("<query>The country",), tokens=True)
    async with embedded_engine(ModelSettings(model=POLICY)) as engine:
        embedded = await texts(engine, asked)
        (continued,) = await drawn(engine, [prefixed])
    connect = partial(OpenAIEngine, max_concurrency=32, timeout_s=300.0)
    steps = ("--max-model-len", str(STEP_TOKENS), "--max-num-batched-tokens", str(STEP_TOKENS))
    settings = SETTINGS.model_copy(update={"server_args": steps})
    async with VllmEngine(settings, connect, logs) as engine:
        assert engine.server is not None
        base = ModelSettings(
            engine="openai",
            base_url=engine.server.base_url,
            model=f"{engine.server.model}-base",
            api_key_env=KEY_VARIABLE,
        )
        async with connect(base) as untrained:
            plain = await texts(untrained, asked)
            (constrained,) = await texts(untrained, [asking("Lyon", structure=ANSWER)])
            (scored,) = await texts(untrained, [asking("Lyon", structure=SCORE)])
        trained = await texts(engine, asked)
        hot = asking("Quito", Sampling(temperature=1.5, max_new_tokens=24))
        first = await engine.server.healthy()
        crowded = await drawn(engine, crowd())
        (again,) = await drawn(engine, crowd()[:1])
        seen = Observed(
            trained=trained,
            base=plain,
            embedded=embedded,
            continued=(continued, (await drawn(engine, [prefixed]))[0]),
            constrained=constrained,
            scored=scored,
            cached_tokens=again.usage.cached_tokens,
            repeated=((await texts(engine, [hot]))[0], (await texts(engine, [hot]))[0]),
            crowd=crowded,
            addresses=addresses_of(first.pid),
            interrupted=await _interrupted(engine, first.pid),
            lives=(await engine.server.healthy()).number,
            survivors=is_alive(first.pid),
        )
        last = await engine.server.healthy()
    _print(seen)
    return replace(seen, survivors=seen.survivors or is_alive(last.pid))


def crowd() -> list[SampleRequest]:
    """Returns prompts with more tokens than one step; each has its own seed and beginning."""
    sampling = Sampling(temperature=0.8, max_new_tokens=4)
    return [
        SampleRequest(
            (Message("user", f"{number}: " + f"{number} rivers and {number} hills. " * 40),),
            sampling,
            CallIdentity("policy", str(number), "crowd"),
        )
        for number in range(8)
    ]


async def _interrupted(engine: VllmEngine, pid: int) -> list[Completion]:
    """Kills the server while draws are in flight; returns their completions."""
    endless = Structure("regex", "[a-z ]{400}")
    asked = [asking(city, Sampling(max_new_tokens=64), structure=endless) for city in CITIES[:6]]
    long = [asyncio.ensure_future(engine.sample(request)) for request in asked]
    await engine.sample(asking("Lyon"))
    assert not any(one.done() for one in long), "the draws must still be in flight"
    os.kill(pid, signal.SIGKILL)
    return await asyncio.gather(*long)


def addresses_of(pid: int) -> set[str]:
    """Returns local and remote addresses of all sockets of a server and its children."""
    server = psutil.Process(pid)
    sockets = [c for p in (server, *server.children(recursive=True)) for c in p.net_connections()]
    return {end.ip for socket in sockets for end in (socket.laddr, socket.raddr) if end}


def is_alive(group: int) -> bool:
    """Returns whether any process of the group is alive."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _print(seen: Observed) -> None:
    vllm = installed_vllm()
    count = len(CITIES)
    same = sum(a == b for a, b in zip(seen.trained, seen.embedded, strict=True))
    differ = sum(a != b for a, b in zip(seen.trained, seen.base, strict=True))
    tokens = sum(c.usage.input_tokens for c in seen.crowd)
    print(
        f"\n{vllm.package} {vllm.version}: greedy replies of the adapter equal the embedded "
        f"engine's (F16) in {same} of {count} prompts, and differ from the base's in {differ}\n"
        f"  base {seen.base[0]!r}\n  adapter {seen.trained[0]!r}\n"
        f"prefix continued as {seen.continued[1].text!r}, by the embedded engine "
        f"{seen.continued[0].text!r}\n"
        f"constraints held: {seen.constrained!r}, {seen.scored!r}\n"
        f"a prompt of {seen.crowd[0].usage.input_tokens} tokens asked again: "
        f"{seen.cached_tokens} cached (in blocks of 128)\n"
        f"{len(seen.crowd)} prompts with seeds, {tokens} tokens at once: all answered\n"
        f"server killed with {len(seen.interrupted)} calls under way: all answered, in attempts "
        f"{sorted(c.attempts for c in seen.interrupted)}; it was started {seen.lives} times",
        flush=True,
    )


def test_the_adapter_changes_the_replies(observed: Observed) -> None:
    pairs = list(zip(observed.trained, observed.embedded, observed.base, strict=True))
    assert sum(trained == embedded for trained, embedded, _ in pairs) >= 0.75 * len(pairs)
    assert sum(trained != base for trained, _, base in pairs) >= 0.75 * len(pairs)


def test_a_prefix_is_continued_as_by_the_embedded_engine(observed: Observed) -> None:
    embedded, served = observed.continued
    assert served.text == embedded.text
    assert "<query>" not in served.text
    assert served.prompt_ids == embedded.prompt_ids
    assert served.token_ids == embedded.token_ids
    assert served.logprobs == pytest.approx(embedded.logprobs, abs=0.05)


def test_constraints_override_the_preference_of_the_model(observed: Observed) -> None:
    assert re.fullmatch(ANSWER.value, observed.constrained)
    assert not any("<answer>" in text for text in observed.base)
    assert isinstance(json.loads(observed.scored)["score"], int)


def test_prefixes_are_cached_and_a_seed_repeats_its_reply(observed: Observed) -> None:
    assert observed.cached_tokens > 0
    assert observed.repeated[0] == observed.repeated[1]


def test_a_crowd_of_seeded_prompts_does_not_crash_the_server(observed: Observed) -> None:
    assert sum(c.usage.input_tokens for c in observed.crowd) > STEP_TOKENS
    assert all(c.attempts == 1 for c in observed.crowd)


def test_calls_survive_a_killed_server_which_leaves_no_process(observed: Observed) -> None:
    assert len(observed.interrupted) == 6
    assert all(c.attempts > 1 for c in observed.interrupted)
    assert observed.lives == 2
    assert not observed.survivors


def test_the_server_stays_on_loopback(observed: Observed) -> None:
    assert observed.addresses == {"127.0.0.1"}


def test_annotate_and_eval_run_on_a_server_that_they_start(cache: Path, tmp_path: Path) -> None:
    run = tmp_path / "datasets" / "served"
    annotated = branchwise("annotate", run, cache)
    assert annotated["questions_done"] == 2
    trees = read_parts(run, "trees", ["policy_digest", "action", "cached_tokens"]).to_pylist()
    assert {row["policy_digest"] for row in trees} == {served_digest(SETTINGS)}
    assert all(row["action"] != "invalid" for row in trees), (
        "structured decoding must prevent invalid actions"
    )
    assert sum(row["cached_tokens"] for row in trees) > 0

    (log,) = (run / "logs").glob("vllm-*.log")
    written = log.stat().st_size
    assert branchwise("annotate", run, cache)["calls"] == annotated["calls"]
    assert log.stat().st_size == written, "a finished run must start no server"

    table = branchwise("eval", run, cache)
    (row,) = table["policies"]
    assert (row["n"], row["invalid"]) == (3, 0.0)
    print(
        f"\nchain: annotate {annotated['questions_done']} questions, {annotated['calls']} calls, "
        f"{annotated['pairs']} pairs; eval {row['n']} questions, F1 {row['f1']:.2f}",
        flush=True,
    )


def branchwise(stage: str, run: Path, cache: Path) -> dict[str, Any]:
    """Runs a stage in a process that can reach only loopback addresses; returns its totals."""
    settings = {
        "policy.engine": "vllm",
        "policy.model": POLICY,
        "data.cities": 2000,
        "data.limit": 2,
        "mcts.iterations": 4,
        "pairs.min_outcomes": 1,
        "limits.timeout_s": 300,
        "evaluation.limit": 3,
        "evaluation.policies": "{start: '" + POLICY + "'}",
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    config = str(REPOSITORY / "configs" / "atlas.yaml")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "branchwise", stage, "--config", config),
            *("--run", str(run), "--json", *words),
        ],
        cwd=run.parents[1],
        env={
            **os.environ,
            "BRANCHWISE_CACHE": str(cache),
            "PYTHONPATH": f"{LOOPBACK_ONLY}:{REPOSITORY}",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=CHECK_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    totals: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return totals
