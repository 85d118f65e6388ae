"""A study of two stages at an endpoint, for tests that kill it."""

from runs.workflow import Lab


def little_study(lab: Lab) -> None:
    """Grow the trees, and label them again."""
    grown = lab.branchwise("annotate")
    lab.branchwise("relabel", "--label", "again", after=grown)
