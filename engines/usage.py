"""Token counts of a call: those of the endpoint, or our own if it reports none usable.

A limit in tokens or dollars is only as good as the counts that it sums. A count that is missing,
negative, not a number, zero for a text that is there, or absurdly large is therefore not taken as
zero but counted here: with the model's tokenizer if its files are on this machine, else from above.
The two counts are checked separately. `Usage.basis` records the result.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from engines.sampling import FinishReason, SampleRequest, Usage, UsageBasis
from storage.records import Message
from storage.text import storable
from weights.chat_template import rendered
from weights.policy_files import policy_files, tokenizer_of

MOST_TOKENS = 10**9
"""A larger count is not believed."""
MESSAGE_TOKENS = 16
"""Upper estimate of a chat template's tokens per message: role and marks."""
TEMPLATE_TOKENS = 64
"""Upper estimate of a chat template's other tokens: a default system prompt, a date, the turn."""
END_TOKENS = 1
"""The token that ends a turn."""


class TokenCounter(Protocol):
    """Counts tokens if an endpoint did not."""

    @property
    def basis(self) -> UsageBasis: ...

    def prompt(self, request: SampleRequest) -> int:
        """Returns tokens of the prompt."""
        ...

    def reply(self, request: SampleRequest, text: str, finish: FinishReason) -> int:
        """Returns tokens of the completion."""
        ...


def usage_of(
    reported: Any,
    request: SampleRequest,
    text: str,
    finish: FinishReason,
    counter: TokenCounter,
) -> Usage:
    """Returns the usage of a call; unusable entries of `reported` are counted instead.

    Cached tokens that are not usable are 0, which is the more expensive reading.
    """
    said = reported if isinstance(reported, dict) else {}
    prompt = _count(said.get("prompt_tokens"), least=1)
    output = _count(said.get("completion_tokens"), least=1 if text else 0)
    if prompt is not None and output is not None:
        return Usage(prompt, cached_tokens(said, prompt), output)
    return Usage(
        counter.prompt(request) if prompt is None else prompt,
        0 if prompt is None else cached_tokens(said, prompt),
        counter.reply(request, text, finish) if output is None else output,
        counter.basis,
    )


def cached_tokens(reported: Any, prompt_tokens: int) -> int:
    """Returns tokens of a prompt that a reply's usage says came from a cache; 0 if it does
    not say.
    """
    details = reported.get("prompt_tokens_details") if isinstance(reported, dict) else None
    cached = _count(details.get("cached_tokens"), least=0) if isinstance(details, dict) else None
    return cached if cached is not None and cached <= prompt_tokens else 0


def _count(value: Any, *, least: int) -> int | None:
    """Returns a usable number of tokens; None if it is missing or out of bounds."""
    if isinstance(value, float) and value.is_integer():  # NaN and infinities are not
        value = int(value)
    # A bool is an int in Python, but not a count.
    usable = type(value) is int and least <= value <= MOST_TOKENS
    return value if usable else None


class UpperEstimate:
    """Counts from above, without a tokenizer.

    Every token stands for one byte of UTF-8 or more, so a text has at most as many tokens as
    bytes; what a chat template adds is bounded by `MESSAGE_TOKENS` and `TEMPLATE_TOKENS`. A reply
    may have cost more than its text shows (a turn of reasoning), but not more than was asked for.
    """

    basis: UsageBasis = "bytes"

    def prompt(self, request: SampleRequest) -> int:
        texts = [_role_and_content(message) for message in request.messages]
        if request.structure is not None and request.structure.kind == "json_schema":
            texts.append(request.structure.value)  # some vendors put it into the prompt
        return sum(map(_bytes, texts)) + MESSAGE_TOKENS * len(texts) + TEMPLATE_TOKENS

    def reply(self, request: SampleRequest, text: str, finish: FinishReason) -> int:
        return max(_bytes(text) + END_TOKENS, request.sampling.max_new_tokens)


@dataclass(frozen=True)
class TokenizerCount:
    """Counts with a tokenizer for transformers, over the prompt that its chat template gives."""

    tokenizer: Any
    basis: UsageBasis = "tokenizer"

    def prompt(self, request: SampleRequest) -> int:
        template = getattr(self.tokenizer, "chat_template", None)
        if isinstance(template, str):
            # A template may refuse a system turn, or fail: no reply may be lost by that.
            with suppress(Exception):
                return self._tokens(rendered(template, request.messages))
        texts = [*map(_role_and_content, request.messages)]
        return sum(map(self._tokens, texts)) + MESSAGE_TOKENS * len(texts)

    def reply(self, request: SampleRequest, text: str, finish: FinishReason) -> int:
        tokens = self._tokens(text) + END_TOKENS
        # Truncated text has all requested tokens; empty text may have as many.
        shown = text and finish == "stop"
        return tokens if shown else max(tokens, request.sampling.max_new_tokens)

    def _tokens(self, text: str) -> int:
        return len(
            self.tokenizer(storable(text), add_special_tokens=False, verbose=False)["input_ids"]
        )


class Counting:
    """The counter of an engine: from above, until a tokenizer is needed and found.

    Attributes:
        counter: The current counter.
        settled: whether a tokenizer has been looked for.
    """

    def __init__(self, weights: str | None) -> None:
        """`weights` names the files of the model's weights; None if nothing does."""
        self.counter: TokenCounter = UpperEstimate()
        self.settled = False
        self._weights = weights
        self._looking: asyncio.Task[TokenCounter] | None = None

    async def settle(self, tell: Callable[[str], None]) -> None:
        """Looks for the tokenizer, once; calls `tell` with the basis of later counts."""
        if self._looking is None:
            # In a thread: the packages that read tokenizers take seconds to import.
            self._looking = asyncio.create_task(asyncio.to_thread(counter_for, self._weights))
        found = await asyncio.shield(self._looking)
        if not self.settled:
            self.counter, self.settled = found, True
            tell(self._rests_on())

    def _rests_on(self) -> str:
        if self.counter.basis == "tokenizer":
            return f"its tokens are counted here, with the tokenizer of {self._weights}"
        return (
            "its tokens are estimated here from above, from the bytes of prompt and reply (name "
            "the model's files as `weights` in its block of the recipe for closer counts)"
        )


def counter_for(weights: str | None) -> TokenCounter:
    """Returns the best counter for a model whose weights go by this name; may take seconds.

    Nothing is downloaded: a hub model counts with its tokenizer if it is on this machine.
    """
    if weights is not None:
        # Tokenizer readers raise any error, and a paid reply waits for its counts.
        with suppress(Exception):
            files = policy_files(weights, download=False)
            return TokenizerCount(tokenizer_of(files.base))
    return UpperEstimate()


def _role_and_content(message: Message) -> str:
    return f"{message.role}{message.content}"


def _bytes(text: str) -> int:
    return len(storable(text).encode())
