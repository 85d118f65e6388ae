"""Behaviour of the embedded engine except parity: constraints, prefixes, stops, cancelling."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from branchwise.agent.reasonrag import ReasonRAG
from branchwise.agent.state import State
from branchwise.base.errors import EndpointError
from branchwise.engines.embedded.openvino import OpenVINOEngine, _parallel_decoders, embedded_engine
from branchwise.engines.sampling import CallIdentity, SampleRequest, Sampling, Structure
from branchwise.engines.settings import ModelSettings, Precision
from branchwise.types import Message

pytestmark = pytest.mark.model

COUNT = (Message("user", "Count from one to ten, in words."),)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def packaged(cache: Path, precision: Precision) -> OpenVINOEngine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRANCHWISE_CACHE", str(cache))
        return embedded_engine(ModelSettings(model="packaged", precision=precision))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(cache: Path) -> AsyncIterator[OpenVINOEngine]:
    """Engine that is opened once for the file, as that takes seconds."""
    async with packaged(cache, "q8_0") as opened:
        yield opened


def request(
    messages: tuple[Message, ...] = COUNT,
    sampling: Sampling | None = None,
    *,
    path: str = "test",
    structure: Structure | None = None,
    prefix: tuple[str | tuple[int, ...], ...] | None = None,
) -> SampleRequest:
    greedy = Sampling(temperature=0, top_p=1, max_new_tokens=24)
    identity = CallIdentity("policy", "q", path)
    return SampleRequest(messages, sampling or greedy, identity, structure, prefix)


@pytest.mark.asyncio(loop_scope="module")
async def test_engine_serves_constraints_prefixes_stops_and_errors(engine: OpenVINOEngine) -> None:
    protocol, state = ReasonRAG(), State("Which country is Lima in?")
    structure = protocol.structure(state, last=False)
    hot = Sampling(temperature=1.5, max_new_tokens=96)
    messages = protocol.messages(state, last=False)
    constrained = await asyncio.gather(
        *(
            engine.sample(request(messages, hot, path=f"draw {draw}", structure=structure))
            for draw in range(8)
        )
    )
    free, begun = (
        await engine.sample(request()),
        await engine.sample(request(prefix=("One, two,",))),
    )
    stop = Sampling(temperature=0, top_p=1, max_new_tokens=24, stop=("four",))
    stopped = await engine.sample(request(sampling=stop, prefix=("One, two,",)))
    with pytest.raises(EndpointError, match=r"exceed the context of .* \(8192 tokens\)"):
        await engine.sample(request((Message("user", "word " * 9000),)))
    with pytest.raises(EndpointError, match="unreadable constraint"):
        await engine.sample(request(structure=Structure("regex", "(")))
    for completion in constrained:
        complete = re.fullmatch(structure.value, completion.text)
        assert bool(complete) == (completion.finish_reason == "stop"), completion
        assert completion.usage.input_tokens > 50
    assert len({c.text for c in constrained}) > 4  # draws must differ
    assert free.logprobs is not None and all(p <= 0 for p in free.logprobs)
    assert "three" in begun.text.lower() and "two" not in begun.text.lower()
    assert stopped.stop_reason == "four" and begun.text.startswith(stopped.text)
    assert "four" not in stopped.text
    assert "openvino_telemetry.main" not in sys.modules


@pytest.mark.asyncio(loop_scope="module")
async def test_a_turn_continues_with_its_sampled_token_ids(engine: OpenVINOEngine) -> None:
    sampling = Sampling(temperature=0, top_p=1, max_new_tokens=24, stop=(" five,",))
    inserted = " [documents]"
    counted = await engine.sample(request(sampling=sampling, prefix=("One, two,",)))
    assert counted.prompt_ids and counted.token_ids and counted.logprobs
    begun = ("One, two,", counted.token_ids, inserted)
    again = await engine.sample(request(sampling=sampling, prefix=begun))
    whole = engine.prompt_ids(request(prefix=(f"One, two,{counted.text} five,",)))
    assert counted.stop_reason == " five," and counted.text.endswith("four,")
    before = (*counted.prompt_ids, *counted.token_ids)
    assert tuple(whole) == before, "sampled tokens must include those of the stop string"
    assert again.prompt_ids is not None and again.prompt_ids[: len(before)] == before
    assert len(again.prompt_ids) > len(before)
    for drawn in (counted, again):
        assert len(drawn.logprobs or ()) == len(drawn.token_ids or ()) == drawn.usage.output_tokens


@pytest.mark.asyncio(loop_scope="module")
async def test_a_cancelled_request_leaves_the_batch(engine: OpenVINOEngine) -> None:
    endless = Sampling(temperature=1.0, max_new_tokens=7000)
    structure = Structure("regex", "[a-z ]+x{9000}")  # cannot end before the limit
    task = asyncio.create_task(engine.sample(request(sampling=endless, structure=structure)))
    await engine.sample(request())  # by now the endless one is in the batch
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await engine.sample(request())).text
    assert engine.in_flight == 0


async def test_a_draw_depends_on_its_seed_and_not_on_its_batch(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In F16; see `engines.embedded.openvino.PROPERTIES` for Q8_0."""
    given = watch_pipelines(monkeypatch)
    engine = packaged(cache, "f16")
    with pytest.raises(EndpointError, match="async with"):
        await engine.sample(request())
    warm = Sampling(temperature=0.8, top_p=0.95, max_new_tokens=16)
    paths = [f"draw {number}" for number in range(6)]
    async with engine:
        together = await asyncio.gather(
            *(engine.sample(request(sampling=warm, path=path)) for path in paths)
        )
        alone = [await engine.sample(request(sampling=warm, path=path)) for path in paths]
    assert [one.text for one in alone] == [one.text for one in together]
    assert len({one.text for one in alone}) > len(paths) / 2
    moved = [
        abs(one - other)
        for a, b in zip(alone, together, strict=True)
        for one, other in zip(a.logprobs or (), b.logprobs or (), strict=True)
    ]
    assert moved
    assert max(moved) < 1e-4, "a float16 cache would change them by 6e-4"
    # Every sampling thread has its own decoder: threads that share one can deadlock.
    [(main, tokenizer)] = given
    assert main["sampler_num_threads"] == tokenizer["NUM_STREAMS"] == _parallel_decoders() >= 1


Properties = tuple[dict[str, object], dict[str, object]]


def watch_pipelines(monkeypatch: pytest.MonkeyPatch) -> list[Properties]:
    """Returns the properties of model and tokenizer of every pipeline that is opened later."""
    import openvino_genai

    opened = openvino_genai.ContinuousBatchingPipeline
    given: list[Properties] = []

    def watched(path: str, scheduler: object, device: str, main: Any, tokenizer: Any) -> Any:
        given.append((main, tokenizer))
        return opened(path, scheduler, device, main, tokenizer)

    monkeypatch.setattr(openvino_genai, "ContinuousBatchingPipeline", watched)
    return given
