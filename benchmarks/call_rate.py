"""How many calls per second does one core make, and what limits it?

    python -m benchmarks.call_rate [--calls 4000] [--in-flight 64] [--questions 400]

Over HTTP: sends the same requests to a simulated endpoint without latency, through aiohttp alone,
the openai package alone, our engine, and our engine with the ledger. The client uses one core, the
endpoint another. In process: the real annotator (search, protocol, judge, labels, pairs) and the
real ledger, with models and retrieval that answer at once; all of it, with the ledger's thread,
uses one core. Each number is the best of `--rounds`, because other programs only ever slow it down.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from benchmarks.endpoint_process import Simulated, serving
from benchmarks.instant import InstantModel, InstantRetriever
from benchmarks.simulated_models import golden_answer, question_text
from benchmarks.workload import write_run
from branchwise.agent import ReasonRAG
from branchwise.agent.state import State
from branchwise.base.concurrent_map import map_concurrently
from branchwise.engines.ledgered import LedgeredEngine
from branchwise.engines.sampling import CallIdentity, SampleRequest, Sampling
from branchwise.retrieval import Retriever
from branchwise.runs.factories import engine_for
from branchwise.runs.prepared import Prepared
from branchwise.runs.recipe import Recipe
from branchwise.runs.recipe_file import load_recipe
from branchwise.runs.stage import StageContext
from branchwise.runs.tree_growing import annotator_for
from branchwise.sources import Data
from branchwise.storage.ledger import Ledger
from branchwise.types import Question

Ask = Callable[[SampleRequest], Awaitable[object]]
PROTOCOL = ReasonRAG()
Measure = Callable[[Ask], Awaitable[float]]
WARM_UP = 200
"""Calls before the clock starts: they open connections, and raise limits that grow with use."""


def request(number: int) -> SampleRequest:
    """Returns the annotator's request for one policy step; every number gives a different one."""
    messages = PROTOCOL.messages(State(question_text(number)), last=False)
    identity = CallIdentity("policy", f"q{number // 64}", "tree/0", number % 64)
    return SampleRequest(messages, Sampling(), identity)


def body(call: SampleRequest) -> dict[str, Any]:
    """Returns the request body."""
    messages = [{"role": m.role, "content": m.content} for m in call.messages]
    return {
        "model": "policy",
        "messages": messages,
        "temperature": call.sampling.temperature,
        "top_p": call.sampling.top_p,
        "max_tokens": call.sampling.max_new_tokens,
        "seed": call.identity.draw,
        "n": 1,
    }


async def timed(ask: Ask, calls: int, at_once: int) -> float:
    """Returns the calls per second with `at_once` in flight."""

    async def send_calls(first: int, count: int) -> None:
        numbers = iter(range(first, first + count))

        async def work() -> None:
            for number in numbers:
                await ask(request(number))

        await asyncio.gather(*(work() for _ in range(at_once)))

    await send_calls(0, WARM_UP)
    start = time.perf_counter()
    await send_calls(WARM_UP, calls)
    return calls / (time.perf_counter() - start)


async def bare(recipe: Recipe, measure: Measure) -> float:
    """Measures aiohttp alone: builds and sends a request, and reads its reply as JSON."""
    import aiohttp

    url = f"{recipe.policy.base_url}/chat/completions"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(call: SampleRequest) -> object:
            async with session.post(url, json=body(call)) as response:
                return await response.json()

        return await measure(ask)


async def package(recipe: Recipe, measure: Measure) -> float:
    """Measures the openai package alone, on its own aiohttp client."""
    import openai

    http = openai.DefaultAioHttpClient(trust_env=False)
    async with openai.AsyncOpenAI(
        api_key="none", base_url=recipe.policy.base_url, max_retries=0, http_client=http
    ) as client:
        return await measure(lambda call: client.chat.completions.create(**body(call)))


async def engine(recipe: Recipe, measure: Measure) -> float:
    """Measures our engine alone."""
    async with engine_for(recipe.policy, recipe.limits) as policy:
        return await measure(policy.sample)


async def ledgered(recipe: Recipe, measure: Measure) -> float:
    """Measures our engine with the ledger: a reply counts when it is on disk."""
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "ledger.sqlite") as ledger:
        async with LedgeredEngine(engine_for(recipe.policy, recipe.limits), ledger) as policy:
            return await measure(policy.sample)


OVER_HTTP = {
    "aiohttp alone": bare,
    "openai package alone": package,
    "our engine": engine,
    "our engine and the ledger": ledgered,
}


class WithInstantRetriever(Prepared):
    """A stage's parts, with a retriever that takes no time."""

    @cached_property
    def retriever(self) -> Retriever:
        return InstantRetriever()


async def in_process(recipe: Recipe, count: int) -> float:
    """Returns the annotator's calls per second."""
    texts = [question_text(number) for number in range(count)]
    questions = [
        Question(id=f"q{number}", source="made", question=text, answers=(golden_answer(text),))
        for number, text in enumerate(texts)
    ]
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "ledger.sqlite") as ledger:
        policy = LedgeredEngine(InstantModel("policy"), ledger)
        judge = LedgeredEngine(InstantModel("judge"), ledger)
        context = StageContext(recipe, Path(folder))
        models = recipe.annotating_models
        prepared = WithInstantRetriever(context, recipe, Data((), (), {}), models)
        annotator = annotator_for(prepared, {"policy": policy, "judge": judge})
        start = time.perf_counter()
        async for annotated in map_concurrently(
            questions, annotator.annotate, recipe.limits.questions_in_flight(recipe.policy)
        ):
            assert annotated.failure is None, annotated.failure
        return ledger.totals().calls / (time.perf_counter() - start)


def pin(endpoint: Simulated) -> str:
    """Puts this process on one core and the endpoint on another; returns a description."""
    *endpoint_cores, core = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(endpoint.pid, endpoint_cores or {core})
    os.sched_setaffinity(0, {core})
    endpoint_place = "the endpoint on another" if endpoint_cores else "shared with the endpoint"
    return f"one core, {endpoint_place}"


def best(measured: Callable[[], Coroutine[Any, Any, float]], rounds: int) -> float:
    return max(asyncio.run(measured()) for _ in range(rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=4000)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--questions", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    measure = partial(timed, calls=options.calls, at_once=options.in_flight)
    with tempfile.TemporaryDirectory() as folder, serving("--latency-s", "0") as endpoint:
        limits = {"max_concurrency": options.in_flight}
        recipe = load_recipe(write_run(Path(folder), endpoint.base_url, 1, {"limits": limits}))
        print(f"calls per second, {pin(endpoint)}; {options.in_flight} in flight over HTTP\n")
        print("| client | calls/s | µs per call |\n|---|---|---|")
        for name, way in OVER_HTTP.items():
            show(name, best(partial(way, recipe, measure), options.rounds))
        in_one = partial(in_process, recipe, options.questions)
        show("in process: annotator, ledger, instant models", best(in_one, options.rounds))


def show(name: str, rate: float) -> None:
    print(f"| {name} | {rate:,.0f} | {1e6 / rate:.0f} |", flush=True)


if __name__ == "__main__":
    main()
