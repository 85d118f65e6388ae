"""Checks of addresses, and the choice of a proxy."""

import pytest

from branchwise.base.errors import ConfigError
from branchwise.base.http_client import Proxy, checked_address, is_loopback, proxy_for, shown_url

LOOPBACK = (
    "localhost LOCALHOST:80 localhost. a.localhost 127.0.0.1 127.8.0.1:9 127.255.255.255 [::1]:1 "
    "[0:0:0:0:0:0:0:1] 0.0.0.0 [::]"
)
REMOTE = "localhost.example.org notlocalhost 126.255.255.255 128.0.0.1 10.0.0.1 [::2]"


def test_loopback_addresses_are_recognised_and_bypass_the_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "")
    for host in (*LOOPBACK.split(), *REMOTE.split()):
        url, ours = f"http://{host}/v1", host in LOOPBACK.split()
        assert is_loopback(url) == ours, host
        assert proxy_for(url) == (None if ours else Proxy("http://proxy.example:3128")), host


@pytest.mark.parametrize(
    ("named", "exempt", "url", "address"),
    [
        ({"http_proxy": "proxy:3128"}, "", "http://host/", "http://proxy:3128"),
        ({"http_proxy": "proxy:3128"}, "", "https://host/", None),
        ({"https_proxy": "https://proxy"}, "", "https://host/", "https://proxy"),
        ({"all_proxy": "http://proxy"}, "", "https://host/", "http://proxy"),
        ({"http_proxy": "http://me:hunter2@proxy:1"}, "", "http://host/", "http://proxy:1"),
        ({"http_proxy": "http://proxy"}, "host", "http://host:8000/", None),
        ({"http_proxy": "http://proxy"}, ".example.org", "http://a.example.org/", None),
        ({"http_proxy": "http://proxy"}, "*", "http://host/", None),
        ({"http_proxy": "http://proxy"}, "other, 10.0.0.0/8", "http://10.1.2.3/", None),
        ({"http_proxy": "http://proxy"}, "10.0.0.0/8", "http://11.1.2.3/", "http://proxy"),
        ({"http_proxy": "http://proxy"}, "fd00::/8", "http://[fd00::1]:8000/", None),
    ],
)
def test_the_proxy_is_read_from_the_environment(
    named: dict[str, str],
    exempt: str,
    url: str,
    address: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(variable, named.get(variable, ""))
        monkeypatch.delenv(variable.upper(), raising=False)
    monkeypatch.setenv("no_proxy", exempt)
    found = proxy_for(url)
    assert (found.address if found else None) == address


@pytest.mark.parametrize("named", ["socks5://me:hunter2@proxy:1", "http://[::1", "http://:80"])
def test_an_invalid_proxy_is_refused_without_showing_its_password(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("all_proxy", named)
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(ConfigError, match="ALL_PROXY") as caught:
        proxy_for("https://host/v1")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://host/v1?key=hunter2",
        "http://host?hunter2",
        "http://host/v1?",
        "http://host/v1#hunter2",
        "http://hunter2@host/v1",
        "http://:hunter2@host/v1",
        "http://me%3Ahunter2%40host/v1",
        "http://me%252Fhunter2%2540host/v1",
        "http://host/v1;hunter2",
        "http://host/v1%3Bkey=hunter2",
        "http://host/v1%3Fkey=hunter2",
        "http://host/v1%2523hunter2",
        "http://host/key=hunter2/v1",
        "http://host/api_key:hunter2/v1",
        "http://host/sk-hunter2/v1",
        "http://host/v1/%73k%2Dhunter2",
        "http://host/hf_hunter2",
        "http://host/AIzahunter2hunter2hunter2/v1",
        "http://host/hunter20123456789abcdefABCDEF012/v1",
        "http://host/proxy,0123456789hunter2abcdef0123456789/v1",
        "host:8000/sk-hunter2",
        "me:hunter2@host/v1",
        "ftp://hunter2@host/v1",
        "http://[::1?hunter2",
        "http://host:hunter2/v1",
        "http://host:0/v1",
        "host:8000/v1",
        "",
        None,
    ],
)
def test_an_invalid_address_is_refused_and_not_shown(url: str | None) -> None:
    with pytest.raises(ConfigError, match=r"^some\.url") as caught:
        checked_address(url, "some.url", "http://127.0.0.1:1", "a key has no place here")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://host/v1",
        "https://[::1]:8000/v1/",
        "http://dead.beef",
        "https://mine.openai.azure.com/openai/deployments/gpt-4o-mini",
        "https://host/openai/deployments/gpt-4o-mini-2024-07-18-for-my-desk/v1",
        "http://host/proxy/8000/v1",
        "http://host/ask-me/task_1/risk-model:8b/v1",
        "https://host/v1/0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9",
        "https://a0b1c2d3e4f5a6b7c8d9e0f1a2b3c4d5.us-east-1.aws.endpoints.huggingface.cloud/v1",
        "http://host/a%20proxy/v1",
        "https://host/client/v4/accounts/0a1b2c3d4e5f60718293a4b5c6d7e8f9/ai/v1",
    ],
)
def test_a_valid_address_is_accepted_unchanged(url: str) -> None:
    assert checked_address(url, "url", "", "") == url


def test_shown_addresses_contain_no_secrets() -> None:
    assert shown_url("https://me:hunter2@host:1/v1/?key=hunter2#hunter2") == "https://host:1/v1"
    assert "hunter2" not in shown_url("http://[::1?hunter2")
