"""A vLLM server on this machine: starts it, restarts it after a crash, stops it.

It listens on loopback, in a process group of its own (Ctrl-C at the terminal does not reach it),
tied to this process (`engines.parent_bound_process`), so the server never outlives it.
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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from storage.errors import BranchwiseError, ConfigError, EndpointError, StorageError
from storage.http import HttpClient, Redirected, ReplyTooLarge
from storage.terminal_escape import inert

START_LIMIT_S = 1800.0
"""Until a server must be healthy: large weights and compiling take minutes."""
DYING_S = 30.0
"""vLLM stops answering this long, at most, before its process ends."""
LOOK_EVERY_S = 0.25
LOOK_TIMEOUT_S = 10.0

_PARENT_BOUND = Path(__file__).with_name("parent_bound_process.py")
_LAST_LINES, _ERRORS, _LINE_SHOWN, _LOG_SHOWN = 8, 4, 300, 1 << 18
_ERROR = re.compile(r"\b[A-Z]\w*(Error|Exception)\b")
# Last line of every vLLM log.
_NOISE = re.compile(r"nanobind|^\s*- (leaked|\.\.\. skipped)|resource_tracker|\[shutdown\]")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestartLimit:
    """A server that dies more than `deaths` times in `within_s` seconds is given up."""

    deaths: int = 3
    within_s: float = 600.0


@dataclass(frozen=True, slots=True, eq=False)
class Life:
    """One process of a server; `ended` is done when it exits, with the reason."""

    number: int
    pid: int
    process: asyncio.subprocess.Process
    ended: asyncio.Task[str]


def free_port() -> int:
    """Returns a free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class VllmServer:
    """A server that runs as long as the `async with` block.

    Attributes:
        model: Model name in requests.
        base_url: Address of the API; it survives restarts.
        log_file: File for the server's output; appended to.
        life: the process that runs now, or ran last; None before the first.
        adapters: folders of LoRAs by name, which every further process is started with.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        environment: Mapping[str, str],
        log_file: Path,
        *,
        model: str,
        port: int | None = None,
        limit: RestartLimit | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        """Returns a free port of 127.0.0.1.

        Args:
            command: the server's, for a port.
            environment: the server's, whole.
            log: File for the server's output; folders are created.
            model: the name that it serves.
            port: Port to listen on; None for a free one.
            limit: how often it may die.
            log: Callback for messages about its start; defaults to the log.
        """
        self._port = port or free_port()
        self._command = [str(word) for word in command(self._port)]
        self._environment = dict(environment)
        self._limit = limit or RestartLimit()
        self._log = log or _log.info
        self._deaths: deque[float] = deque()
        self._hold: int | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        self._given_up: str | None = None
        self._log_begin = 0
        self.log_file = log_file
        self.model = model
        self.base_url = f"http://127.0.0.1:{self._port}/v1"
        self.life: Life | None = None
        self.adapters: dict[str, Path] = {}

    async def __aenter__(self) -> Self:
        """Starts it, and waits until it is healthy.

        Raises:
            EndpointError: If it died or was not healthy in time; with its last words.
            ConfigError: If the port is taken.
            StorageError: If the log cannot be written.
        """
        self._log(f"vLLM is started for {self.model}; it writes to {self.log_file}")
        try:
            await self._live()
        except BaseException:
            await self._end()
            raise
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self._end()

    async def healthy(self) -> Life:
        """Waits until it answers; the life that does.

        Raises:
            EndpointError: If it died too often (fatal).
        """
        await self._settled.wait()
        if self._given_up is not None or self.life is None:
            raise EndpointError(self._given_up or "the vLLM server was not started", fatal=True)
        return self.life

    async def outlived(self, life: Life) -> bool:
        """Returns whether a life has ended in which a call failed; a dying server is waited for."""
        if not life.ended.done() and not await self._answers():
            await asyncio.wait([life.ended], timeout=DYING_S)
        return life.ended.done()

    async def given_up(self) -> str:
        """Waits until it has died too often; its last words."""
        if self._keeper is not None:
            await asyncio.wait([self._keeper])
        return self._given_up or "stopped"

    async def _keep(self) -> None:
        """Restarts it after every crash, until it crashes too often."""
        try:
            self._given_up = await self._dead_for_good()
        except Exception as error:  # whoever waits for a server must hear of it
            _log.exception("the vLLM server is no longer watched")
            self._given_up = f"the vLLM server cannot be restarted: {error!r}"
        finally:
            self._settled.set()

    async def _dead_for_good(self) -> str:
        fault = await self._told()
        while self._may_restart():
            self._log(f"{fault.partition('; from its log')[0]}; restarting it")
            try:
                await self._live()
                fault = await self._told()
            except BranchwiseError as error:
                fault = str(error)
        times = f"{len(self._deaths)} times in {self._limit.within_s / 60:.0f} minutes"
        return f"the vLLM server died {times} and is given up: {fault}"

    def _may_restart(self) -> bool:
        """Counts a death; whether it was one too many."""
        now = time.monotonic()
        self._deaths.append(now)
        while self._deaths[0] < now - self._limit.within_s:
            self._deaths.popleft()
        return len(self._deaths) <= self._limit.deaths

    async def _told(self) -> str:
        """Waits for the process to exit and returns the reason."""
        assert self.life is not None
        return await asyncio.shield(self.life.ended)

    async def _live(self) -> None:
        """Begins a life; returns when it is healthy."""
        await self._end()
        self.life = life = await self._started(1 if self.life is None else self.life.number + 1)
        deadline = time.monotonic() + START_LIMIT_S
        while not await self._answers():
            if life.ended.done():
                raise EndpointError(life.ended.result(), fatal=True)
            if time.monotonic() > deadline:
                late = f"the vLLM server was not healthy after {START_LIMIT_S / 60:.0f} minutes"
                raise EndpointError(late + self._last_words(), fatal=True)
            await asyncio.wait([life.ended], timeout=LOOK_EVERY_S)
        if not life.ended.done():
            self._settled.set()
            self._log(f"vLLM answers at {self.base_url}")

    async def _started(self, number: int) -> Life:
        _check_free(self._port)
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
        return Life(number, pid, process, asyncio.create_task(self._ended(process, pid)))

    async def _ended(self, process: asyncio.subprocess.Process, pid: int) -> str:
        code = await process.wait()
        self._settled.clear()
        if code < 0 and pid:  # the tying process was killed, so what it held still runs
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        how = f"signal {code - 128}" if 128 < code < 160 else f"exit code {code}"
        return f"the vLLM server at {self.base_url} ended ({how}){self._last_words()}"

    async def _end(self) -> None:
        """Closes the pipe that ties the server to us; returns when nothing of this life is left."""
        if self._hold is not None:
            os.close(self._hold)
            self._hold = None
        if self.life is not None:
            await self._told()

    async def _answers(self) -> bool:
        """Returns whether the server reports to be healthy."""
        import aiohttp

        url = f"http://127.0.0.1:{self._port}/health"
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S), HttpClient(url) as http:
                return (await http.ask("GET", url)).status == 200
        except (aiohttp.ClientError, OSError, Redirected, ReplyTooLarge):
            return False

    def _last_words(self) -> str:
        """Returns the end of the log and errors further up; the last line is rarely the cause."""
        try:
            with self.log_file.open("rb") as file:
                file.seek(max(self._log_begin, file.seek(0, os.SEEK_END) - _LOG_SHOWN))
                text = file.read().decode("utf-8", "replace")
        except OSError as error:
            return f"; its log {self.log_file} cannot be read: {error}"
        lines = [inert(line.rstrip()) for line in text.splitlines() if not _NOISE.search(line)]
        lines = [line[:_LINE_SHOWN] for line in lines if line]
        errors = [line for line in lines[:-_LAST_LINES] if _ERROR.search(line)]
        shown = [*dict.fromkeys(errors[-_ERRORS:]), *lines[-_LAST_LINES:]]
        return "".join([f"; from its log {self.log_file}:", *(f"\n  {line}" for line in shown)])


def _check_free(port: int) -> None:
    """Another process on that port would be mistaken for our server.

    Raises:
        ConfigError: If somebody does.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"port {port} cannot be used: {error}") from error
