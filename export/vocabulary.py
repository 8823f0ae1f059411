"""The hot vocabulary: which token ids a draft's short head scores."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from ..errors import UsageError

MAX_DEFAULT_HOT = 16_384
_RUN_LENGTH = 2_048  # how much of a single-character run is taken
_RUN_MINIMUM = 256
_COVERAGE_TEXT = Path(__file__).with_name("coverage.txt")

Ranges = tuple[tuple[int, int], ...]


def single_character_run(vocab: dict[str, int], beyond: int) -> tuple[int, int] | None:
    """The longest run of single-character tokens at ids ≥ ``beyond``, cut to its first 2,048 ids.

    SentencePiece vocabularies keep their characters, commas and digits included, after all merges.
    """
    ids = sorted(i for token, i in vocab.items() if len(token) == 1 and i >= beyond)
    best: tuple[int, int] | None = None
    start = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or ids[end] != ids[end - 1] + 1:
            if best is None or end - start > best[1] - best[0]:
                best = (ids[start], ids[start] + end - start)
            start = end
    if best is None or best[1] - best[0] < _RUN_MINIMUM:
        return None
    return best[0], min(best[1], best[0] + _RUN_LENGTH)


def split_head(vocab: dict[str, int], vocab_size: int, hot: int | None, multiple: int = 1) -> tuple[Ranges, Ranges]:
    """(hot ranges, rest ranges) over all token ids; ``hot`` None means the default size. Hot ranges are widened until
    they begin and end at multiples of ``multiple``, which divides the vocabulary size.

    Raises:
        UsageError: ``hot`` is not between 1 and the vocabulary size.
    """
    if hot is None:
        hot = max(1, min(vocab_size // 3, MAX_DEFAULT_HOT))
    if not 0 < hot <= vocab_size:
        raise UsageError(f"`hot_vocab` {hot}: it must be between 1 and the vocabulary size, {vocab_size}.", "hot_vocab")
    hot = -(-hot // multiple) * multiple
    ranges = [(0, hot)]
    run = single_character_run(vocab, hot)
    if run is not None and run[1] <= vocab_size:
        run = run[0] // multiple * multiple, -(-run[1] // multiple) * multiple
        ranges.append(run)
        if run[0] == hot:
            ranges = [(0, run[1])]
    rest, end = [], 0
    for start, stop in [*ranges, (vocab_size, vocab_size)]:
        if start > end:
            rest.append((end, start))
        end = stop
    return tuple(ranges), tuple(rest)


def coverage(tokenizer: Tokenizer, hot: Ranges) -> float:
    """Share of a bundled text's tokens that the hot ranges hold."""
    ids = tokenizer.encode(_COVERAGE_TEXT.read_text(encoding="utf-8"), add_special_tokens=False).ids
    return sum(any(a <= i < b for a, b in hot) for i in ids) / max(1, len(ids))
