"""Finds the settings with which a server accepts a request that it refused, by asking it.

A server may name the field that it refuses, or only say that something is unsupported. So the
request is built up from its smallest form, one field at a time, until the server takes it.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from .servers import with_merged_system

Body = dict[str, Any]
Accepts = Callable[[Body], Awaitable[bool]]
"""Sends a body and returns whether the server took it; raises if it failed for another reason."""

MOST_CALLS = 20
CONSTRAINTS = frozenset({"structured_outputs", "response_format", "regex"})
"""Fields that constrain a reply; `structured_output` decides them, not `request`."""
_LIMITS = ("max_tokens", "max_completion_tokens")
_SMALLEST_LIMIT = 16
_NEW_NAMES = {"seed": "random_seed"}
_EXTRAS: tuple[Body, ...] = ({}, {"enable_thinking": False}, {"stream": False})


async def find_settings(accepts: Accepts, refused: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the settings of a model's block that make the server accept a refused body.

    Makes at most `MOST_CALLS`, which all have the body's token limit if the server takes one.

    Returns:
        Settings such as `{"request": {"omit": ["n"]}}`; empty if the server now takes the body;
        None if it refuses every form.
    """
    calls = 0

    async def counted(body: Body) -> bool:
        nonlocal calls
        calls += 1
        return calls <= MOST_CALLS and await accepts(body)

    if await counted(dict(refused)):
        return {}
    for body, request in _smallest(refused):
        if await counted(body):
            settings = await _completed(counted, refused, body, request)
            return settings if calls <= MOST_CALLS else None
        lower = await _lower_limit(counted, body) if not request else None
        if lower is not None:
            settings = await _completed(counted, {**refused, **lower}, {**body, **lower}, {})
            (limit,) = lower.values()
            return {"max_new_tokens": limit, **settings} if calls <= MOST_CALLS else None
    return None


async def _lower_limit(accepts: Accepts, body: Body) -> Body | None:
    """Returns a lower token limit with which the server accepts a body; None if none is found."""
    for name in _LIMITS:
        limit = body.get(name, 0) // 2
        while limit >= _SMALLEST_LIMIT:
            if await accepts({**body, name: limit}):
                return {name: limit}
            limit //= 8
    return None


def _smallest(refused: Mapping[str, Any]) -> Iterator[tuple[Body, dict[str, Any]]]:
    """Yields the smallest bodies, each with the settings that lead to it."""
    turns = {"model": refused["model"], "messages": with_merged_system(refused["messages"])}
    limit = next((name for name in _LIMITS if name in refused), None)
    if limit is None:
        forms: list[tuple[Body, dict[str, Any]]] = [({}, {})]
    else:
        other_limit = next(name for name in _LIMITS if name != limit)
        forms = [
            ({limit: refused[limit]}, {}),
            ({other_limit: refused[limit]}, {"rename": {limit: other_limit}}),
            ({}, {"omit": [limit]}),
        ]
    for extra in _EXTRAS:
        for field, request in forms:
            settings = {**request, "extra": extra} if extra else dict(request)
            yield {**turns, **field, **extra}, settings


async def _completed(
    accepts: Accepts, refused: Mapping[str, Any], body: Body, request: dict[str, Any]
) -> dict[str, Any]:
    """Adds what is left of the refused body, and returns the settings that it needs."""
    separate = {**body, "messages": list(refused["messages"])}
    if separate == body or await accepts(separate):
        body = separate
    else:
        request["merge_system"] = True
    omitted: list[str] = list(request.pop("omit", []))
    renamed: dict[str, str] = dict(request.pop("rename", {}))
    settings: dict[str, Any] = {}
    for name in sorted(refused.keys() - body.keys() - {*omitted, *renamed}):
        new_name = _NEW_NAMES.get(name)
        if await accepts({**body, name: refused[name]}):
            body[name] = refused[name]
        elif name in CONSTRAINTS:
            settings["structured_output"] = "none"
        elif new_name and await accepts({**body, new_name: refused[name]}):
            body[new_name] = refused[name]
            renamed[name] = new_name
        else:
            omitted.append(name)
    request |= {"omit": omitted} if omitted else {}
    request |= {"rename": renamed} if renamed else {}
    return {**settings, "request": request} if request else settings
