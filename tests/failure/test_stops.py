"""Runs that are stopped, aborted, orphaned or out of memory keep their calls and can resume."""

import os
import select
import shlex
import signal
from pathlib import Path

import pytest
from durable import Held, World, stored_seeds
from seams import Seam
from stages import CHECK_TIMEOUT_S, Running, Stages
from terminal import on_a_terminal

from branchwise.storage.parts import question_ids

pytestmark = pytest.mark.failure

ENVIRONMENT = {"OPENAI_API_KEY": "test-key"}


@pytest.fixture(scope="module")
def world(two_at_a_time: World) -> World:
    return two_at_a_time


def half_done(world: World, held: Held, run: Path, *more: str, **how: object) -> Running:
    """Starts a run; returns when some questions are finished and two wait for the endpoint."""
    running = world.start(run, *more, **how)
    assert held.full.wait(CHECK_TIMEOUT_S)
    return running


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_the_first_signal_drains_the_run(
    signum: signal.Signals, world: World, held: Held, tmp_path: Path
) -> None:
    run, before = tmp_path / "run", len(world.seeds)
    running = half_done(world, held, run)
    paid = world.seeds[before:]
    os.kill(running.pid, signum)
    held.release()
    stopped = running.ended()
    assert stopped.code == 130, stopped.said
    assert "stopping: calls in flight will finish" in stopped.said
    assert "rerun the same command" in stopped.said
    assert world.seeds[before:] == paid, "no call may start after the signal"
    assert stored_seeds(run) == set(paid), "calls in flight must be finished and stored"
    assert 0 < len(question_ids(run, "trees")) < 6, "finished questions must be committed"
    world.finish(run)


@pytest.mark.parametrize(
    "signals",
    [(signal.SIGINT, signal.SIGTERM), (signal.SIGHUP, signal.SIGINT)],
)
def test_the_second_signal_aborts_the_run(
    signals: tuple[signal.Signals, ...], world: World, held: Held, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    running = half_done(world, held, run)
    for signum in signals:
        os.kill(running.pid, signum)
    aborted = running.ended()  # the endpoint never answered the calls in flight
    assert aborted.code == 130, aborted.said
    assert "Traceback" not in aborted.said
    assert question_ids(run, "trees"), "finished questions must be committed all the same"
    held.release()
    world.finish(run)


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_closed_terminal_drains_the_run(
    more: tuple[str, ...], world: World, held: Held, tmp_path: Path
) -> None:
    """The kernel sends SIGHUP, and every later write to the terminal fails."""
    run, before = tmp_path / "run", len(world.seeds)
    world.begin()
    words = ("annotate", "--config", world.recipe, "--run", run, *more)
    with on_a_terminal(words, ENVIRONMENT) as (process, terminal):
        assert held.full.wait(CHECK_TIMEOUT_S)
        paid = world.seeds[before:]
        terminal.close()
        held.release()
        assert process.wait(CHECK_TIMEOUT_S) == 130
    assert stored_seeds(run) == set(paid), "calls in flight must be finished and stored"
    assert question_ids(run, "trees"), "finished questions must be committed"
    world.finish(run)


def test_a_run_under_nohup_survives_its_closed_terminal(
    world: World, held: Held, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = ("annotate", "--config", world.recipe, "--run", run)
    under_nohup = (
        "sh",
        "-c",
        f'exec nohup "$@" > {shlex.quote(str(tmp_path / "said"))} 2>&1',
        "sh",
    )
    with on_a_terminal(words, ENVIRONMENT, before=under_nohup) as (process, terminal):
        assert held.full.wait(CHECK_TIMEOUT_S)
        terminal.close()
        held.release()
        assert process.wait(CHECK_TIMEOUT_S) == 0
    assert len(question_ids(run, "trees")) == 6


@pytest.mark.parametrize("listening", [True, False])
def test_a_run_outlives_its_parent(
    listening: bool, world: World, held: Held, tmp_path: Path
) -> None:
    """The parent is killed; the reader of the run's output is also gone unless `listening`."""
    run, printed = tmp_path / "run", tmp_path / "printed"
    os.mkfifo(printed)
    reader = os.open(printed, os.O_RDONLY | os.O_NONBLOCK)
    with Stages(tmp_path) as parent:
        orphan = World(world.endpoint, world.recipe, parent, world.whole)
        running = half_done(orphan, held, run, output=printed)
        child = os.pidfd_open(running.pid)
        parent.process.kill()
        parent.process.wait()
    if not listening:
        os.close(reader)
    held.release()
    assert select.select([child], [], [], CHECK_TIMEOUT_S)[0], "the run must end"
    os.close(child)
    if listening:
        os.close(reader)
        assert len(question_ids(run, "trees")) == 6, "the run must finish without its parent"
    world.finish(run)


@pytest.mark.parametrize(
    "seam",
    [
        Seam("put", nth=1, then="starve"),
        Seam("put", nth=60, then="starve"),
        Seam("write", "trees/*", then="starve"),
        Seam("sql", "BEGIN IMMEDIATE", nth=3, then="starve"),
    ],
    ids=str,
)
def test_a_run_out_of_memory_stops_with_advice_and_resumes(
    seam: Seam, world: World, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    starved = world.annotate(run, seam=seam)
    assert starved.code == 1, starved.said
    assert "error: memory ran out (" in starved.said
    assert "rerun the same command" in starved.said
    assert "Traceback" not in starved.said
    world.finish(run)
