"""Cost of a call by its tokens and the price of its model."""

import pytest

from engines.cost import cost_usd
from engines.sampling import Usage
from engines.settings import Price


def test_cost_depends_on_cached_tokens_and_price() -> None:
    usage = Usage(input_tokens=1_000_000, cached_tokens=400_000, output_tokens=100_000)
    assert cost_usd(usage, Price(input=1.0, cached=0.1, output=5.0)) == pytest.approx(1.14)
    assert cost_usd(usage, Price(input=1.0, output=5.0)) == pytest.approx(1.5)
    assert cost_usd(usage, None) is None
