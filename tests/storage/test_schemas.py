"""Records survive parquet: nulls, any Unicode, empty lists, other versions."""

from inspect import signature
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_records import a_node

from branchwise.base.errors import StorageError
from branchwise.base.text import replace_surrogates
from branchwise.storage.schemas import SCHEMAS, TREES, rows_to_table, table_to_records
from branchwise.types import (
    SCHEMA_VERSION,
    Failure,
    FreshRollouts,
    Large,
    Pair,
    Prediction,
    Question,
    Record,
    Small,
    TreeNode,
)

TEXT = st.text(max_size=12)  # no surrogates, everything else: NUL, right-to-left, emoji
FLOAT = st.floats(allow_nan=False, width=32)
SMALL = st.integers(-(2**15), 2**15 - 1)
COUNT = st.integers(-(2**31), 2**31 - 1)
SEED = st.integers(-(2**63), 2**63 - 1)
FAILURES = SCHEMAS["failures"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    float: FLOAT,
    bool: st.booleans(),
    int: COUNT,
    Small: SMALL,
    Large: SEED,
}


def _values(hint: Any) -> st.SearchStrategy[Any]:
    """Returns a strategy for a field's values; integers stay in the range of their column."""
    inner = get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if get_origin(hint) is tuple:
        return st.lists(_values(inner[0]), max_size=2).map(tuple)
    if get_origin(hint) is Literal:
        return st.sampled_from(inner)
    if get_origin(hint) is dict:
        return st.dictionaries(TEXT, JSON, max_size=2)
    return st.none() | _values(inner[0]) if inner else _build(hint)


def _build(cls: type) -> st.SearchStrategy[Any]:
    """Returns a strategy for records in which every field varies."""
    hints = get_type_hints(cls, include_extras=True)
    names = signature(cls).parameters
    return st.builds(cls, **{name: _values(hints[name]) for name in names})


RECORDS: dict[str, type[Record]] = {
    "trees": TreeNode,
    "pairs": Pair,
    "predictions": Prediction,
    "failures": Failure,
    "questions": Question,
    "survival": FreshRollouts,
}


@pytest.mark.parametrize("table", list(RECORDS))
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_records_round_trip_through_parquet(table: str, data: st.DataObject) -> None:
    cls = RECORDS[table]
    records = data.draw(st.lists(_build(cls), max_size=3))
    sink = pa.BufferOutputStream()
    pq.write_table(rows_to_table(records, SCHEMAS[table], "run"), sink, compression="zstd")
    read = pq.read_table(pa.BufferReader(sink.getvalue()))
    assert read.schema.equals(SCHEMAS[table])
    assert table_to_records(read, cls) == records


CONTRACT = {  # the columns that users rely on, in order
    "trees": "tree_id question_id source cycle seed node_id parent_id depth stage action text "
    "content passages terminal forced cut token_ids reasoning visits value judge_score judge_text "
    "rollouts n_outcomes iteration verdict em f1 reward components input_tokens cached_tokens "
    "output_tokens prompt_hash policy_digest",
    "pairs": "pair_id tree_id question_id source cycle seed question answers parent_node "
    "chosen_node rejected_node depth stage prompt chosen rejected chosen_action rejected_action "
    "chosen_reward rejected_reward reward_gap chosen_visits rejected_visits chosen_outcomes "
    "rejected_outcomes chosen_components rejected_components policy_model policy_digest "
    "judge_model prompt_hash label_digest config_digest",
}


@pytest.mark.parametrize("table", list(CONTRACT))
def test_columns_match_the_contract(table: str) -> None:
    assert " ".join(SCHEMAS[table].names) == f"schema_version run_id {CONTRACT[table]}"


@given(text=st.text(alphabet=st.characters(codec=None, categories=["L", "Cs"]), max_size=8))
def test_lone_surrogates_become_replacement_characters(text: str) -> None:
    failure = Failure(question_id="q", stage="s", kind="k", detail=text, at="now")
    (read,) = table_to_records(rows_to_table([failure], FAILURES, "run"), Failure)
    assert read.detail == replace_surrogates(text)
    assert len(read.detail) == len(text)
    assert all(
        a == b or (b == "\ufffd" and a >= "\ud800") for a, b in zip(text, read.detail, strict=True)
    )


def test_surrogates_inside_lists_and_json_are_replaced() -> None:
    question = Question(
        id="q", source="s", question="\udfff?", answers=("a\ud800",), extra={"\ud800": ["\udc00"]}
    )
    (read,) = table_to_records(rows_to_table([question], SCHEMAS["questions"], "r"), Question)
    assert (read.question, read.answers) == ("\ufffd?", ("a\ufffd",))
    assert read.extra == {"\ufffd": ["\ufffd"]}


def test_older_tables_take_defaults_and_newer_ones_are_refused() -> None:
    node = a_node(cycle=1, n_outcomes=2)
    table = rows_to_table([node], TREES, "run")
    older = table.drop_columns(["cycle", "n_outcomes"])
    expected = node.model_copy(update={"cycle": 0, "n_outcomes": 0})
    assert table_to_records(older, TreeNode) == [expected]
    # Concatenated with a current part, the missing columns are read as nulls.
    both = pa.concat_tables([older, table], promote_options="permissive")
    assert table_to_records(both, TreeNode) == [expected, node]
    newer = table.set_column(0, "schema_version", pa.array([SCHEMA_VERSION + 1], pa.int16()))
    with pytest.raises(StorageError, match="newer version"):
        table_to_records(newer, TreeNode)


def test_values_and_columns_that_do_not_fit_are_named() -> None:
    failure = Failure(question_id="q", stage="s", kind="k", detail="", at="", attempts=2**40)
    with pytest.raises(StorageError, match="rows do not fit the table"):
        rows_to_table([failure.model_copy(update={"attempts": 1}), failure], FAILURES, "run")
    with pytest.raises(StorageError, match="no column"):
        rows_to_table([failure], TREES, "run")
    table = rows_to_table([failure.model_copy(update={"attempts": 1})], FAILURES, "run")
    with pytest.raises(StorageError, match="kind"):
        table_to_records(table.drop_columns(["kind"]), Failure)
