"""How a byte-level vocabulary's text is split before merging, by llama.cpp's name for it (tokenizer.ggml.pre).

Each step cuts what the step before left, at the matches of one pattern; what lies between matches stays. Patterns are
those of the models' own tokenizers, of which llama.cpp's are spellings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tokenizers import Regex, pre_tokenizers

from ..errors import UnsupportedModelError, unknown_name

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CAPITALS = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_REST_WITH_SLASH = _REST.replace(r"[\r\n]*", r"[\r\n/]*")
_IDEOGRAPHS = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    (
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
        r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)


@dataclass(frozen=True, slots=True)
class Splitting:
    """``ignores_merges``: a word that is a token is taken as it is; ``adds_bos``: files that do not say so want a
    beginning-of-sequence token; ``composes``: text is brought to Unicode's composed form (NFC) before."""

    patterns: tuple[str, ...]
    ignores_merges: bool = False
    adds_bos: bool = False
    composes: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)
        return pre_tokenizers.Sequence([*steps, byte_level])


_GPT2_WORDS = Splitting((_GPT2,))
_SINGLE_DIGITS = Splitting((r"\p{N}", _GPT2))
_DIGITS_IN_THREES = Splitting((rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_REST}",))
_LLAMA3 = replace(_DIGITS_IN_THREES, ignores_merges=True, adds_bos=True)
_DIGITS_APART = Splitting((rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_REST}",))
_QWEN2 = replace(_DIGITS_APART, composes=True)
_QWEN35 = Splitting(
    (
        (
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
            r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
    ),
    composes=True,
)
_TEKKEN = Splitting((rf"{_CAPITALS[0]}|{_CAPITALS[1]}|\p{{N}}|{_REST_WITH_SLASH}",), ignores_merges=True, adds_bos=True)
_GPT4O = Splitting(
    (
        (
            rf"{_CAPITALS[0]}{_CONTRACTION}?|{_CAPITALS[1]}{_CONTRACTION}?|"
            rf"\p{{N}}{{1,3}}|{_REST_WITH_SLASH}"
        ),
    )
)
_DEFAULT = Splitting((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))

_NAMES: dict[Splitting, str] = {
    _DEFAULT: "default",
    _GPT2_WORDS: "gpt-2 phi-2 mpt jais trillion exaone4 gigachat a.x-4.0 mellum granite-docling",
    replace(_GPT2_WORDS, composes=True): "olmo",
    _SINGLE_DIGITS: "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    _LLAMA3: "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    _DIGITS_IN_THREES: "dbrx smaug-bpe glm4 chatglm-bpe",
    _QWEN2: "qwen2 deepseek-r1-qwen",
    _DIGITS_APART: "megrez kormo f2llmv2 stablelm2 hunyuan solar-open grok-2",
    _QWEN35: "qwen35",
    _TEKKEN: "tekken",
    _GPT4O: "gpt-4o llama4 kanana2 talkie minimax-m2",
    Splitting((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _IDEOGRAPHS, r"\p{N}")): "deepseek-coder",
    Splitting(_DEEPSEEK3): "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    Splitting((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")): "falcon",
    Splitting((rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",)): "seed-coder",
    Splitting((rf"{_WORD}|\p{{N}}|{_REST}",)): "ufakzeka",
    Splitting((r"\p{N}{1,3}", rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_REST}"), ignores_merges=True): "minicpm5",
}
SPLITTINGS: Mapping[str, Splitting] = {name: kind for kind, names in _NAMES.items() for name in names.split()}


def splitting(name: str) -> Splitting:
    """How a vocabulary of this name is split.

    Raises:
        UnsupportedModelError: the name is unknown; the message lists the known ones.
    """
    if name not in SPLITTINGS:
        raise UnsupportedModelError(f"the GGUF's tokenizer.ggml.pre: {unknown_name('pre-tokenizer', name, SPLITTINGS)}")
    return SPLITTINGS[name]
