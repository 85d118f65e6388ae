"""Token counts of a call: from the endpoint, or our own if it reports none that are usable.

A limit in tokens or dollars is only as good as its counts. A count is unusable if it is missing,
negative, not a number, zero for a text that is not empty, or absurdly large. We then count here:
with the model's tokenizer if its files are on this machine, otherwise with an upper estimate.
Input and output counts are checked separately. `Usage.basis` records the source.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from base.text import replace_surrogates
from engines.sampling import FinishReason, SampleRequest, Usage, UsageBasis
from storage.records import Message
from weights.chat_template import rendered
from weights.policy_files import policy_files, tokenizer_of

MOST_TOKENS = 10**9
"""Largest credible count."""
MESSAGE_TOKENS = 16
"""Upper estimate of a chat template's tokens per message: role and special tokens."""
TEMPLATE_TOKENS = 64
"""Upper estimate of a chat template's other tokens: default system prompt, date, start of turn."""
END_TOKENS = 1
"""The end-of-turn token."""


class TokenCounter(Protocol):
    """Counts tokens that an endpoint did not report."""

    @property
    def basis(self) -> UsageBasis: ...

    def prompt(self, request: SampleRequest) -> int:
        """Returns the number of tokens in the prompt."""
        ...

    def reply(self, request: SampleRequest, text: str, finish: FinishReason) -> int:
        """Returns the number of tokens in the completion."""
        ...


def usage_of(
    reported: Any,
    request: SampleRequest,
    text: str,
    finish: FinishReason,
    counter: TokenCounter,
) -> Usage:
    """Returns the usage of a call; `counter` replaces unusable entries of `reported`.

    Unusable counts of cached tokens become 0, which is the more expensive assumption.
    """
    said = reported if isinstance(reported, dict) else {}
    prompt = _count(said.get("prompt_tokens"), least=1)
    output = _count(said.get("completion_tokens"), least=1 if text else 0)
    if prompt is not None and output is not None:
        # Some endpoints (xAI, gateways to Gemini) count reasoning only in the total.
        total = _count(said.get("total_tokens"), least=prompt + output)
        output = output if total is None else total - prompt
        return Usage(prompt, cached_tokens(said, prompt), output)
    return Usage(
        counter.prompt(request) if prompt is None else prompt,
        0 if prompt is None else cached_tokens(said, prompt),
        counter.reply(request, text, finish) if output is None else output,
        counter.basis,
    )


def least_prompt_tokens(request: SampleRequest) -> int:
    """Returns a lower bound of the prompt's tokens: half of its words.

    Tokenizers rarely join words, so a smaller count means that the server cut the prompt.
    """
    return sum(len(message.content.split()) for message in request.messages) // 2


def cached_tokens(reported: Any, prompt_tokens: int) -> int:
    """Returns the cached prompt tokens that a reply reports; 0 if it reports none."""
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
    """Estimates counts from above, without a tokenizer.

    A token encodes at least one byte of UTF-8, so a text has at most as many tokens as bytes.
    `MESSAGE_TOKENS` and `TEMPLATE_TOKENS` bound the chat template's own tokens. A reply may have
    cost more than its text shows (reasoning), but never more than `max_new_tokens`.
    """

    basis: UsageBasis = "bytes"

    def prompt(self, request: SampleRequest) -> int:
        texts = [_role_and_content(message) for message in request.messages]
        if request.structure is not None and request.structure.kind == "json_schema":
            texts.append(request.structure.value)  # some vendors add it to the prompt
        return sum(map(_bytes, texts)) + MESSAGE_TOKENS * len(texts) + TEMPLATE_TOKENS

    def reply(self, request: SampleRequest, text: str, finish: FinishReason) -> int:
        return max(_bytes(text) + END_TOKENS, request.sampling.max_new_tokens)


@dataclass(frozen=True)
class TokenizerCount:
    """Counts with a transformers tokenizer, on the prompt rendered by its chat template."""

    tokenizer: Any
    basis: UsageBasis = "tokenizer"

    def prompt(self, request: SampleRequest) -> int:
        template = getattr(self.tokenizer, "chat_template", None)
        if isinstance(template, str):
            # A template may reject a system turn, or fail. The reply must not be lost.
            with suppress(Exception):
                special_tokens = self.tokenizer.special_tokens_map
                return self._tokens(
                    rendered(template, request.messages, special_tokens=special_tokens)
                )
        texts = [*map(_role_and_content, request.messages)]
        return sum(map(self._tokens, texts)) + MESSAGE_TOKENS * len(texts)

    def reply(self, request: SampleRequest, text: str, finish: FinishReason) -> int:
        tokens = self._tokens(text) + END_TOKENS
        # A truncated text used all requested tokens; an empty text may have used as many.
        shown = text and finish != "length"
        return tokens if shown else max(tokens, request.sampling.max_new_tokens)

    def _tokens(self, text: str) -> int:
        return len(
            self.tokenizer(replace_surrogates(text), add_special_tokens=False, verbose=False)[
                "input_ids"
            ]
        )


class LazyTokenCounter:
    """The counter of an engine: an upper estimate until a tokenizer is needed and found.

    Attributes:
        counter: The current counter.
        settled: Whether the search for a tokenizer is done.
    """

    def __init__(self, weights: str | None) -> None:
        """Starts with an upper estimate.

        Args:
            weights: Name of the model's weights, which include the tokenizer; None if unknown.
        """
        self.counter: TokenCounter = UpperEstimate()
        self.settled = False
        self._weights = weights
        self._looking: asyncio.Task[TokenCounter] | None = None

    async def load_tokenizer(self, tell: Callable[[str], None]) -> None:
        """Loads the tokenizer, once; then passes the basis of later counts to `tell`."""
        if self._looking is None:
            # Use a thread, because importing the tokenizer packages takes seconds.
            self._looking = asyncio.create_task(asyncio.to_thread(counter_for, self._weights))
        found = await asyncio.shield(self._looking)
        if not self.settled:
            self.counter, self.settled = found, True
            tell(self._rests_on())

    def _rests_on(self) -> str:
        if self.counter.basis == "tokenizer":
            return f"its tokens are counted locally with the tokenizer of {self._weights}"
        return (
            "its tokens are overestimated from the bytes of prompt and reply (for closer counts, "
            "set `weights` in its block of the recipe to the model's files)"
        )


def counter_for(weights: str | None) -> TokenCounter:
    """Returns the best counter for a model whose weights have this name; may take seconds.

    Nothing is downloaded: a hub model counts with its tokenizer only if that is on this machine.
    """
    if weights is not None:
        # Tokenizer loaders may raise any error, and a paid reply waits for its counts.
        with suppress(Exception):
            files = policy_files(weights, download=False)
            return TokenizerCount(tokenizer_of(files.base))
    return UpperEstimate()


def _role_and_content(message: Message) -> str:
    return f"{message.role}{message.content}"


def _bytes(text: str) -> int:
    return len(replace_surrogates(text).encode())
