"""A vLLM server on this machine: starts it, restarts it after a crash, stops it.

The server listens on loopback. It has its own process group, so Ctrl-C at the terminal does not
reach it. It is tied to this process (`engines.vllm.parent_bound_process`), so it never outlives it.
"""

import asyncio
import logging
import os
import re
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from branchwise.base import (
    BranchwiseError,
    ConfigError,
    EndpointError,
    HttpClient,
    Redirected,
    ReplyTooLarge,
    StorageError,
    terminal_safe,
)

START_LIMIT_S = 1800.0
"""Seconds until a started server must be healthy: large weights and compiling take minutes."""
DYING_S = 30.0
"""Longest time in seconds between vLLM's last answer and the end of its process."""
LOOK_EVERY_S = 0.25
LOOK_TIMEOUT_S = 10.0

_PARENT_BOUND = Path(__file__).with_name("parent_bound_process.py")
_LAST_LINES, _ERRORS, _LINE_SHOWN, _LOG_SHOWN = 8, 4, 300, 1 << 18
_ERROR = re.compile(r"\b[A-Z]\w*(Error|Exception)\b")
# Every vLLM log ends with such lines.
_NOISE = re.compile(r"nanobind|^\s*- (leaked|\.\.\. skipped)|resource_tracker|\[shutdown\]")

MAX_DEATHS, WITHIN_S = 3, 600.0
"""More deaths than this in so many seconds end the stage, or so many failed restarts in a row."""

EVERY_ADDRESS = "0.0.0.0"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class ServerProcess:
    """One process of a server; `ended` returns the reason when the process exits."""

    number: int
    pid: int
    ended: asyncio.Task[str]


_given_ports: set[int] = set()


