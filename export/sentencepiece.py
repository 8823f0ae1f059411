"""A SentencePiece vocabulary, as GGUF carries it, as a tokenizer of the ``tokenizers`` library.

SentencePiece's BPE joins the neighbours whose union has the highest score; ``tokenizers`` joins by rank of the pair.
So every way to split a piece into two pieces becomes a merge, ranked by the score of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer, decoders, models, normalizers

_SPACE = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # tokenizer.ggml.token_type


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Pieces with their scores and types, by id. ``space_prefix``: text is read as if it began with a space."""

    pieces: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]
    unknown_id: int
    space_prefix: bool


def merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Pairs in the order in which they are joined: best score first, and of one piece's the longer left half first."""
    joined = {
        p: i for i, (p, kind) in enumerate(zip(vocabulary.pieces, vocabulary.types, strict=True)) if kind == NORMAL
    }

    def pairs() -> Iterator[tuple[float, int, str, str]]:
        for piece, index in joined.items():
            for cut in range(1, len(piece)):
                left, right = piece[:cut], piece[cut:]
                if left in joined and right in joined:
                    yield -vocabulary.scores[index], -cut, left, right

    return [(left, right) for _, _, left, right in sorted(pairs())]


def tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    """Without added tokens.

    Raises:
        Exception: from the tokenizers library, when pieces and merges do not fit.
    """
    found = Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(vocabulary.pieces)},
            merges=merges(vocabulary),
            unk_token=vocabulary.pieces[vocabulary.unknown_id],
            fuse_unk=True,
            byte_fallback=BYTE in vocabulary.types,
        )
    )
    spaces = normalizers.Replace(" ", _SPACE)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.space_prefix:
        found.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        found.normalizer = spaces
    found.decoder = decoders.Sequence(steps)
    return found
