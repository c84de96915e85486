"""What is written as JSON comes back equal, whichever encoder wrote it."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.exact_json import dumps, dumps_messages

texts = st.text(st.characters(exclude_categories=()))  # half characters, too
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)


@pytest.mark.parametrize("write", [dumps, dumps_messages])
@given(value=values)
def test_it_is_ascii_and_reads_back_equal(write: Any, value: Any):
    written = write(value)
    assert written.isascii()
    assert json.loads(written) == value


@pytest.mark.parametrize("write", [dumps, dumps_messages])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_would_read_back_as_null_is_refused(write: Any, number: float):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write([{"content": "a", "score": number}])


@pytest.mark.parametrize("write", [dumps, dumps_messages])
def test_what_is_no_json_is_refused(write: Any):
    with pytest.raises(TypeError):
        write({"content": object()})


def test_the_word_null_and_other_scripts_are_written_as_they_are():
    for content in ("null", "ネル", "\0", "\ud800", "é"):
        assert dumps_messages([{"content": content}]) == dumps([{"content": content}])