def free_port() -> int:
    """Returns a free port of 127.0.0.1, another one for each server of this process."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _given_ports:
            _given_ports.add(port)
            return port


class VllmServer:
    """A server that runs as long as the `async with` block.

    Attributes:
        model: Model name in requests.
        base_url: Address of the API; unchanged by restarts.
        log_file: File for the server's output; appended to.
        life: Current or last process; None before the first start.
        adapters: Folders of LoRAs by name; every later process loads them at its start.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log_file: Path,
        *,
        model: str,
        host: str,
        port: int,
        log: Callable[[str], None] | None = None,
    ) -> None:
        """Starts nothing; entering the block does.

        Args:
            command: The server's command, for `port`.
            environment: Complete environment of the server.
            log_file: File for the server's output; missing folders are created.
            model: Model name in requests.
            host, port: Address and port that the server listens on.
            log: Callback for messages about the server's start; defaults to the log.
        """
        # Over loopback if it listens on all addresses, because clients cannot connect to those.
        self._host = "127.0.0.1" if host == EVERY_ADDRESS else host
        self._port = port
        self._command = list(command)
        self._environment = dict(environment)
        self._log = log or _log.info
        self._deaths: deque[float] = deque()
        self._hold: int | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        self._given_up: str | None = None
        self._log_begin = 0
        self.log_file = log_file
        self.model = model
        self.base_url = f"http://{self._host}:{self._port}/v1"
        self.life: ServerProcess | None = None
        self.adapters: dict[str, Path] = {}

    async def __aenter__(self) -> Self:
        """Starts the server, and waits until it is healthy.

        Raises:
            EndpointError: If it died or was not healthy in time; the message ends with its log.
            ConfigError: If the port is taken.
            StorageError: If the log cannot be written.
        """
        self._log(f"starting vLLM for {self.model}; its log is {self.log_file}")
        try:
            await self._live()
        except BaseException:
            await self._end()
            raise
        self._keeper = asyncio.create_task(self._supervise())
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self._end()

    async def healthy(self) -> ServerProcess:
        """Waits until the server answers; returns the process that does.

        Raises:
            EndpointError: If the server died too often (fatal).
        """
        await self._settled.wait()
        if self._given_up is not None or self.life is None:
            raise EndpointError(self._given_up or "the vLLM server was not started", fatal=True)
        return self.life

    async def outlived(self, life: ServerProcess) -> bool:
        """Returns whether the process behind a failed call has ended; waits for a dying process."""
        if not life.ended.done() and not await self._answers():
            await asyncio.wait([life.ended], timeout=DYING_S)
        return life.ended.done()

    async def given_up(self) -> str:
        """Waits until the server has died too often; returns the reason."""
        if self._keeper is not None:
            await asyncio.wait([self._keeper])
        return self._given_up or "stopped"

    async def _supervise(self) -> None:
        """Restarts the server after every crash, until it crashes too often."""
        try:
            self._given_up = await self._dead_for_good()
        except Exception as error:  # calls that wait for the server must fail, not hang
            _log.exception("monitoring of the vLLM server failed")
            self._given_up = f"the vLLM server cannot be restarted: {error!r}"
        finally:
            self._settled.set()

    async def _dead_for_good(self) -> str:
        fault, failed_restarts = await self._exit_reason(), 0
        while self._may_restart():
            self._log(f"{fault.partition('; from its log')[0]}; restarting it")
            try:
                await self._live()
                failed_restarts = 0
                fault = await self._exit_reason()
            except BranchwiseError as error:
                fault, failed_restarts = str(error), failed_restarts + 1
                if failed_restarts == MAX_DEATHS:  # slow ones are too far apart to be counted above
                    return f"{failed_restarts} restarts of the vLLM server in a row failed: {fault}"
        times = f"{len(self._deaths)} times in {WITHIN_S / 60:.0f} minutes"
        return f"the vLLM server died {times} and will not be restarted: {fault}"

    def _may_restart(self) -> bool:
        """Counts a death; returns whether the limit allows a restart."""
        now = time.monotonic()
        self._deaths.append(now)
        while self._deaths[0] < now - WITHIN_S:
            self._deaths.popleft()
        return len(self._deaths) <= MAX_DEATHS

    async def _exit_reason(self) -> str:
        """Waits for the process to exit and returns the reason."""
        assert self.life is not None
        return await asyncio.shield(self.life.ended)

    async def _live(self) -> None:
        """Starts a process; returns when it is healthy."""
        await self._end()
        self.life = life = await self._started(1 if self.life is None else self.life.number + 1)
        deadline = time.monotonic() + START_LIMIT_S
        while not await self._answers():
            if life.ended.done():
                raise EndpointError(life.ended.result(), fatal=True)
            if time.monotonic() > deadline:
                late = f"the vLLM server was not healthy after {START_LIMIT_S / 60:.0f} minutes"
                raise EndpointError(late + self._log_tail(), fatal=True)
            await asyncio.wait([life.ended], timeout=LOOK_EVERY_S)
        if not life.ended.done():
            self._settled.set()
            self._log(f"vLLM answers at {self.base_url}")

    async def _started(self, number: int) -> ServerProcess:
        _check_free(self._host, self._port)
        theirs, self._hold = os.pipe()
        loras = [f"{name}={folder}" for name, folder in self.adapters.items()]
        command = [*self._command, *(["--lora-modules", *loras] if loras else [])]
        try:
            self.log_file.parent.mkdir(parents=True, exist_ok=True)
            with self.log_file.open("ab") as log_file:
                self._log_begin = log_file.tell()
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", str(_PARENT_BOUND), *command),
                    stdin=theirs,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log_file,
                    env=self._environment,
                    start_new_session=True,
                )
        except OSError as error:
            raise StorageError(
                f"cannot start vLLM with the log {self.log_file}: {error}"
            ) from error
        finally:
            os.close(theirs)
        assert process.stdout is not None
        pid = int(await process.stdout.readline() or 0)
        return ServerProcess(number, pid, asyncio.create_task(self._ended(process, pid)))

    async def _ended(self, process: asyncio.subprocess.Process, pid: int) -> str:
        code = await process.wait()
        self._settled.clear()
        if code < 0 and pid:  # `parent_bound_process` was killed, and its command still runs
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        ending = f"signal {code - 128}" if 128 < code < 160 else f"exit code {code}"
        return f"the vLLM server at {self.base_url} ended ({ending}){self._log_tail()}"

    async def _end(self) -> None:
        """Closes the pipe that ties the server to us; returns when the process has ended."""
        if self._hold is not None:
            os.close(self._hold)
            self._hold = None
        if self.life is not None:
            await self._exit_reason()

    async def _answers(self) -> bool:
        """Returns whether the server reports that it is healthy."""
        import aiohttp

        url = f"http://{self._host}:{self._port}/health"
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S), HttpClient(url) as http:
                return (await http.ask("GET", url)).status == 200
        except (aiohttp.ClientError, OSError, Redirected, ReplyTooLarge):
            return False

    def _log_tail(self) -> str:
        """Returns the end of the log and earlier errors; the last line is rarely the cause."""
        try:
            with self.log_file.open("rb") as file:
                file.seek(max(self._log_begin, file.seek(0, os.SEEK_END) - _LOG_SHOWN))
                text = file.read().decode("utf-8", "replace")
        except OSError as error:
            return f"; its log {self.log_file} cannot be read: {error}"
        lines = [
            terminal_safe(line.rstrip()) for line in text.splitlines() if not _NOISE.search(line)
        ]
        lines = [line[:_LINE_SHOWN] for line in lines if line]
        errors = [line for line in lines[:-_LAST_LINES] if _ERROR.search(line)]
        shown = [*dict.fromkeys(errors[-_ERRORS:]), *lines[-_LAST_LINES:]]
        return "".join([f"; from its log {self.log_file}:", *(f"\n  {line}" for line in shown)])


async def enter_all(stack: AsyncExitStack, servers: Sequence[VllmServer]) -> None:
    """Starts servers at once; the stack stops them.

    Raises:
        BranchwiseError: If one does not start; the first error.
    """
    starts = map(stack.enter_async_context, servers)
    # All of them, because the stack would not stop one that still starts.
    for started in await asyncio.gather(*starts, return_exceptions=True):
        if isinstance(started, BaseException):
            raise started


def _check_free(host: str, port: int) -> None:
    """Checks that a port is free; another process there could be mistaken for our server.

    Raises:
        ConfigError: If the port is taken.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"port {port} cannot be used: {error}") from error
