"""HTTP for all clients: model endpoints, search servers, vLLM servers.

No redirect is followed, because it would carry prompts, gold answers and the key to a host that
the recipe does not name. No cookie is kept. A reply is refused once it has unpacked to more than
`LARGEST_REPLY` bytes. A proxy of the environment is used for other machines, never for this one.
"""

import ipaddress
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from .errors import ConfigError
from .secret_names import contains_key
from .terminal_escape import terminal_safe

if TYPE_CHECKING:
    import ssl

    import aiohttp

LARGEST_REPLY = 8 * 2**20
"""Maximum size in bytes, unpacked: no completion or list of passages comes near; parsed JSON takes
many times more.
"""
LONGEST_COMPLAINT = 2**16
"""Number of bytes that are read of an error's body."""

_KEEP_ALIVE_S = 5.0
_UNREADABLE = "an address that cannot be read"


class Redirected(Exception):
    """A server answered with a redirect, which is not followed.

    Attributes:
        status: HTTP status of the reply, 300 to 399.
        target: Scheme and host of the target, escaped for a terminal.
    """

    def __init__(self, status: int, target: str) -> None:
        super().__init__(f"answered {status}, a redirect to {target}")
        self.status = status
        self.target = target


class ReplyTooLarge(Exception):
    """A reply unpacks to more than `LARGEST_REPLY` bytes; the rest of it was not read."""

    def __init__(self) -> None:
        super().__init__(f"answered with more than {LARGEST_REPLY:,} bytes (unpacked)")


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply; for an error, only the first `LONGEST_COMPLAINT` bytes of the body.

    Attributes:
        status: HTTP status; a redirect raises `Redirected` instead.
        headers: Headers without cookies and encoding.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy from the environment; `address` excludes credentials."""

    address: str
    user: str = ""
    password: str = ""


class HttpClient:
    """Client of one server; must be created, used and closed in one event loop.

    Sets no timeout: put `asyncio.timeout` around a call.
    """

    def __init__(self, url: str, connections: int = 0) -> None:
        """Prepares the client without connecting.

        Args:
            connections: Maximum number of concurrent connections; 0 for one per call.

        Raises:
            ConfigError: If the environment names certificates or a proxy that cannot be used.
        """
        import aiohttp

        secure = urlsplit(url).scheme == "https"
        # Before the session, which nobody would close if this raised.
        self._through = _through(proxy_for(url))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=connections,
                keepalive_timeout=_KEEP_ALIVE_S,
                ssl=_trusted() if secure else True,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        )

    async def ask(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Reply:
        """Sends one request; returns the whole reply.

        Raises:
            Redirected: If the reply is a redirect.
            ReplyTooLarge: If the reply has more than `LARGEST_REPLY` bytes.
            aiohttp.ClientError, OSError: If the reply is missing or incomplete.
        """
        async with self._session.request(
            method, url, headers=headers, data=body, allow_redirects=False, **self._through
        ) as response:
            if 300 <= response.status < 400 and "Location" in response.headers:
                response.close()
                raise Redirected(response.status, _target(url, response.headers["Location"]))
            packed = await _unpacked(response)
            shown = [pair for pair in response.raw_headers if pair[0].lower() not in _DROPPED]
            return Reply(response.status, shown, packed)

    async def close(self) -> None:
        """Cuts the connections."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


_DROPPED = frozenset(
    {b"set-cookie", b"set-cookie2", b"content-encoding", b"content-length", b"transfer-encoding"}
)


async def _unpacked(response: "aiohttp.ClientResponse") -> bytes:
    """Returns the unpacked body, up to the maximum size.

    Reads in pieces, because aiohttp then unpacks only as much as is taken, unlike `read()`.
    """
    parts: list[bytes] = []
    size, failed = 0, response.status >= 400
    most = LONGEST_COMPLAINT if failed else LARGEST_REPLY
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > most:
            response.close()
            if not failed:
                raise ReplyTooLarge
            return b"".join(parts)[:most]
    return b"".join(parts)


def _target(url: str, location: str) -> str:
    """Returns scheme and host of a redirect's target, which may hold any text."""
    try:
        parts = urlsplit(urljoin(url, location))
    except ValueError:
        return _UNREADABLE
    if parts.scheme not in ("http", "https"):
        return _UNREADABLE
    host = terminal_safe(parts.netloc.rpartition("@")[2])
    path = "another path of " if (parts.scheme, host) == urlsplit(url)[:2] else ""
    return f"{path}{parts.scheme}://{host}"


