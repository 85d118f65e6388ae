"""Cost of tokens."""

from engines.sampling import Usage
from engines.settings import Price


def cost_usd(usage: Usage, price: Price | None) -> float | None:
    """Returns US dollars for `usage`; None if no price is set (unknown is not free).

    Cached input tokens are billed at `price.cached`, or as other input if that is None.
    """
    if price is None:
        return None
    cached_price = price.input if price.cached is None else price.cached
    fresh = usage.input_tokens - usage.cached_tokens
    total = fresh * price.input + usage.cached_tokens * cached_price
    return (total + usage.output_tokens * price.output) / 1_000_000
