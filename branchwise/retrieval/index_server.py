"""A search server: Search-R1's `/retrieve` protocol in front of any retriever."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from branchwise.base import RetrievalError
from branchwise.types import RetrievedPassage

from .http_retriever import join_contents
from .interface import Retriever


class _Query(BaseModel):
    model_config = ConfigDict(extra="ignore")

    queries: Annotated[list[str], Field(max_length=1024)]
    topk: int = Field(default=3, ge=1, le=1000)
    return_scores: bool = False


def search_app(retriever: Retriever) -> web.Application:
    """Returns the web application: POST `/retrieve`, and GET `/health` with the retriever's
    digest.
    """

    def search(query: str, top_k: int) -> list[RetrievedPassage]:
        return asyncio.run(retriever.search(query, top_k))

    async def retrieve(request: web.Request) -> web.Response:
        try:
            query = _Query.model_validate_json(await request.text())
        except ValidationError as error:
            detail = {"error": json.loads(error.json(include_url=False, include_context=False))}
            return web.json_response(detail, status=422)
        try:
            # In threads, one query after the other, so that a large request holds up nobody.
            answers = [await asyncio.to_thread(search, text, query.topk) for text in query.queries]
        except RetrievalError as error:
            return web.json_response({"error": str(error)}, status=502)
        result = [[_hit(p, query.return_scores) for p in answer] for answer in answers]
        return web.json_response({"result": result})

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"digest": retriever.digest})

    app = web.Application()
    app.add_routes([web.post("/retrieve", retrieve), web.get("/health", health)])
    return app


@asynccontextmanager
async def serving(
    retriever: Retriever, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[str]:
    """Serves while the context is open and gives the url of `/retrieve`.

    Args:
        retriever: Retriever to serve.
        host: address to listen on. There is no authentication: beyond loopback, anyone who
            reaches the port may search.
        port: 0 takes a free one.
    """
    runner = web.AppRunner(search_app(retriever), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield f"http://{host}:{runner.addresses[0][1]}/retrieve"
    finally:
        await runner.cleanup()


def _hit(passage: RetrievedPassage, scored: bool) -> dict[str, Any]:
    document = {"id": passage.id, "contents": join_contents(passage.title, passage.text)}
    return {"document": document, "score": passage.score} if scored else document
