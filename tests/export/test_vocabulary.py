"""The hot vocabulary: at most four contiguous ranges, a partition of the token ids with the rest."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from selfspec.errors import UsageError
from selfspec.export.vocabulary import Ranges, coverage, single_character_run, split_head


def vocabulary(*runs: tuple[int, int], size: int = 1000) -> dict[str, int]:
    """Words everywhere but for runs of single characters at [start, stop)."""
    characters = {i for start, stop in runs for i in range(start, stop)}
    return {(chr(0x4E00 + i) if i in characters else f"word{i}"): i for i in range(size)}


def test_without_a_run_the_hot_ids_are_the_first() -> None:
    """Byte-pair vocabularies are in merge order, roughly by frequency."""
    assert split_head(vocabulary(), 1000, 100) == (((0, 100),), ((100, 1000),))


def test_a_run_of_characters_is_hot_too() -> None:
    """SentencePiece keeps commas and digits behind all merges: without them a draft cannot say 'and, 1'."""
    assert split_head(vocabulary((500, 800)), 1000, 100) == (((0, 100), (500, 800)), ((100, 500), (800, 1000)))


def test_a_run_at_the_end_leaves_no_empty_rest() -> None:
    """A MatMul of no columns."""
    assert split_head(vocabulary((700, 1000)), 1000, 100) == (((0, 100), (700, 1000)), ((100, 700),))


def test_a_run_that_touches_the_first_range_joins_it() -> None:
    """Two ranges where one does: an empty rest range between them."""
    assert split_head(vocabulary((300, 600)), 1000, 300) == (((0, 600),), ((600, 1000),))
    assert split_head(vocabulary((200, 700)), 1000, 300) == (((0, 700),), ((700, 1000),))


def test_a_long_run_is_cut_and_a_short_one_is_left_out() -> None:
    """The first 2,048 characters of a run are its frequent ones; a few stray characters are no run."""
    big = vocabulary((3000, 9000), size=10_000)
    assert split_head(big, 10_000, 100)[0] == ((0, 100), (3000, 5048))
    assert split_head(vocabulary((500, 755)), 1000, 100)[0] == ((0, 100),)
    assert split_head(vocabulary((500, 756)), 1000, 100)[0] == ((0, 100), (500, 756))


def test_the_longest_run_is_taken_and_gaps_end_runs() -> None:
    """Ids of characters are not contiguous by themselves."""
    assert single_character_run(vocabulary((100, 380), (400, 700)), 0) == (400, 700)
    assert single_character_run(vocabulary((100, 380), (381, 600)), 0) == (100, 380)
    assert single_character_run(vocabulary((100, 400)), 200) is None
    assert single_character_run({}, 0) is None


def test_the_whole_vocabulary_may_be_hot() -> None:
    """An identity draft's head; there is no rest then."""
    assert split_head(vocabulary(), 1000, 1000) == (((0, 1000),), ())


def test_the_default_is_a_third_and_at_most_16384() -> None:
    """SmolLM2: 16,384 of 49,152 cover 94 % of its outputs."""
    assert split_head(vocabulary(), 1000, None)[0] == ((0, 333),)
    assert split_head({}, 49_152, None)[0] == ((0, 16_384),)
    assert split_head({}, 262_144, None)[0] == ((0, 16_384),)
    assert split_head({}, 2, None)[0] == ((0, 1),)


def test_tokens_beyond_the_models_vocabulary_do_not_count() -> None:
    """Tokenizers may know more tokens than the model has rows: a range beyond them would read other weights."""
    assert split_head(vocabulary((700, 1000)), 900, 100)[0] == ((0, 100),)


def test_ranges_are_widened_to_multiples() -> None:
    """Tiles hold eight rows: a range that began or ended inside of one could be no slice of the matrix."""
    assert split_head(vocabulary(), 1000, 97, 8) == (((0, 104),), ((104, 1000),))
    assert split_head(vocabulary((501, 799)), 1000, 100, 8)[0] == ((0, 104), (496, 800))
    assert split_head(vocabulary((300, 600)), 1000, 296, 8)[0] == ((0, 600),)
    assert split_head(vocabulary(), 1000, 1000, 8) == (((0, 1000),), ())


@pytest.mark.parametrize("hot", [0, -1, 1001])
def test_an_impossible_size_is_refused_with_the_bounds(hot: int) -> None:
    """An empty hot head, or rows beyond the matrix."""
    with pytest.raises(UsageError, match=rf"`hot_vocab` {hot}: .*between 1 and the vocabulary size, 1000"):
        split_head(vocabulary(), 1000, hot)


@given(st.integers(1, 3000), st.data())
def test_hot_and_rest_are_a_partition(size: int, data: st.DataObject) -> None:
    """A token id that no head scores can never be said; one that two score is said twice."""
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    multiple = data.draw(st.sampled_from([m for m in (1, 2, 8) if size % m == 0]))
    hot, rest = split_head(vocabulary((start, stop), size=size), size, data.draw(st.integers(1, size)), multiple)
    spans = sorted([*hot, *rest])
    assert spans[0][0] == 0
    assert spans[-1][1] == size
    assert all(a[1] == b[0] for a, b in pairwise(spans))
    assert all(a < b for a, b in spans)
    assert hot[0][0] == 0
    assert len(hot) <= 4
    assert list(hot) == sorted(hot)
    assert list(rest) == sorted(rest)
    assert all(edge % multiple == 0 for span in spans for edge in span)


def test_coverage_counts_tokens_of_the_bundled_text() -> None:
    """A share of ids instead of a share of tokens, or ranges taken as closed."""
    tokenizer = Tokenizer(models.WordLevel({"the": 0, ",": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()

    def share(hot: Ranges) -> float:
        return coverage(tokenizer, hot)

    assert share(((0, 3),)) == 1
    assert 0 < share(((0, 1),)) < 0.2
    assert share(((0, 1),)) + share(((1, 2),)) + share(((2, 3),)) == pytest.approx(1)
    assert share(((0, 1), (2, 3))) == pytest.approx(1 - share(((1, 2),)))
