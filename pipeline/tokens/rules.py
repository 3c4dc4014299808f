"""What a tokenizer.json does to text before its vocabulary is asked: rules that need no code of ours.

Special tokens in the text: ``<mask>`` hides a base or a token; ``<unk>`` is one unknown letter; ``<cls>``,
``<eos>`` and ``<pad>`` are dropped, as the tokenizer sets its own around the sequence. The library looks for
special tokens in the text that the rules leave, and looks for what the rules leave of each token: so one
that is the whole text stays as it is. In between, each is a private character, which no text can forge.

Overlapping k-mers: behind every base, small copies of the k - 1 bases that follow are inserted, one place
further at a time, as the i-th copy behind a base is the (i - 1)-th behind the next. So 5 (k - 1) rules do it.
"""

from collections import defaultdict

from tokenizers import AddedToken, Regex, decoders, pre_tokenizers
from tokenizers import normalizers as norm

from pipeline.config import Alphabet, LettersConfig
from pipeline.sequences.alphabets import folding

SPECIALS = ("pad", "unk", "cls", "eos", "mask")
BLANK = r" \t\f\v"
XLE = "J"
_HELD = {name: chr(0xE000 + i) for i, name in enumerate(SPECIALS)}
_ANY_HELD = f"{_HELD['pad']}-{_HELD['mask']}"
_BASES, _HIDDEN = "ACGT", _HELD["mask"]
_BASE, _COPY = f"[{_BASES}{_HIDDEN}]", "[acgtm]"
_EDGE = _HELD["pad"]


def added_tokens() -> list[AddedToken]:
    """Return the special tokens, looked for in the text that the rules leave."""
    return [AddedToken(f"<{name}>", normalized=True, special=True) for name in SPECIALS]


def unknown_token(alphabet: Alphabet, letters: LettersConfig) -> str:
    """Return the token of what the model's vocabulary lacks: strangers in DNA, nothing but J in proteins.

    J has no rule, because a rule would change a token J that somebody adds, too.
    """
    return "<unk>" if alphabet == "dna" or letters.xle == "error" else letters.xle.upper()


def reading(alphabet: Alphabet, letters: LettersConfig, k: int) -> norm.Sequence:
    """Return the rules of a tokenizer: special tokens, letters, blanks, strangers, then k-mers.

    Args:
        alphabet: dna or protein.
        letters: what becomes of letters that are not read as they are.
        k: letters in an overlapping k-mer; 1 for every other tokenizer.
    """
    strange = f"[^{_known(alphabet)}{_ANY_HELD}]"
    rules = [*_hold_specials(), *_fold(alphabet, letters)]
    rules += _join_words(k) if k > 1 else [norm.Replace(Regex(rf"[{BLANK}\r\n]+"), "")]
    if k > 1 or alphabet == "protein":
        rules.append(norm.Replace(Regex(strange), _HELD["unk"]))
    else:  # the model knows strangers itself, so that they count in the frame of codons
        rules.append(norm.Replace("<", "?"))
    rules += _copy_bases(k) if k > 1 else []
    rules += [norm.Replace(held, f"<{name}>") for name, held in _HELD.items()]
    return norm.Sequence(rules)


def _known(alphabet: Alphabet) -> str:
    return "ACGTN" if alphabet == "dna" else "".join(sorted(set(folding("protein").values()))) + XLE + r"\-."


def _hold_specials() -> list[norm.Normalizer]:
    alone = [norm.Replace(Regex(rf"\A<{name}>\z"), _HELD[name]) for name in SPECIALS]
    return [
        norm.Replace(Regex(f"[{_ANY_HELD}]"), "?"),
        *alone,
        norm.Replace("<mask>", _HIDDEN),
        norm.Replace("<unk>", "?"),
        norm.Replace(Regex("<(?:cls|eos|pad)>"), ""),
    ]


def _fold(alphabet: Alphabet, letters: LettersConfig) -> list[norm.Normalizer]:
    """Return one rule for each letter that others become; J, folded to upper case, is left to the model."""
    sources: dict[str, str] = defaultdict(str)
    for old, new in folding(alphabet, letters).items():
        if old != new and old.upper() != XLE:
            sources[new] += old
    if alphabet == "protein":
        sources[XLE] = XLE.lower()
    return [norm.Replace(Regex(f"[{old}]"), new) for new, old in sources.items()]


def _join_words(k: int) -> list[norm.Normalizer]:
    """Join lines, and k-mers given as words that overlap; any other blank stays, as a stranger."""
    letter = "[ACGTN]"
    word = rf"(?<={letter}({letter}{{{k - 1}}}))(?<!{letter}{{{k + 1}}})"
    return [
        norm.Replace(Regex(rf"[{BLANK}]*[\r\n][{BLANK}\r\n]*|\A[{BLANK}]+|[{BLANK}]+\z"), ""),
        norm.Replace(Regex(f"[{BLANK}]+"), " "),
        norm.Replace(Regex(rf"{word} \1(?={letter}(?!{letter}))"), ""),
    ]


def _copy_bases(k: int) -> list[norm.Normalizer]:
    """Turn each base into a blank and its k-mer, or itself if it begins none; see KmerTokenizer."""
    rules = []
    for place in range(1, k):
        behind = f"(?<={_BASE}{_COPY}{{{place - 1}}})"
        for base, copy in zip(_BASES + _HIDDEN, "acgtm", strict=True):
            ahead = base if place == 1 else f"{_BASE}{_COPY}{{{place - 2}}}{copy}"
            rules.append(norm.Replace(Regex(f"{behind}(?={ahead})"), copy))
    whole, part = f"{_COPY}{{{k - 1}}}", f"{_COPY}{{0,{k - 2}}}(?!{_COPY})"
    rules += [
        norm.Replace(Regex(rf"(?<={_BASE}{whole})(?:{_BASE}{part})+\z"), ""),
        norm.Replace(Regex(f"(?<={_BASE})(?!{whole}){_COPY}+"), ""),
        norm.Replace(Regex(f"(?:{_HIDDEN}|{_BASE}(?=[acgt]*m)){whole}"), _HIDDEN),
    ]
    rules += [norm.Replace(letter, f" {letter}") for letter in "ACGTN"]
    return rules + [norm.Replace(base.lower(), base) for base in _BASES]


def cut(units: str, k: int, overlapping: bool) -> pre_tokenizers.PreTokenizer:
    """Return what cuts the text into tokens, or for byte pairs into stretches of bases."""
    if overlapping and k > 1:
        return pre_tokenizers.WhitespaceSplit()
    if units == "byte-pairs":
        return _split("[ACGT]+|.")
    if units == "codons":
        return pre_tokenizers.Sequence([pre_tokenizers.FixedLength(3), _split("[ACGT]{3}|.")])
    return _split(f"[ACGT]{{{k}}}|.") if k > 1 else pre_tokenizers.FixedLength(1)


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def joining(k: int) -> decoders.Decoder:
    """Return the decoder: of an overlapping k-mer, it drops all but the first base if others follow."""
    if k == 1:
        return decoders.Fuse()
    follows = f"{_EDGE}(?:[ACGTN]|<mask>)"
    rest = f"(?<={_EDGE}[ACGT])[ACGT]{{{k - 1}}}(?={follows})"
    return decoders.Sequence(
        [
            decoders.Replace(Regex("^"), _EDGE),
            decoders.Fuse(),
            decoders.Replace(Regex(rest), ""),
            decoders.Replace(_EDGE, ""),
        ]
    )
