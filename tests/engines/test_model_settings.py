"""`api_key_env` takes the name of an environment variable, not an API key."""

import pytest

from branchwise.engines.settings import ModelSettings


@pytest.mark.parametrize(
    "key",
    [
        "AIzaSyA0_b1C2d3E4f5G6h7I8j9K0lMnOpQrStU",  # Gemini
        "aB3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW",  # Mistral
        "fw_3ZabcdEFGH1234567890ij",  # Fireworks
        "a1" * 32,  # Together
    ],
)
def test_an_api_key_is_not_accepted_as_the_name_of_a_variable(key: str) -> None:
    with pytest.raises(ValueError, match="not the name of an environment variable"):
        ModelSettings(api_key_env=key)


@pytest.mark.parametrize(
    "name", ["OPENAI_API_KEY", "HF_TOKEN", "hf_token", "FW_KEY_2", "key", "AIZA_KEY"]
)
def test_variable_names_are_accepted(name: str) -> None:
    assert ModelSettings(api_key_env=name).api_key_env == name
