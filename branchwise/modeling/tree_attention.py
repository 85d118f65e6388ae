"""Tree attention: a causal model reads a `modeling.token_tree`; each token sees only its own past.

The tree is one sequence. Its tokens keep the positions from their own sequences, and the mask has
the form that the model's attention takes. Most of the mask is closed, because sibling branches do
not see each other. On a GPU, FlexAttention skips closed blocks. Otherwise our own attention,
`TREE_SDPA`, processes the tree in subtrees, each with its own past.
"""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

TREE_SDPA = "tree_sdpa"
"""Name of our attention, registered with transformers."""

_BLOCK = 128
"""Block size of FlexAttention in tokens."""

_MOST_SCORES = 2**20
"""Most scores of one head that are held in memory at once."""

_SMALL = 256
"""Size in tokens up to which a subtree is not split."""


class Subtree(NamedTuple):
    """Tokens [start, stop) of a tree, and the earlier ranges that all of them attend to."""

    start: int
    stop: int
    past: tuple[tuple[int, int], ...]


def tree_attention_blocker(model: Any) -> str | None:
    """Returns the reason a transformers model cannot read a tree, as "has …"; None if it can.

    Callers must ensure that the model is causal.
    """
    config, takes = model.config, inspect.signature(type(model.base_model).forward).parameters
    window = "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"
    layers = getattr(config, "layer_types", None) or [window]
    if set(layers) != {"full_attention"} or getattr(config, "alibi", False):
        return "has layers without full attention, or uses ALiBi"
    if "position_ids" not in takes:
        return "does not accept position_ids"
    if config._attn_implementation not in ("sdpa", TREE_SDPA, "eager", "flex_attention"):
        return f"uses {config._attn_implementation}, which does not accept a mask"
    return None


def enable_tree_attention(model: Any) -> None:
    """Selects an attention that skips closed parts of the mask, if `model` supports one."""
    import torch

    if torch.cuda.is_available() and getattr(model, "_supports_flex_attn", False):
        model.set_attn_implementation("flex_attention")
        return
    parameters = inspect.signature(type(model.base_model).forward).parameters.values()
    takes_anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    if model.config._attn_implementation == "sdpa" and takes_anything:
        _register_tree_sdpa()
        model.set_attn_implementation(TREE_SDPA)


def tree_inputs(model: Any, tokens: Any, positions: Any, ends: Any) -> dict[str, Any]:
    """Returns the arguments of a backbone's `forward` for a tree.

    Args:
        model: Model; its configuration names the attention implementation.
        tokens, positions, ends: Arrays of a `PrefixTree`, (1, N) each.
    """
    import torch

    implementation = model.config._attn_implementation
    parts: dict[str, Any] = {}
    # The mask (which token attends to which) has the form that transformers takes: that of
    # FlexAttention, Boolean, or added to the scores.
    if implementation == "flex_attention":
        from torch.nn.attention.flex_attention import create_block_mask

        tokens, positions, ends = pad_to_block_size(tokens, positions, ends)
        last, n = ends[0], ends.shape[1]

        def is_seen(batch: Any, head: Any, query: Any, key: Any) -> Any:
            return (key <= query) & (query < last[key])

        mask: Any = create_block_mask(is_seen, None, None, n, n, device=str(ends.device))
    else:
        _, mask = _attention_mask(Subtree(0, ends.shape[1], ()), ends[0])
    if implementation == "eager":
        closed = torch.finfo(model.dtype).min
        mask = torch.zeros_like(mask, dtype=model.dtype).masked_fill(~mask, closed)
    if implementation == TREE_SDPA:
        # All layers attend in the same parts, so the parts are computed once per batch.
        cut = subtrees(ends[0].tolist(), 0, ends.shape[1])
        key_tokens, masks = zip(*(_attention_mask(part, ends[0]) for part in cut), strict=True)
        parts = {"tree_parts": (torch.cat(key_tokens), masks)}
    return {"input_ids": tokens, "position_ids": positions, "attention_mask": mask, **parts}


def subtrees(
    ends: Sequence[int],
    start: int,
    stop: int,
    past: tuple[tuple[int, int], ...] = (),
    small: int = _SMALL,
) -> Iterator[Subtree]:
    """Splits tokens [start, stop) of a tree into parts that see only themselves and their past.

    Args:
        ends: Array of a `PrefixTree`, (N,).
        start, stop: A range of whole subtrees, all of whose tokens also attend to `past`.
        small: Size in tokens up to which subtrees stay whole and neighbours are grouped.

    Yields:
        Parts in order, which together are the whole range.
    """
    #   start          child                                   stop
    #   |--- spine ----|--- subtree A ---|-- B --|---- C ------|
    #    ends == stop    siblings: never attend to each other
    #
    # The spine (tokens whose subtree reaches `stop`) becomes one part and joins `past`.
    # Neighbouring siblings are grouped while they fit into `small`: computing some masked values
    # costs less than more kernel calls.
    child = start
    while child < stop and ends[child] == stop:
        child += 1  # everything after it is in its subtree
    if child == stop or stop - start <= small:
        yield Subtree(start, stop, past)
        return
    if child > start:
        yield Subtree(start, child, past)
        past = (*past, (start, child))
    first = child
    while child < stop:
        if child > first and ends[child] - first > small:
            yield from subtrees(ends, first, child, past, small)
            first = child
        child = ends[child]
    yield from subtrees(ends, first, stop, past, small)


