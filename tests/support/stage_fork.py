"""A warm process that forks a child for each stage that it is asked to run.

Importing the modules of a stage takes seconds; forking a process that has imported them takes
milliseconds. A child is an ordinary process: it starts with one thread, can be killed by its pid,
and its exit status comes from the kernel. `stages.Stages` sends it one JSON object per line. Its
command line may name further modules to import.

    → {"arguments": ["annotate", …], "folder": FOLDER, "output": FILE, "environment": {…},
       "constants": {…}, "seam": {…} | null}
    ← {"pid": N}          the child is there and waits
    → "go"
    ← {"code": N}         it has ended; negative: by that signal
"""

import json
import os
import sys
from importlib import import_module
from typing import Any

WARM = (
    "aiohttp",
    "bm25s",
    "branchwise.engines.endpoint.openai",
    "httpx2",
    "matplotlib.pyplot",
    "openai.resources.chat.completions",
    "branchwise.pipelines.annotate.stage",
    "branchwise.cli.command_line",
    "branchwise.pipelines.curriculum.stage",
    "branchwise.pipelines.inspect.stage",
    "branchwise.pipelines.relabel.stage",
    "branchwise.retrieval.index",
    "truststore",
)


def serve() -> None:
    """Runs stages on request until standard input ends."""
    for name in (*WARM, *sys.argv[1:]):
        import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        told, go = os.pipe()
        child = os.fork()
        if not child:
            os.close(go)
            os.read(told, 1)
            _run(order)
        os.close(told)
        _answer({"pid": child})
        sys.stdin.readline()
        os.close(go)
        _, status = os.waitpid(child, 0)
        _answer({"code": os.waitstatus_to_exitcode(status)})


def _answer(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def _run(order: dict[str, Any]) -> None:
    """Runs the stage in the child and exits with its code."""
    from branchwise.cli.command_line import main

    nothing = os.open(os.devnull, os.O_RDONLY)
    # Append, so that output from before a limit on file size is kept.
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for descriptor, into in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, into)
    # New streams, like those of a process that started with these descriptors.
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", closefd=False)  # noqa: SIM115
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    code = 1
    try:
        _prepare(order)
        main(order["arguments"])
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:  # print the traceback as the interpreter would
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                code = code or 1
        os._exit(code)


def _prepare(order: dict[str, Any]) -> None:
    from seams import Seam, plant

    for name, value in order["constants"].items():
        module, _, constant = name.rpartition(".")
        getattr(import_module(module), constant)  # fails if there is no such constant
        setattr(import_module(module), constant, value)
    if order["seam"] is not None:
        plant(Seam(**order["seam"]))


if __name__ == "__main__":
    serve()
