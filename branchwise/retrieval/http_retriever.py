"""Client of a search server with Search-R1's `/retrieve` protocol.

POST {"queries": [text], "topk": k, "return_scores": true} answers
{"result": [[{"document": {"id", "contents"}, "score"}]]}, where `contents` is the title in
quotes, a line break, and the text.
"""

import asyncio
import json
import math
import random
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp

from branchwise.base import (
    HttpClient,
    Redirected,
    Reply,
    ReplyTooLarge,
    RetrievalError,
    digest_of,
    one_line,
    shown_url,
)
from branchwise.types import RetrievedPassage

from .settings import checked_url

_TRANSIENT_STATUS = frozenset({408, 425, 429})
_DIGEST = re.compile(r"[\w.:+/=-]{1,128}", re.ASCII)
_DIGEST_TIMEOUT_S = 10.0
"""Seconds per attempt to read the digest; a server answers that at once."""


class _TransientError(RetrievalError):
    """A fault that another attempt may not have; never leaves this module."""


class HttpRetriever:
    """Queries a search server.

    Every call has its own connection: a stage runs several event loops with one retriever, and
    a connection pool belongs to one loop.
    """

    def __init__(
        self,
        url: str | None,
        timeout_s: float = 30.0,
        attempts: int = 4,
        pause_s: float = 1.0,
        *,
        identity: str | None = None,
    ) -> None:
        """Stores the address.

        Args:
            url: the endpoint, http or https; without a path, `/retrieve` is meant.
            timeout_s: Seconds per attempt, above zero.
            attempts: Most attempts per search. Broken connections, timeouts, 408, 425, 429 and 5xx
                are retried.
            pause_s: Longest wait before the second attempt in seconds; doubles with every attempt.
            identity: Digest of a server that reports none; defaults to its address.

        Raises:
            ConfigError: If it is missing, not an HTTP address, or holds credentials or a query.
        """
        self._url = _with_path(checked_url(url))
        # With the path too, because an identity may be a former address.
        self._identity = _with_path(identity or shown_url(self._url))
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._pause_s = pause_s
        self._jitter = random.Random()

    @cached_property
    def digest(self) -> str:
        """The digest that GET `/health` next to `/retrieve` reports, or else the identity.

        It is requested once, at the first use.

        Raises:
            RetrievalError: If the server does not answer.
        """
        # In a thread, because the caller may be in an event loop.
        with ThreadPoolExecutor(1) as thread:
            reported = thread.submit(asyncio.run, self._with_retries(self._reported_digest))
            return reported.result() or self._identity

    async def _reported_digest(self) -> str | None:
        url = urljoin(self._url.rstrip("/"), "health")
        timeout_s = min(self._timeout_s, _DIGEST_TIMEOUT_S)
        try:
            health = await self._attempt("GET", url, None, timeout_s)
        except _TransientError:
            raise
        except RetrievalError:
            return None  # Search-R1's own server has no such page
        digest = health.get("digest") if isinstance(health, dict) else None
        return digest if isinstance(digest, str) and _DIGEST.fullmatch(digest) else None

    async def search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        """Returns the server's best `top_k`, reordered by (−score, id).

        Raises:
            RetrievalError: If the last attempt failed, or the reply is unusable.
        """
        body = {"queries": [query], "topk": top_k, "return_scores": True}
        content = json.dumps(body).encode()
        attempt = partial(self._attempt, "POST", self._url, content, self._timeout_s)
        reply = await self._with_retries(attempt)
        try:
            passages = _passages(reply)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise RetrievalError(
                f"{self._url} does not follow Search-R1's /retrieve protocol ({error!r}): "
                'expected {"result": [[{"document": {"contents"}, "score"}]]}, but got '
                f"{_shown(json.dumps(reply))}"
            ) from error
        return sorted(passages, key=lambda passage: (-passage.score, passage.id))[:top_k]

    async def _with_retries(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Returns the result of `ask`, which is called again after a transient fault."""
        attempt = 1
        while True:
            try:
                return await ask()
            except _TransientError as error:
                if attempt == self._attempts:
                    counted = f" ({attempt} attempts)" if attempt > 1 else ""
                    raise RetrievalError(f"{error}{counted}") from error
            # Full jitter spreads the retries of searches that failed together.
            await asyncio.sleep(self._jitter.uniform(0.0, self._pause_s * 2 ** (attempt - 1)))
            attempt += 1

    async def _attempt(self, method: str, url: str, body: bytes | None, timeout_s: float) -> Any:
        """Returns the JSON of the reply."""
        reply = await self._answer(method, url, body, timeout_s)
        text = reply.body.decode(errors="replace")
        if reply.status != 200:
            transient = reply.status in _TRANSIENT_STATUS or reply.status >= 500
            kind = _TransientError if transient else RetrievalError
            raise kind(f"{url} answered {reply.status}: {_shown(text)}")
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RetrievalError(f"{url} answered no JSON: {_shown(text)}") from error

    async def _answer(self, method: str, url: str, body: bytes | None, timeout_s: float) -> Reply:
        headers = {"Content-Type": "application/json"}
        try:
            async with asyncio.timeout(timeout_s), HttpClient(url) as http:
                return await http.ask(method, url, headers=headers, body=body)
        except Redirected as redirect:
            raise RetrievalError(
                f"{url} {redirect}; Branchwise follows no redirect. If you trust that "
                "server, set retrieval.url to its address"
            ) from None
        except ReplyTooLarge as error:
            raise RetrievalError(f"{url} {error}: lower retrieval.top_k") from None
        except TimeoutError as error:
            raise _TransientError(f"{url} did not answer within {timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _TransientError(
                f"cannot reach the search server {self._url}: {_shown(str(error))}. "
                "Check that it runs"
            ) from error


def _with_path(url: str) -> str:
    """Returns an address with `/retrieve` if it has no path."""
    return url if urlsplit(url).path.strip("/") else url.rstrip("/") + "/retrieve"


def _shown(text: str) -> str:
    """Returns the beginning of a server's words, harmless to a terminal."""
    return one_line(text[:200])


def _passages(reply: Any) -> list[RetrievedPassage]:
    """Returns the hits of a reply, each passage once; hits without scores keep their order.

    Raises:
        LookupError, TypeError, ValueError, OverflowError: If the reply has another shape.
    """
    hits = reply["result"]
    if not isinstance(hits, list):
        raise TypeError("result is not a list")
    if hits and isinstance(hits[0], list):
        (hits,) = hits
    passages: dict[str, RetrievedPassage] = {}
    for place, hit in enumerate(hits):
        passage = _passage(hit, place)
        passages.setdefault(passage.id, passage)
    return list(passages.values())


def _passage(hit: dict[str, Any], place: int) -> RetrievedPassage:
    """Returns a hit as a passage.

    Search-R1's own BM25 server and its copies send no id; a hash of the content replaces it. Some
    send `title` and `text` with or instead of `contents`, or a document without a score.
    """
    document = hit.get("document", hit)
    if not {"text", "contents", "content"} & document.keys():
        raise KeyError("contents")
    title, text, contents = (document.get(name) or "" for name in ("title", "text", "contents"))
    contents = contents or document.get("content") or ""
    first_line, text_below = split_contents(contents)
    if not title or title == first_line:
        title, contents = title or first_line, text_below
    text = text or contents
    if not (isinstance(title, str) and isinstance(text, str)):
        raise TypeError("title and text must be text")
    reported = hit.get("score")
    if isinstance(reported, bool):
        raise TypeError("the score is true or false")
    score = float(-place if reported is None else reported)
    if not math.isfinite(score):
        raise ValueError(f"the score {score} is not a number")
    names = (document.get(name) for name in ("id", "_id", "docid"))
    name = next((name for name in names if name is not None), digest_of(title, text))
    return RetrievedPassage(id=str(name), title=title, text=text, score=score)


def split_contents(contents: str) -> tuple[str, str]:
    """Returns the title and text of Search-R1's `contents` ('"Title"' + line break + text)."""
    title, line_break, text = contents.partition("\n")
    if not line_break:
        return "", contents
    return title.strip().removeprefix('"').removesuffix('"'), text


def join_contents(title: str, text: str) -> str:
    """Returns the inverse of `split_contents`; a line break in the title becomes a space."""
    return f'"{" ".join(title.splitlines())}"\n{text}'
