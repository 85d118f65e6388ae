"""Recognition of names of secrets, and redaction of command lines."""

import pytest

from branchwise.base.secret_names import names_secret, redacted_command
from branchwise.runs.environment import environment_facts
from branchwise.runs.recipe import Recipe
from branchwise.runs.record import flat

SECRET = (
    "api_key policy.api_key apiKey APIKEY openai_api_keys --api-key --hf-token access_token "
    "accessToken judge.password db-password mypassword client_secret Authorization aws.credentials"
)
NOT_SECRET = (
    "judge.api_key_env limits.max_tokens max_new_tokens --max-num-batched-tokens "
    "--long-prefill-token-threshold --tokenizer monkey key.name"
)


def test_names_of_secrets_are_recognised() -> None:
    for name in SECRET.split():
        assert names_secret(name), name
    for name in (*flat(Recipe(name="run").model_dump(mode="json")), *NOT_SECRET.split()):
        assert not names_secret(name), name


def test_secrets_are_redacted_from_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
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
