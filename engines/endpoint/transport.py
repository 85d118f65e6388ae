"""Connects the `openai` package to our HTTP client (`base.http`)."""

import httpx2

from base.http import HttpClient


class Transport(httpx2.AsyncBaseTransport):
    """Sends the package's requests to one server."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends `request` and returns the complete reply.

        Raises:
            Redirected, ReplyTooLarge: If the reply is a redirect or too large.
            aiohttp.ClientError, OSError: If the connection fails.
        """
        reply = await self._http.ask(
            request.method, str(request.url), headers=request.headers, body=request.content or None
        )
        return httpx2.Response(reply.status, headers=reply.headers, content=reply.body)

    async def aclose(self) -> None:
        await self._http.close()
