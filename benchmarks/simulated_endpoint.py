"""Serves an OpenAI-compatible endpoint with the limits of a real one, without a model.

    python -m benchmarks.simulated_endpoint [--slots 256] [--latency-s 2]

Serves `policy` and `judge` (`benchmarks.simulated_models`) on a free loopback port, prints its
address on one line, and ends with SIGTERM or with the process that started it. It serves `slots`
calls at once, each for `latency_s`; further calls wait for a slot. A reply depends only on the
request's JSON, including the seed. `GET /occupancy` returns its log: when calls came, began and
ended (seconds of the machine's monotonic clock), and how many differed.
"""

import argparse
import asyncio
import hashlib
import json
import os
import signal
import time
from array import array
from contextlib import suppress
from typing import Any

from aiohttp import web

from benchmarks.simulated_models import reply, tokens

MODELS = ("policy", "judge")


class Server:
    """Slots, and a log of the calls."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._slots = asyncio.Semaphore(options.slots)
        self._came, self._began, self._ended = array("d"), array("d"), array("d")
        self._distinct: set[bytes] = set()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers any request, directly for `web.Server`, because an application costs more."""
        if request.path.endswith("/chat/completions"):
            return await self._chat(await request.read())
        if request.path.endswith("/models"):
            listed = [{"id": model, "object": "model", "owned_by": "vllm"} for model in MODELS]
            return web.json_response({"object": "list", "data": listed})
        if request.path == "/occupancy":
            return web.json_response(self._log())
        if request.path == "/version":
            return web.json_response({"version": "0.32.0"})
        return web.Response(status=200 if request.path == "/health" else 404)

    async def _chat(self, body: bytes) -> web.StreamResponse:
        self._came.append(time.monotonic())
        request = json.loads(body)
        canonical = json.dumps(request, sort_keys=True).encode()
        chance = hashlib.blake2b(canonical, digest_size=16).digest()
        self._distinct.add(chance)
        completion = _completion(request, chance)
        async with self._slots:
            self._began.append(time.monotonic())
            if self._options.latency_s:
                await asyncio.sleep(self._options.latency_s)
            self._ended.append(time.monotonic())
        return web.json_response(completion)

    def _log(self) -> dict[str, Any]:
        return {
            "slots": self._options.slots,
            "distinct": len(self._distinct),
            "came": self._came.tolist(),
            "began": self._began.tolist(),
            "ended": self._ended.tolist(),
        }


def _completion(request: dict[str, Any], chance: bytes) -> dict[str, Any]:
    system, user = request["messages"][0]["content"], request["messages"][-1]["content"]
    text = reply(request["model"], system, user, chance)
    read, written = tokens(system) + tokens(user), tokens(text)
    return {
        "id": f"chatcmpl-{chance.hex()}",
        "object": "chat.completion",
        "created": 0,
        "model": request["model"],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        },
    }


async def _serve(options: argparse.Namespace) -> None:
    runner = web.ServerRunner(web.Server(Server(options).handle), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}/v1", flush=True)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    parent = os.getppid()
    while not stopped.is_set() and os.getppid() == parent:
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), 1.0)
    await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--latency-s", type=float, default=2.0)
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
