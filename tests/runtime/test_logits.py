"""Rows of logits put together out of a head's parts."""

from __future__ import annotations

import numpy as np

from selfspec.runtime.logits import HeadOutput

HOT = np.asarray([[1, 2, 5], [6, 7, 10]], dtype=np.float32)
REST = np.asarray([[3, 4], [8, 9]], dtype=np.float32)
WHOLE = [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]


def head_output() -> HeadOutput:
    """Columns 0, 1 and 4 are hot, 2 and 3 the rest."""
    parts = [(slice(0, 2), HOT[:, :2]), (slice(4, 5), HOT[:, 2:]), (slice(2, 4), REST)]
    return HeadOutput(parts, 5)


def test_a_row_has_every_column_in_its_place() -> None:
    rows = head_output()
    assert len(rows) == 2
    assert [rows[i].tolist() for i in range(2)] == WHOLE
    assert rows[-1].tolist() == WHOLE[1]
    assert rows.whole().tolist() == WHOLE


def test_what_was_taken_outlives_the_heads_buffers() -> None:
    """Penalties change a row, and a later pass overwrites the buffers."""
    values = REST.copy()
    rows = HeadOutput([(slice(0, 2), values)], 2)
    row, whole = rows[0], rows.whole()
    values[:] = 0
    assert row.tolist() == [3, 4]
    assert whole.tolist() == REST.tolist()
    row[:] = 7
    assert rows[0].tolist() == [0, 0]
