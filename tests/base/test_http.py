"""Addresses, and who is asked for them."""

import pytest

from base.errors import ConfigError
from base.http import Proxy, checked_address, is_loopback, proxy_for, shown_url

OURS = (
    "localhost LOCALHOST:80 localhost. a.localhost 127.0.0.1 127.8.0.1:9 127.255.255.255 [::1]:1 "
    "[0:0:0:0:0:0:0:1] 0.0.0.0 [::]"
)
OTHERS = "localhost.example.org notlocalhost 126.255.255.255 128.0.0.1 10.0.0.1 [::2]"


def test_this_machine_and_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "")
    for host in (*OURS.split(), *OTHERS.split()):
        url, ours = f"http://{host}/v1", host in OURS.split()
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
def test_the_proxy_of_the_environment(
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
def test_what_is_no_http_proxy_is_refused(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_what_is_no_address_is_refused_and_not_repeated(url: str | None) -> None:
    with pytest.raises(ConfigError, match=r"^some\.url") as caught:
        checked_address(url, "some.url", "http://127.0.0.1:1", "a key has no place here")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://host/v1", "https://[::1]:8000/v1/", "http://dead.beef"])
def test_an_address(url: str) -> None:
    assert checked_address(url, "url", "", "") == url


def test_what_is_shown_of_an_address() -> None:
    assert shown_url("https://me:hunter2@host:1/v1/?key=hunter2#hunter2") == "https://host:1/v1"
    assert "hunter2" not in shown_url("http://[::1?hunter2")