def _attention_mask(part: Subtree, ends: Any) -> tuple[Any, Any]:
    """Returns the tokens of a part's past and its own, (M,), and its Boolean mask, (1, 1, N, M)."""
    # The tree  a - b - c - d   has the tokens a b c d e f. With `small` 4, part two is [2, 6):
    #                 ` e - f   the siblings c d and e f, with the past a b (x: query sees key).
    #
    #              past | own        In depth-first order, a query sees a key (an ancestor, or
    #       key     a b | c d e f    itself) if and only if  key <= query < ends[key].
    #   query  c    x x | x . . .
    #          d    x x | x x . .    Columns are token numbers, and need not be consecutive: the
    #          e    x x | . . x .    past leaves out earlier siblings. (1, 1) broadcasts over
    #          f    x x | . . x x    batch and heads.
    import torch

    queries = torch.arange(part.start, part.stop, device=ends.device)[:, None]
    keys = torch.cat([torch.arange(*span, device=ends.device) for span in (*part.past, part[:2])])
    return keys, ((keys <= queries) & (queries < ends[keys]))[None, None]


def _register_tree_sdpa() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(TREE_SDPA, _tree_sdpa)
    AttentionMaskInterface.register(TREE_SDPA, sdpa_mask)


def _tree_sdpa(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    tree_parts: tuple[Any, Sequence[Any]] | None = None,
    **kwargs: Any,
) -> tuple[Any, None]:
    """Computes attention of states (1, heads, N, width); returns (1, N, heads, width).

    A model that does not pass `tree_parts` to its layers gets the whole mask. On a CPU, bfloat16
    states attend by matrix products (`_multiplied`). If a part is too large for that, they attend
    in float32: torch builds a fused kernel per shape for bfloat16, and the parts have hundreds of
    shapes, so that would be slower by half and take 2 GB.
    """
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if tree_parts is None:
        attended: tuple[Any, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return attended
    # Each token is a query of one part, so splitting is enough. It is a key of its own part and
    # of those in its subtree, so keys and values are copied: all parts' columns side by side.
    #
    #   tokens   a b c d e f     parts  [0, 2) without a past,  [2, 6) with the past [0, 2)
    #   queries  a b|c d e f
    #   keys     a b|a b c d e f
    key_tokens, masks = tree_parts
    rows, columns = zip(*(mask.shape[2:] for mask in masks), strict=True)
    # Under autocast, the rotary embedding leaves query and key in float32, unlike the value.
    queries = query.to(value.dtype).split(rows, 2)
    keys, values = (
        _states_of(key_tokens, states.to(value.dtype)).split(columns, 2) for states in (key, value)
    )
    with torch.autocast(value.device.type, enabled=False):
        parts = [
            _of_part(*states, dropout, scaling)
            for states in zip(queries, keys, values, masks, strict=True)
        ]
    return torch.cat(parts, 2).transpose(1, 2).contiguous(), None


def _states_of(tokens: Any, states: Any) -> Any:
    """Returns the states of `tokens` (M,), (1, heads, M, width), from all, (1, heads, N, width)."""
    from torch.nn.functional import embedding

    # The backward pass of indexing adds up in an order that depends on threads.
    rows = embedding(tokens, states[0].transpose(0, 1).flatten(1))
    return rows.view(len(tokens), states.shape[1], -1).transpose(0, 1)[None]


def _of_part(
    queries: Any, keys: Any, values: Any, mask: Any, dropout: float, scaling: float | None
) -> Any:
    """Computes attention of states (1, heads, N or M, width); `mask` is (1, 1, N, M).

    Queries may have several heads per head of keys and values.
    """
    import torch
    from transformers.integrations.sdpa_attention import repeat_kv

    dtype = values.dtype
    if dtype == torch.bfloat16 and values.device.type == "cpu":
        if not dropout and mask.numel() <= _MOST_SCORES:
            return _multiplied(queries, keys, values, mask, scaling)
        queries, keys, values = queries.float(), keys.float(), values.float()
    keys, values = (repeat_kv(x, queries.shape[1] // x.shape[1]) for x in (keys, values))
    return torch.nn.functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, dropout_p=dropout, scale=scaling
    ).to(dtype)


def _multiplied(queries: Any, keys: Any, values: Any, mask: Any, scaling: float | None) -> Any:
    """Computes attention of a part by matrix products.

    In bfloat16 on a CPU, they take a third of the time of torch's fused attention. Scores are
    rounded to bfloat16, as in transformers' "eager" attention.
    """
    import torch

    scale = queries.shape[-1] ** -0.5 if scaling is None else scaling
    # With grouped queries, several query heads share one head of keys. They become further rows of
    # one product, (key heads, query heads per key head · N, width), which copies no keys.
    heads = (keys.shape[1], queries.shape[1] // keys.shape[1])
    rows = (queries[0] * scale).unflatten(0, heads).flatten(1, 2)
    closed = torch.zeros_like(mask[0], dtype=queries.dtype)
    closed = closed.masked_fill(~mask[0], torch.finfo(queries.dtype).min).repeat(1, heads[1], 1)
    scores = torch.baddbmm(closed, rows, keys[0].transpose(1, 2))
    attended = scores.softmax(-1) @ values[0]
    return attended.unflatten(1, (heads[1], -1)).flatten(0, 1)[None]


def pad_to_block_size(tokens: Any, positions: Any, ends: Any) -> tuple[Any, Any, Any]:
    """Returns a tree, (1, N) each, padded to whole blocks of FlexAttention.

    Padding tokens see only themselves.
    """
    import torch

    n = tokens.shape[1]
    missing = -n % _BLOCK
    # Each padding token is a tree of its own, so no other token sees it.
    own_ends = torch.arange(n + 1, n + missing + 1, device=ends.device)[None]
    zeros = tokens.new_zeros(1, missing)
    return (
        torch.cat([tokens, zeros], 1),
        torch.cat([positions, zeros], 1),
        torch.cat([ends, own_ends], 1),
    )
