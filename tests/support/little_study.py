"""A study of two stages at an endpoint, for tests that kill it."""

from branchwise.runs.studies.study_runner import Study, StudyRunner


def little(runner: StudyRunner) -> None:
    """Grows the trees and relabels them."""
    runner.run_stage("annotate")
    runner.run_stage("relabel", "--label", "again")


STUDY = Study(little, trains=False)
