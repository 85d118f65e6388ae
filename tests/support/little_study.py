"""A study of two stages at an endpoint, for tests that kill it."""

from runs.study_runner import StudyRunner


def little_study(runner: StudyRunner) -> None:
    """Grow the trees, and label them again."""
    runner.run_stage("annotate")
    runner.run_stage("relabel", "--label", "again")
