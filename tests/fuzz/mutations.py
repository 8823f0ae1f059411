"""Seeded damage: to bytes, and to JSON values that are written again as JSON."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable
from typing import Any

HUGE = (0, 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
# As JSON text, because some are numbers that Python would not write.
ODD = [
    "null", "true", "false", "0", "-1", "1", "2", "15", "16", "64", "1000000", "2147483647", "9223372036854775807",
    "18446744073709551616", "1e400", "-1e400", "NaN", "-Infinity", "1.5", "-0.0", "1e-300", "1" * 400, "9" * 5000,
    '""', '"x"', '"../x"', '"/etc/passwd"', '"weights.bin"', '"graphs/cpu/embed.onnx"', '"\\u0000"', '"\\ud800"',
    '"a\\nb\\u001b[2J"', json.dumps("x" * 100_000), "[]", "{}", "[[]]", "[null]", '{"a": 1}', "[1, 2, 3]", "[0, 0]",
    "[" * 2000 + "]" * 2000, "[" * 100_000, '{"a":' * 900 + "1" + "}" * 900, json.dumps(list(range(5000))),
]  # fmt: skip


def bytes_damaged(data: bytes, rng: random.Random, header: int) -> bytes:
    """Damage one to three places of the first ``header`` bytes, mostly near their beginning and end."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice((_flip, _flip, _number, _number, _number, _cut, _swap, _repeat, _drop, _junk))(out, rng, header)
    return bytes(out)


def _position(out: bytearray, rng: random.Random, header: int) -> int:
    end = max(1, min(header, len(out)))
    near = min(600, end)
    return rng.choice((rng.randrange(near), end - 1 - rng.randrange(near), rng.randrange(end)))


def _flip(out: bytearray, rng: random.Random, header: int) -> None:
    if out:
        out[_position(out, rng, header)] ^= 1 << rng.randrange(8)


def _number(out: bytearray, rng: random.Random, header: int) -> None:
    at, value = _position(out, rng, header), rng.choice((*HUGE, len(out), len(out) - 8, rng.randrange(400)))
    packed = struct.pack("<Q", value)[: rng.choice((4, 8, 8))]
    out[at : at + len(packed)] = packed


def _cut(out: bytearray, rng: random.Random, header: int) -> None:
    del out[_position(out, rng, header) :]


def _swap(out: bytearray, rng: random.Random, header: int) -> None:
    size = rng.choice((1, 4, 8, 24, 64))
    a, b = sorted((_position(out, rng, header), _position(out, rng, header)))
    if a + size <= b:
        out[a : a + size], out[b : b + size] = out[b : b + size], out[a : a + size]


def _repeat(out: bytearray, rng: random.Random, header: int) -> None:
    at, size = _position(out, rng, header), rng.choice((1, 8, 24, 100, 1000))
    out[at:at] = out[at : at + size]


def _drop(out: bytearray, rng: random.Random, header: int) -> None:
    at = _position(out, rng, header)
    del out[at : at + rng.choice((1, 4, 8, 24, 100))]


def _junk(out: bytearray, rng: random.Random, header: int) -> None:
    at, size = _position(out, rng, header), rng.choice((1, 8, 40))
    out[at : at + size] = rng.randbytes(size)


def json_damaged(text: str, rng: random.Random) -> str:
    """Replace, delete, copy or rename one to three values anywhere; now and then damage the text itself."""
    if rng.random() < 0.1:
        data = text.encode()
        return bytes_damaged(data, rng, len(data)).decode("utf-8", "replace")
    value = json.loads(text)
    odd: dict[str, str] = {}
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        spots = _spots(value)
        if not spots:
            break
        holder, key = rng.choice(spots)
        action = rng.choice(("odd", "odd", "odd", "delete", "copy", "near", "key"))
        if action == "odd":
            mark = f"<<odd {len(odd)}>>"
            holder[key], odd[json.dumps(mark)] = mark, rng.choice(ODD)
        elif action == "delete":
            del holder[key]
        elif action == "copy":
            other, place = rng.choice(spots)
            holder[key] = copy.deepcopy(other[place]) if _there(other, place) else None
        elif action == "near" and isinstance(holder[key], int | float):
            holder[key] = rng.choice((holder[key] + 1, holder[key] - 1, holder[key] * 2, -holder[key]))
        elif isinstance(holder, dict):
            holder[rng.choice(("x", "", "../x", f"{key}x"))] = holder.pop(key)
        else:
            holder.insert(rng.randrange(len(holder) + 1), holder[key])
    written = json.dumps(value)
    for mark, replacement in odd.items():
        written = written.replace(mark, replacement)
    return written


def _there(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def _spots(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value below ``value``."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [spot for key, child in list(children) for spot in [(value, key), *_spots(child)]]


Mutation = Callable[[bytes, random.Random], bytes]


def gguf(data: bytes, rng: random.Random, header: int) -> bytes:
    """Damage anywhere in the header, or to the type and length of an array, which a random place seldom hits."""
    if rng.random() < 0.7:
        return bytes_damaged(data, rng, header)
    starts = [i + 4 for i in range(header) if data[i : i + 4] == b"\x09\0\0\0"]  # 9: an array follows
    at, length = rng.choice(starts), rng.choice((*HUGE, len(data)))
    return data[:at] + struct.pack("<IQ", rng.randrange(14), length) + data[at + 12 :]


def safetensors(data: bytes, rng: random.Random) -> bytes:
    """Damage to the header's bytes, or to its JSON with a length that fits again, so that the reader gets further."""
    header = 8 + int.from_bytes(data[:8], "little")
    if rng.random() < 0.5:
        return bytes_damaged(data, rng, header)
    changed = json_damaged(data[8:header].decode(), rng).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(changed)) + changed + data[header:]


def weights(data: bytes, rng: random.Random) -> bytes:
    """One byte flipped, or a run of bytes made NaN, infinite, large or random; now and then the end is missing."""
    if rng.random() < 0.15:
        return data[: len(data) - rng.choice((1, 64, rng.randrange(len(data))))]
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 20))):
        at = rng.randrange(len(out))
        size = min(len(out) - at, rng.choice((1, 2, 4, 16, 160, 5000)))
        value = rng.choice((b"\xff", b"\x7f", b"\x80", b"\x00\x7c", rng.randbytes(size)))
        out[at : at + size] = bytes([out[at] ^ 1 << rng.randrange(8)]) if size == 1 else (value * size)[:size]
    return bytes(out)


def text(data: bytes, rng: random.Random) -> bytes:
    return json_damaged(data.decode(), rng).encode("utf-8", "surrogatepass")
