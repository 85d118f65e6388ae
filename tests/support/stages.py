"""Stages in processes of their own, which a test can kill.

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
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from seams import Seam

REPOSITORY = Path(__file__).resolve().parents[2]
SUPPORT = REPOSITORY / "tests" / "support"
CHECK_TIMEOUT_S = 120.0
"""What waits longer than this has hung; nothing is measured by it."""


@dataclass(frozen=True)
class Ended:
    """How a stage's process ended: its exit code (negative: a signal) and what it printed."""

    code: int
    said: str


class Stages:
    """The warm process that forks a child a stage (`stage_fork`), one at a time."""

    def __init__(self, folder: Path, *modules: str, **environment: str) -> None:
        """Starts the process.

        Args:
            folder: Takes the output of the stages and, by default, their cache.
            modules: Imported before the first fork, in addition to those that all stages need.
            environment: Of the stages; in addition to `BRANCHWISE_CACHE` and a key.
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
        """Begin a stage; it waits for `go`.

        Args:
            arguments: of `branchwise`.
            seam: what befalls it on the way.
            constants: values of module constants, by full name.
            environment: on top of the process's own.
            output: where it prints; null for a file of its own.
            folder: where it runs.
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
        """Run a stage to its end."""
        return self.start(*arguments, **more).go().ended()

    def send(self, message: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")

    def answer(self) -> dict[str, Any]:
        """The next line of the warm process.

        Raises:
            TimeoutError: there is none.
            EOFError: the process has ended.
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
        """Let it begin."""
        self.stages.send("go")
        return self

    def ended(self) -> Ended:
        """How it ended, once it has; one that hangs is killed and told of."""
        try:
            code = int(self.stages.answer()["code"])
        except TimeoutError:
            os.kill(self.pid, signal.SIGKILL)
            self.stages.answer()
            raise TimeoutError(f"the stage hung; it said: {self._said()}") from None
        return Ended(code, self._said())

    def _said(self) -> str:
        # Not of a pipe or a device, whose reading has no end.
        return self.output.read_text(errors="replace") if self.output.is_file() else ""
