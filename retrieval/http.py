"""Client of a search server that speaks Search-R1's `/retrieve` protocol.

POST {"queries": [text], "topk": k, "return_scores": true} answers
{"result": [[{"document": {"id", "contents"}, "score"}]]}, where `contents` is the title in
quotes, a line break, and the text.
"""

import asyncio
import hashlib
import ipaddress
import json
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from storage.errors import ConfigError, RetrievalError
from storage.inert import one_line
from storage.records import RetrievedPassage


def is_loopback(url: str) -> bool:
    """Whether `url` names this machine (such calls must never go through a proxy)."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an open bracket, a port above 65535
        return False


class HttpRetriever:
    """Asks a search server. Its digest is that of the url: what the server holds is unknown.

    Every call has its own connection: a stage runs several event loops with one retriever, and
    a connection pool belongs to one loop.
    """

    def __init__(self, url: str, timeout_s: float = 30.0) -> None:
        """Remembers where to ask.

        Args:
            url: the endpoint, http or https; without a path, `/retrieve` is meant.
            timeout_s: limit of one call, above zero.

        Raises:
            ConfigError: not a http(s) url, or one that holds credentials.
        """
        if not _is_http(url):
            raise ConfigError(
                f"retrieval.url {url!r} is no http address; "
                "it should look like http://127.0.0.1:8001/retrieve"
            )
        if urlsplit(url).username or urlsplit(url).password:
            # It would stand in the run's recipe and in messages; a search server has no key.
            raise ConfigError("retrieval.url holds credentials: leave the part before the @ out")
        self._url = url if urlsplit(url).path.strip("/") else url.rstrip("/") + "/retrieve"
        self._timeout_s = timeout_s

    @property
    def digest(self) -> str:
        """Hash of the url."""
        return hashlib.sha256(f"http {self._url}".encode()).hexdigest()[:16]

    async def search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        """The server's best `top_k`, reordered by (−score, id); scores at or below zero go."""
        body = {"queries": [query], "topk": top_k, "return_scores": True}
        reply = await self._post(body)
        try:
            found = [_passage(hit) for hit in reply["result"][0]]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise RetrievalError(
                f"{self._url} does not speak Search-R1's /retrieve protocol ({error!r}): "
                'expected {"result": [[{"document": {"id", "contents"}, "score"}]]}'
            ) from error
        kept = [passage for passage in found if passage.score > 0]
        return sorted(kept, key=lambda passage: (-passage.score, passage.id))[:top_k]

    async def _post(self, body: dict[str, Any]) -> Any:
        try:
            async with (
                aiohttp.ClientSession(
                    timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                    trust_env=not is_loopback(self._url),
                ) as session,
                session.post(self._url, json=body) as response,
            ):
                status, text = response.status, await response.text(errors="replace")
        except asyncio.TimeoutError as error:  # noqa: UP041 (aiohttp raises a subclass)
            raise RetrievalError(
                f"{self._url} did not answer within {self._timeout_s:g} s"
            ) from error
        except aiohttp.ClientError as error:
            raise RetrievalError(
                f"cannot reach the search server {self._url}: {error}; is it running?"
            ) from error
        if status != 200:
            raise RetrievalError(f"{self._url} answered {status}: {_shown(text)}")
        try:
            return json.loads(text)
        except ValueError as error:
            raise RetrievalError(f"{self._url} answered no JSON: {_shown(text)}") from error


def _shown(text: str) -> str:
    """The beginning of a server's words, harmless to a terminal."""
    return one_line(text[:200])


def _passage(hit: dict[str, Any]) -> RetrievedPassage:
    document = hit["document"]
    title, text = split_contents(document["contents"])
    return RetrievedPassage(
        id=str(document["id"]), title=title, text=text, score=float(hit["score"])
    )


def split_contents(contents: str) -> tuple[str, str]:
    """Title and text of Search-R1's `contents` ('"Title"' + line break + text)."""
    title, line_break, text = contents.partition("\n")
    if not line_break:
        return "", contents
    return title.strip().removeprefix('"').removesuffix('"'), text


def join_contents(title: str, text: str) -> str:
    """The inverse of `split_contents`; a line break in the title becomes a space."""
    return f'"{" ".join(title.splitlines())}"\n{text}'