def shown_url(url: str) -> str:
    """Returns `url` without credentials, query and fragment, fit for messages and digests."""
    try:
        parts = urlsplit(url)
    except ValueError:  # an open bracket
        return _UNREADABLE
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))


def checked_address(url: str | None, setting: str, example: str, remedy: str) -> str:
    """Returns the address that a setting names.

    Args:
        remedy: Advice about parts that do not belong in an address.

    Raises:
        ConfigError: If it is missing, not an HTTP address, or has credentials, a query, a fragment,
            a path parameter or a key, which would be written to the run's recipe. No message
            repeats those.
    """
    url = url or ""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (refused only when it is read)
    except ValueError:  # the message may hold a part of a password
        raise ConfigError(
            f"{setting} is malformed (an open bracket, or a port that is not a number from 1 to "
            f"65535): it should look like {example}"
        ) from None
    if "@" in _decoded(parts.netloc):
        raise ConfigError(f"{setting} contains credentials before the @. Remove them; {remedy}")
    plain = _decoded(url)
    if any(mark in plain for mark in "?#;"):
        raise ConfigError(
            f"{setting} contains a query, a fragment or a path parameter (`?`, `#` or `;`), which "
            f"would be written to the run's config.yaml. Remove it; {remedy}"
        )
    if contains_key(_decoded(parts.path)):
        raise ConfigError(
            f"{setting} contains a part that looks like a key, which would be written to the run's "
            f"config.yaml. Remove it; {remedy}"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        shown = "contains an @" if "@" in url else f"is {shown_url(url) or 'missing'}"
        raise ConfigError(f"{setting} {shown}: give an http or https address, such as {example}")
    return url


def _decoded(text: str) -> str:
    """Returns `text` without percent-encoding, even if it was encoded more than once."""
    while (plain := unquote(text)) != text:
        text = plain
    return text


def is_loopback(url: str) -> bool:
    """Returns whether `url` names this machine: 127.0.0.0/8, ::1, localhost, or no address in
    particular.

    Proxies do not apply to it.
    """
    host = (urlsplit(url).hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = _ip(host)
    return address is not None and (address.is_loopback or address.is_unspecified)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def proxy_for(url: str) -> Proxy | None:
    """Returns the environment's proxy for `url`; None for this machine, or if none is set.

    The lookup is not left to aiohttp, which would also look for a password in ~/.netrc.

    Raises:
        ConfigError: If it is not an HTTP proxy.
    """
    from urllib.request import getproxies

    if is_loopback(url):
        return None
    proxies, parts = getproxies(), urlsplit(url)
    proxy_url = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy_url or _goes_direct(parts.hostname or "", parts.netloc, proxies.get("no", "")):
        return None
    try:
        proxy = urlsplit(proxy_url if "://" in proxy_url else f"http://{proxy_url}")
        usable = proxy.scheme in ("http", "https") and proxy.hostname and proxy.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(
            f"the proxy for {shown_url(url)} in the environment ({parts.scheme.upper()}_PROXY or "
            "ALL_PROXY) is not the address of an HTTP proxy: correct it, or add the host to "
            "NO_PROXY"
        )
    address = f"{proxy.scheme}://{proxy.netloc.rpartition('@')[2]}"
    return Proxy(address, unquote(proxy.username or ""), unquote(proxy.password or ""))


def _goes_direct(host: str, netloc: str, exempt: str) -> bool:
    """Returns whether NO_PROXY (or the system) exempts a host, by name, suffix, address or
    network.
    """
    from urllib.request import proxy_bypass

    if proxy_bypass(netloc.rpartition("@")[2]) or proxy_bypass(host):
        return True
    address = _ip(host)
    for network in exempt.split(",") if address else ():
        with suppress(ValueError):
            if address in ipaddress.ip_network(network.strip(), strict=False):
                return True
    return False


def _through(proxy: Proxy | None) -> dict[str, Any]:
    if proxy is None:
        return {}
    import aiohttp

    has_login = proxy.user or proxy.password
    login = aiohttp.BasicAuth(proxy.user, proxy.password) if has_login else None
    return {"proxy": proxy.address, "proxy_auth": login}


def _trusted() -> "ssl.SSLContext":
    import httpx2

    try:
        return httpx2.create_ssl_context()  # reads the two variables
    except OSError as error:  # an unreadable file, or one without a certificate
        file, folder = (os.environ.get(f"SSL_CERT_{kind}", "not set") for kind in ("FILE", "DIR"))
        raise ConfigError(
            f"SSL_CERT_FILE ({file}) or SSL_CERT_DIR ({folder}) cannot "
            f"be read as certificates ({error.strerror or error}): correct it, or unset it"
        ) from error
