"""Which names are those of secrets, and what is kept of a command line."""

import pytest

from runs.folder import environment_facts, flat
from runs.recipe import Recipe
from storage.secret_names import names_secret, redacted_command


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "policy.api_key",
        "apiKey",
        "APIKEY",
        "openai_api_keys",
        "--api-key",
        "--hf-token",
        "access_token",
        "accessToken",
        "judge.password",
        "db-password",
        "mypassword",
        "client_secret",
        "Authorization",
        "aws.credentials",
    ],
)
def test_of_secrets(name: str) -> None:
    assert names_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *flat(Recipe(name="run").model_dump(mode="json")),
        "judge.api_key_env",
        "limits.max_tokens",
        "max_new_tokens",
        "--max-num-batched-tokens",
        "--long-prefill-token-threshold",
        "--tokenizer",
        "monkey",
        "key.name",
    ],
)
def test_of_no_secrets(name: str) -> None:
    assert not names_secret(name)


def test_of_a_command_line_no_secret_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [
        *("branchwise", "annotate", "--config", "a.yaml"),
        *("--set", "seed=1", "--set", "policy.base_url=http://me:hunter2@host/v1?key=hunter2"),
        *(
            "--set",
            "policy.api_key=hunter2",
            "--set=judge.token=hunter2",
            "--se",
            "x.secret: hunter2",
        ),
        *("--api-key", "hunter2", "--hf-token=hunter2\nhunter2", "--limit", "3"),
        *("--set", "limits.max_tokens=100", "--set", "policy.api_key_env=OTHER_KEY"),
    ]
    monkeypatch.setattr("sys.argv", command)
    kept = environment_facts()["command"]
    assert kept == redacted_command(command)
    assert "hunter2" not in str(kept)
    assert len(kept) == len(command)
    for word in ("seed=1", "a.yaml", "3", "limits.max_tokens=100", "policy.api_key_env=OTHER_KEY"):
        assert word in kept
    assert "policy.api_key=[redacted]" in kept
