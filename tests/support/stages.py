"""Runs stages in processes of their own, which a test can kill.

with Stages(tmp_path) as stages:
    run = stages.start("annotate", "--config", …)
    os.kill(run.pid, signal.SIGKILL)
    assert run.ended().code == -signal.SIGKILL
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from seams import Seam

REPOSITORY = Path(__file__).resolve().parents[2]
SUPPORT = REPOSITORY / "tests" / "support"
CHECK_TIMEOUT_S = 120.0
"""Anything that takes longer has hung. This is not a limit on speed."""


@dataclass(frozen=True)
class Ended:
    """How a stage's process ended: its exit code (negative: a signal) and what it printed."""

    code: int
    said: str


class Stages:
    """The warm process that forks one child per stage, one at a time (see `stage_fork`)."""

    def __init__(self, folder: Path, *modules: str, **environment: str) -> None:
        """Starts the process.

        Args:
            folder: Folder for the output of the stages and, by default, their cache.
            modules: Modules to import before the first fork, in addition to the usual ones.
            environment: Variables for the stages, in addition to `BRANCHWISE_CACHE` and a key.
        """
        self._folder = folder
        self._environment = {
            "BRANCHWISE_CACHE": str(folder / "cache"),
            "OPENAI_API_KEY": "test-key",
            **environment,
        }
        self._number = 0
        path = os.pathsep.join(map(str, (SUPPORT / "loopback_only", SUPPORT, REPOSITORY)))
        self.process = subprocess.Popen(
            [sys.executable, str(SUPPORT / "stage_fork.py"), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd=REPOSITORY,
            env={
                **os.environ,
                **self._environment,
                "PYTHONPATH": path,
                "OPENBLAS_NUM_THREADS": "1",
            },
        )

    def start(
        self,
        *arguments: object,
        seam: Seam | None = None,
        constants: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        output: Path | None = None,
        folder: Path = REPOSITORY,
    ) -> "Running":
        """Starts the process of a stage, which then waits for `Running.go`.

        Args:
            arguments: Arguments of `branchwise`.
            seam: Point at which the process dies or runs out of a resource.
            constants: Values of module constants, by full name.
            environment: Variables in addition to those of the process.
            output: File or device for its output; a new file by default.
            folder: Working folder.
        """
        self._number += 1
        output = output or self._folder / f"output-{self._number}.txt"
        self.send(
            {
                "arguments": [str(argument) for argument in arguments],
                "folder": str(folder),
                "output": str(output),
                "environment": self._environment | (environment or {}),
                "constants": constants or {},
                "seam": asdict(seam) if seam is not None else None,
            }
        )
        return Running(self, int(self.answer()["pid"]), output)

    def run(self, *arguments: object, **more: Any) -> Ended:
        """Runs a stage to its end."""
        return self.start(*arguments, **more).go().ended()

    def send(self, message: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")

    def answer(self) -> dict[str, Any]:
        """Returns the next message of the warm process.

        Raises:
            TimeoutError: If there is none within CHECK_TIMEOUT_S.
            EOFError: If the process has ended.
        """
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], CHECK_TIMEOUT_S)[0]:
            raise TimeoutError(f"no answer within {CHECK_TIMEOUT_S} s")
        line = self.process.stdout.readline()
        if not line:
            raise EOFError("the process that forks stages has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(CHECK_TIMEOUT_S)
        self.process.stdout.close()


@dataclass
class Running:
    """A stage's process."""

    stages: Stages
    pid: int
    output: Path

    def go(self) -> Self:
        """Lets the stage begin."""
        self.stages.send("go")
        return self

    def says(self, text: str) -> None:
        """Waits until the stage has printed a text.

        Raises:
            TimeoutError: If it does not within the time of a check.
        """
        latest = time.monotonic() + CHECK_TIMEOUT_S
        while text not in self._said():
            if time.monotonic() > latest:
                raise TimeoutError(f"the stage did not print {text!r}; it said: {self._said()}")
            time.sleep(0.01)

    def ended(self) -> Ended:
        """Waits for the end and returns it; kills a stage that hangs, and raises."""
        try:
            code = int(self.stages.answer()["code"])
        except TimeoutError:
            os.kill(self.pid, signal.SIGKILL)
            self.stages.answer()
            raise TimeoutError(f"the stage hung; it said: {self._said()}") from None
        return Ended(code, self._said())

    def _said(self) -> str:
        # Only regular files: reading a pipe or a device may never end.
        return self.output.read_text(errors="replace") if self.output.is_file() else ""
