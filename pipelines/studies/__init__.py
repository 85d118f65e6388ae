"""Recorded experiments: `make study STUDY=<name>`; one file a study, to be read top to bottom."""
