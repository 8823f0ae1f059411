"""Splitting text before merging: by hand, and against llama.cpp's own patterns run by another library."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tokenizers import pre_tokenizers

from selfspec.errors import UnsupportedModelError
from selfspec.export.pre_tokenizers import SPLITTINGS, splitting

TEXTS = (
    "In 1987 there were 2,345.67 of them, 1234567890!", "don't WE'LL I'd you'RE 'tis rock'n'roll",
    "   leading\r\n\r\n  lines\t\n x\n\n", "日本語のテキスト、한국어 텍스트。中文2024年", "smile 😀 👩‍👩‍👧 🇩🇪",
    "def f(x_1): return x**2  # code\n\tpass;;", "Привет, мир! Ещё 12 раз. हिन्दी नमस्ते", "e\u0301tude cafe\u0301 naïve",
    "CamelCaseWord HTMLParser iPhone ǅ", "a  b   c    ", "$100 + €5 = £3 <tag> ~x|y`z`", "http://x.y/z?q=1&r=%20//\n/",
    "½ ² Ⅷ ٣٤٥ 一二三", "\u00a0nbsp\u3000wide \u200bzero", "", " ", "\n", "'", "''s 'S",
)  # fmt: skip
_C = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_U, _L = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_N = r"[^\r\n\p{L}\p{N}]?"
PEER = {  # llama-vocab.cpp, as of 2026
    "gpt-2": [_GPT2],
    "smollm": [r"\p{N}", _GPT2],
    "llama-bpe": [_C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _TAIL],
    "dbrx": [_C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _TAIL],
    "qwen2": [_C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _TAIL],
    "megrez": [_C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _TAIL],
    "qwen35": [
        _C + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"],
    "tekken": [f"{_N}{_U}*{_L}+|{_N}{_U}+{_L}*|" + r"\p{N}|" + _SLASHED],
    "gpt-4o": [f"{_N}{_U}*{_L}+{_C}?|{_N}{_U}+{_L}*{_C}?|" + r"\p{N}{1,3}|" + _SLASHED],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    "deepseek-v3": [
        r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
        (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""),
    ],
}  # fmt: skip


def pieces(name: str, text: str) -> list[str]:
    """The text's pieces, back from byte level."""
    spans = [span for _, span in splitting(name).pre_tokenizer().pre_tokenize_str(text)]
    return [text[start:stop] for start, stop in spans]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", ["Don", "'t", " pay", " 12345", " €!!", "\n", "\n", "ok"]),
        ("smollm", ["Don", "'t", " pay", " ", "1", "2", "3", "4", "5", " €!!", "\n", "\n", "ok"]),
        ("llama-bpe", ["Don", "'t", " pay", " ", "123", "45", " €!!\n\n", "ok"]),
        ("qwen2", ["Don", "'t", " pay", " ", "1", "2", "3", "4", "5", " €!!\n\n", "ok"]),
        ("tekken", ["Don", "'t", " pay", " ", "1", "2", "3", "4", "5", " €!!\n\n", "ok"]),
        ("gpt-4o", ["Don't", " pay", " ", "123", "45", " €!!\n\n", "ok"]),
        ("default", ["Don", "'", "t", " pay", " ", "123", "45", " €", "!!", "\n", "\n", "ok"]),
        ("deepseek-coder", ["Don", "'", "t", " pay", " ", "1", "2", "3", "4", "5", " ", "€", "!!", "\n", "\n", "ok"]),
    ],
)
def test_pieces_by_hand(name: str, expected: list[str]) -> None:
    """Numbers one by one or in threes, contractions, ends of lines."""
    text = "Don't pay 12345 €!!\n\nok"
    found = pieces(name, text)
    assert "".join(found) == text
    assert found == expected


@pytest.mark.reference
@pytest.mark.parametrize("name", sorted(PEER))
def test_pieces_are_llama_cpps(name: str) -> None:
    """Its patterns as they stand there, one after the other, run by the regex library: matches and what is between."""
    import regex  # type: ignore[import-untyped]

    def split(text: str) -> list[str]:
        found = [text]
        for pattern in PEER[name]:
            cut = [list(regex.finditer(pattern, piece)) for piece in found]
            edges = [
                sorted({0, len(piece), *(m.start() for m in matches), *(m.end() for m in matches)})
                for piece, matches in zip(found, cut, strict=True)
            ]
            found = [piece[a:b] for piece, marks in zip(found, edges, strict=True) for a, b in pairwise(marks)]
        return found

    for text in (*TEXTS, " ".join(TEXTS)):
        assert pieces(name, text) == split(text), text


@pytest.mark.parametrize(
    "names",
    [
        "llama-bpe llama3 llama-v3 falcon3 pixtral", "dbrx smaug-bpe", "qwen2 deepseek-r1-qwen",
        "smollm starcoder refact command-r", "gpt-2 phi-2 mpt", "deepseek-v3 hunyuan-dense",
    ],
)  # fmt: skip
def test_names_of_one_pattern_share_it(names: str) -> None:
    """A table of names with a slip in one line."""
    assert len({SPLITTINGS[name] for name in names.split()}) == 1


def test_what_a_name_says_besides_its_pattern() -> None:
    """Llama 3's files want a first token and words whole, which others with its pattern do not."""
    assert {name for name, kind in SPLITTINGS.items() if kind.adds_bos} == {
        "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken",
    }  # fmt: skip
    assert not splitting("smaug-bpe").ignores_merges
    assert splitting("minicpm5").ignores_merges


@pytest.mark.reference
def test_qwens_pattern_is_transformers_own() -> None:
    """llama.cpp's spelling and the model's could both be wrong in our copy."""
    from tokenizers import Regex
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    theirs = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated")
    for text in TEXTS:
        assert pieces("qwen2", text) == [piece for piece, _ in theirs.pre_tokenize_str(text)]


def test_an_unknown_name_lists_the_known_ones() -> None:
    """Guessing one gives other ids for numbers, and a model that is a little worse."""
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.ggml\.pre: unknown pre-tokenizer 'x'.*llama-bpe"):
        splitting("x")
