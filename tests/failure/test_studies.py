"""A study that is stopped or killed, or whose stage is killed: the same command resumes it."""

import os
import select
import signal
from pathlib import Path

import pytest
from durable import Held, World, stored_seeds
from stages import CHECK_TIMEOUT_S, Ended, Running

from branchwise.runs.studies.journal import Journal
from branchwise.storage.manifest import load_manifest, verify_manifest
from branchwise.storage.parts import question_ids

pytestmark = pytest.mark.failure

LITTLE = {"branchwise.pipelines.study.stage.STUDIES": {"little": "little_study"}}
"""Study without training, so its policy may be the test's endpoint."""


@pytest.fixture(scope="module")
def world(two_at_a_time: World) -> World:
    return two_at_a_time


def study(world: World, run: Path) -> Running:
    words = ("study", "--name", "little", "--config", world.recipe, "--run", run)
    return world.stages.start(*words, constants=LITTLE).go()


def half_done(world: World, held: Held, run: Path) -> Running:
    """Starts a study; returns when its first stage waits for the endpoint."""
    running = study(world, run)
    assert held.full.wait(CHECK_TIMEOUT_S)
    return running


def stage_of(running: Running) -> int:
    (pid,) = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    return int(pid)


def noted(run: Path) -> list[tuple[str, str, int | None]]:
    """Returns stage, event and exit code of every line of the journal."""
    events = Journal(run / "study" / "journal.jsonl").events()
    return [(one.command.split()[1], one.event, one.exit_code) for one in events]


def assert_resumes(world: World, run: Path, stopped: tuple[str, str, int | None] | None) -> None:
    """Checks that the same command finishes the study, and that a third one runs no stage."""
    before = set(stored_seeds(run))
    made = len(world.endpoint.requests)
    journal = noted(run)
    assert journal == [("annotate", "started", None), *([stopped] if stopped else [])]
    finished = study(world, run).ended()
    assert finished.code == 0, finished.said
    assert not set(world.seeds[made:]) & before, "a stored call was repeated"
    whole = [
        *journal,
        ("annotate", "started", None),
        ("annotate", "done", 0),
        ("relabel", "started", None),
        ("relabel", "done", 0),
    ]
    assert noted(run) == whole
    assert verify_manifest(run) == []
    assert load_manifest(run).rows("relabelled/again/pairs") > 0
    assert study(world, run).ended().code == 0
    assert noted(run) == whole, "no stage may run again"
    annotated = Journal(run / "study" / "journal.jsonl").by_command()[0]
    assert [event.event for event in annotated].count("started") == 2
    assert annotated[-1].exit_code == 0


@pytest.mark.parametrize(
    "signals",
    [(signal.SIGINT, signal.SIGTERM), (signal.SIGHUP, signal.SIGINT)],
)
def test_a_study_forwards_both_signals_to_its_stage(
    signals: tuple[signal.Signals, ...], world: World, held: Held, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    running = half_done(world, held, run)
    for signum in signals:  # the first one drains, the second one aborts
        os.kill(running.pid, signum)
    stopped = running.ended()  # the endpoint never answered the calls in flight
    assert stopped.code == 130, stopped.said
    assert "rerun the same command to resume" in stopped.said
    held.release()
    assert_resumes(world, run, ("annotate", "failed", 130))


def test_a_stage_ends_when_its_study_is_killed(world: World, held: Held, tmp_path: Path) -> None:
    run = tmp_path / "run"
    running = half_done(world, held, run)
    stage = os.pidfd_open(stage_of(running))
    os.kill(running.pid, signal.SIGKILL)
    assert running.ended().code == -signal.SIGKILL
    held.release()
    assert select.select([stage], [], [], CHECK_TIMEOUT_S)[0], "the stage must end with the study"
    os.close(stage)
    assert len(question_ids(run, "trees")) < 6, "the stage must not have finished on its own"
    assert_resumes(world, run, None)


def test_a_killed_stage_is_recorded_as_failed_and_an_edited_recipe_restored(
    world: World, held: Held, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    running = half_done(world, held, run)
    os.kill(stage_of(running), signal.SIGKILL)
    ended: Ended = running.ended()
    held.release()
    assert ended.code == 1, ended.said
    assert "signal 9" in ended.said
    (kept,) = (run / "study").glob("recipe-*.yaml")
    before = kept.read_text()
    kept.write_text(before.replace("alpha: 0.9", "alpha: 0.5"))
    assert kept.read_text() != before
    assert_resumes(world, run, ("annotate", "failed", -9))
    assert kept.read_text() == before
