"""GroupedAttention refuses, with a sentence, what would read or write past a buffer, or silently ignore an input."""

from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest
from attention_node import FLOAT, PAST, PRESENT, Cache, Heads, build, feeds, rows, session
from onnx import helper

NODE = Heads(4, 2, 16)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_heads": 0}, "num_heads is 0; it must be positive"),
        ({"num_heads": -4}, "num_heads is -4"),
        ({"num_heads": 2**40}, "num_heads is 1099511627776"),
        ({"kv_num_heads": 3}, "4 heads cannot share 3 key heads evenly"),
        ({"head_dim": 12}, "head_dim is 12; it must be a positive multiple of 8"),
        ({"window": -1}, "window is -1"),
        ({"do_rotary": 2}, "do_rotary is 2; 0 and 1 are known"),
        ({"scale": float("nan")}, "scale is not a finite number"),
        ({"eps": -1.0}, "eps must be a finite number and not negative"),
        ({"window": None}, "lacks the integer attribute window"),
        ({"scale": None}, "lacks the float attribute scale"),
        ({"eps": 1}, "lacks the float attribute eps"),
    ],
)
def test_a_node_that_makes_no_sense_is_refused_at_load(change: dict, sentence: str) -> None:
    attributes = {k: v for k, v in (NODE.attributes() | change).items() if v is not None}
    names = ["qkv", *PAST, "seqlens_k", "total", "cos", "sin"]
    node = helper.make_node("GroupedAttention", names, ["mixed", *PRESENT], domain="selfspec", **attributes)
    with pytest.raises(Exception, match=sentence):
        build(node, [("cos", FLOAT), ("sin", FLOAT)], 1)


def shaped(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"qkv": shaped(1, 3, 120)}, r"qkv is \[1, 3, 120\]; \[1, rows, 128\] is needed"),
        ({"qkv": shaped(2, 3, 128)}, r"qkv is \[2, 3, 128\]"),
        ({"qkv": shaped(3, 128)}, r"qkv is \[3, 128\]"),
        ({"qkv": shaped(1, 0, 128)}, "one row or more"),
        ({"past_key": shaped(1, 2, 20)}, "four dimensions"),
        ({"past_key": shaped(1, 1, 20, 16)}, r"past_key is \[1, 1, 20, 16\]; \[1, 2, 20, 16\] is needed"),
        ({"past_value": shaped(1, 2, 19, 16)}, r"past_value is \[1, 2, 19, 16\]"),
        ({"past_value": shaped(1, 2, 20, 8)}, "past_value is"),
        ({"seqlens_k": numbers(20), "total": numbers(21)}, "3 rows ending at position 20 do not fit a cache of 20"),
        ({"seqlens_k": numbers(1), "total": numbers(2)}, "3 rows ending at position 1 do not fit"),
        ({"seqlens_k": numbers(-1), "total": numbers(0)}, "position -1"),
        ({"seqlens_k": numbers(2**31 - 1), "total": numbers(-(2**31))}, "it must be one more"),
        ({"total": numbers(14)}, "total_sequence_length is 14 where seqlens_k is 12; it must be one more"),
        ({"seqlens_k": numbers(12, 12)}, r"seqlens_k is \[2\]; \[1\] is needed"),
        ({"seqlens_k": np.empty(0, np.int32)}, r"seqlens_k is \[0\]"),
        ({"cos": shaped(12, 8)}, r"sin is \[700, 8\]; \[12, 8\] is needed"),
        ({"cos": shaped(12, 8), "sin": shaped(12, 8)}, "cos and sin have 12 positions; this pass needs 13"),
        ({"cos": shaped(700, 4)}, r"cos is \[700, 4\]; \[700, 8\] is needed"),
    ],
)
def test_a_pass_that_does_not_fit_is_refused(change: dict, sentence: str) -> None:
    """Otherwise memory behind a buffer is read, or written."""
    memory = Cache.of(NODE, 20, fill=0)
    good = feeds(NODE, rows(NODE, 3), 10) | {"past_key": memory.keys, "past_value": memory.values}
    session(NODE).run(None, good)
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match=sentence):
        session(NODE).run(None, good | change)


@pytest.mark.parametrize("rotary", [False, True])
def test_tables_and_the_attribute_must_agree(rotary: bool) -> None:
    """Tables that are there and not used, or the other way round, are a mistake of whoever made the graph."""
    heads = Heads(4, 2, 16, rotary=rotary)
    names = ["qkv", *PAST, "seqlens_k", "total", *replace(heads, rotary=not rotary).optional()]
    node = helper.make_node("GroupedAttention", names, ["mixed", *PRESENT], domain="selfspec", **heads.attributes())
    op = build(node, [(name, FLOAT) for name in names[5:7] if name], 1)
    memory = Cache.of(heads, 20, fill=0)
    given = feeds(replace(heads, rotary=not rotary), rows(heads, 3), 10)
    with pytest.raises(Exception, match="do_rotary is"):
        op.run(None, given | {"past_key": memory.keys, "past_value": memory.values})


@pytest.mark.parametrize("name", ["q_gain", "k_gain"])
def test_a_gain_of_another_size_is_refused(name: str) -> None:
    heads = Heads(4, 2, 16, gains=True)
    memory = Cache.of(heads, 20, fill=0)
    given = feeds(heads, rows(heads, 3), 10) | {"past_key": memory.keys, "past_value": memory.values}
    with pytest.raises(Exception, match=rf"{name} is \[15\]; \[16\] is needed"):
        session(heads).run(None, given | {name: np.ones(15, np.float32)})
