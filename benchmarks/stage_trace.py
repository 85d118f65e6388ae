"""Runs a stage of a checkout, and writes its way to the first model call as JSON.

    PYTHONPATH=CHECKOUT python -P benchmarks/stage_trace.py CHECKOUT OUTPUT STAGE ARGUMENT...

`benchmarks.way_to_first_call` starts this program and defines what counts. The program imports only
the standard library and the checkout, so that it can measure older versions of the project.
"""

import importlib
import inspect
import json
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

STAGE_FUNCTIONS = {"annotate": "annotate", "eval": "evaluate"}
"""Function in `pipelines` that runs a stage."""
ENGINE_ROOM, ENGINE_METHOD = "engines", "sample"


class Function(NamedTuple):
    """A function of the project; `name` is `module:qualified name`."""

    room: str
    name: str
    line: int

    @property
    def own_name(self) -> str:
        return self.name.rpartition(":")[2].rpartition(".")[2]


def room_heights(checkout: Path) -> dict[str, int]:
    """Returns the layer of each room, from 0 at the bottom, as import-linter enforces them."""
    settings = tomllib.loads((checkout / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(c["layers"] for c in settings["contracts"] if c["type"] == "layers")
    return {
        room.strip().removeprefix("branchwise."): height
        for height, layer in enumerate(reversed(layers))
        for room in layer.split("|")
    }


class Trace:
    """Records calls between project functions, in the thread that starts it.

    Attributes:
        calls: Number of calls by function, in order of the first one.
        climbs: Number of calls by caller and callee, if the callee's room is higher.
        first_call: Method of the engine that ended the trace; None before.
    """

    def __init__(self, checkout: Path, stage_function: str) -> None:
        self.calls = Counter[Function]()
        self.climbs = Counter[tuple[str, str]]()
        self.first_call: str | None = None
        self._heights = room_heights(checkout)
        self._checkout = checkout
        self._stage_function = stage_function
        self._function_of = cache(self._function)

    def start(self) -> None:
        """Waits for the stage function, and records from there."""
        sys.setprofile(self._record)

    def _function(self, code: CodeType) -> Function | None:
        """Returns a function of a room; None for other code, and for modules and class bodies."""
        path = Path(code.co_filename)
        if not code.co_flags & inspect.CO_OPTIMIZED or not path.is_relative_to(self._checkout):
            return None
        first, *inner = path.relative_to(self._checkout).with_suffix("").parts
        parts = inner if first == "branchwise" else [first, *inner]
        if not parts or parts[0] not in self._heights:
            return None
        return Function(parts[0], f"{'.'.join(parts)}:{code.co_qualname}", code.co_firstlineno)

    def _record(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not _starts(frame):
            return
        function = self._function_of(frame.f_code)
        if function is None:
            return
        if not self.calls:
            if (function.room, function.own_name) == ("pipelines", self._stage_function):
                self.calls[function] += 1
            return
        if _is_under_import(frame):
            return
        if (function.room, function.own_name) == (ENGINE_ROOM, ENGINE_METHOD):
            sys.setprofile(None)
            self.first_call = function.name
            return
        is_named = not function.own_name.startswith("<")
        if is_named:
            self.calls[function] += 1
        if is_named or function.own_name == "<lambda>":
            caller = self._caller(frame)
            if caller and self._heights[function.room] > self._heights[caller.room]:
                self.climbs[caller.name, function.name] += 1

    def _caller(self, frame: FrameType) -> Function | None:
        """Returns the nearest project function below a frame."""
        below = frame.f_back
        while below is not None:
            if caller := self._function_of(below.f_code):
                return caller
            below = below.f_back
        return None

    def as_json(self) -> dict[str, Any]:
        """Returns the recorded way."""
        return {
            "stops": [[stop.room, stop.name, count] for stop, count in self.calls.items()],
            "climbs": [[*names, count] for names, count in self.climbs.items()],
            "first_call": self.first_call,
        }


def _starts(frame: FrameType) -> bool:
    """Returns whether a frame is new: the argument of its RESUME instruction is 0.

    Generators and coroutines also give the event "call" each time that they resume.
    """
    return frame.f_code.co_code[frame.f_lasti + 1] & 3 == 0


def _is_under_import(frame: FrameType) -> bool:
    below = frame.f_back
    while below is not None:
        if below.f_code.co_filename.startswith("<frozen importlib"):
            return True
        below = below.f_back
    return False


def main() -> None:
    checkout, output, stage = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), sys.argv[3]
    # In older versions, rooms are packages of their own.
    is_package = (checkout / "branchwise").is_dir()
    module = "branchwise.cli.command_line" if is_package else "pipelines.cli"
    command_line = importlib.import_module(module)
    trace = Trace(checkout, STAGE_FUNCTIONS[stage])
    trace.start()
    try:
        command_line.main(sys.argv[3:])  # exits
    finally:
        sys.setprofile(None)
        output.write_text(json.dumps(trace.as_json()))


if __name__ == "__main__":
    main()
