"""Recognises secrets, by name or by form; their values are neither stored nor shown."""

import re
from collections.abc import Sequence
from itertools import pairwise

REDACTED = "[redacted]"

_LOWER_TO_UPPER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_LAST_WORD = re.compile(
    r"(?:^|[^a-z0-9])(?:\w*(?:password|passphrase|passwd|secret|credential|authorization)s?"
    r"|\w*apikeys?|keys?|token|bearer|pwd|auth)$"
)
_SETTING = re.compile(
    r"(?P<name>(?:--\w[\w-]*=)?[^\s=:{}]+)(?P<is>\s*[=:]\s*)(?P<value>.+)", re.DOTALL
)
_KEY = re.compile(
    r"(?<![\w-])(?:(?i:sk-)|(?:sk|pk|rk|gsk|hf|ghp|fw)_[A-Za-z0-9]{7,}|AIza\w{16,})"
    r"|(?=[A-Za-z]*[0-9])[A-Za-z0-9]{32,}"
)
_HEXADECIMAL = re.compile(r"(?<![A-Za-z0-9])[0-9A-Fa-f]{32,}(?![A-Za-z0-9])")
_IN_URL = re.compile(r"(?<=://)[^/\s@]+(?=@)|(?<=\?).+", re.DOTALL)


def names_secret(name: str) -> bool:
    """Returns whether a setting or an option of this name holds a secret, by its last word.

    `policy.api_key`, `--hf-token` and `accessToken` do; `max_tokens`, `api_key_env` and
    `prefill-token-threshold` do not.
    """
    snake = _LOWER_TO_UPPER.sub("_", name).lower().replace("_", "-")
    return _LAST_WORD.search(snake.rstrip("-")) is not None


def looks_like_key(text: str) -> bool:
    """Returns whether a text contains `sk-`, `hf_abcdefg`, or 32 letters and digits mixed.

    Names of variables such as HF_TOKEN and `hf_token` are not keys.
    """
    return _KEY.search(text) is not None


def contains_key(path: str) -> bool:
    """Returns whether a part of a path looks like a key, or sets a secret (`token=abc`).

    Hexadecimal numbers do not, because they are ids of accounts and deployments.
    """
    sets_secret = any(redacted_setting(part) != part for part in path.split("/"))
    return sets_secret or looks_like_key(_HEXADECIMAL.sub("", path))


def redacted_setting(word: str) -> str:
    """Returns `a.b=value` of a command line; removes the value if the name is that of a secret."""
    setting = _SETTING.fullmatch(word)
    if setting is None or not names_secret(setting["name"]):
        return word
    return f"{setting['name']}{setting['is']}{REDACTED}"


def redacted_command(words: Sequence[str]) -> list[str]:
    """Returns a command line with secrets removed, for storage."""
    return [_redacted(word, before) for before, word in pairwise(("", *words))]


def _redacted(word: str, before: str) -> str:
    if before.startswith("-") and "=" not in before and names_secret(before):
        return REDACTED
    word = redacted_setting(word)
    return _IN_URL.sub(REDACTED, word) if "://" in word else word
