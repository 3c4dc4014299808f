"""Which letters a sequence may hold, and what becomes of the others.

The policy is `LettersConfig`, the same for files and for tokenizers (`folding`). By default, DNA: A C G T N
stay; lower case (soft masking) is folded to upper case; U becomes T; the IUPAC codes R Y S W K M B D H V
become N; anything else makes a bad sequence. Protein: the 20 residues and B Z X U O stay; lower case is
folded; J (leucine or isoleucine) becomes X; one ``*`` at the end is stripped; an inner ``*`` makes a bad
sequence. Gaps (``-``, or ``.``, which becomes ``-``) stay in aligned proteins; elsewhere they make a bad
sequence, or are removed. Everything changed is counted. Codes: IUPAC-IUB nomenclature (Cornish-Bowden 1985,
doi:10.1093/nar/13.9.3021).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import AnyStr

import numpy as np

from pipeline.config import Alphabet, LettersConfig
from pipeline.errors import UserError

DEFAULTS = LettersConfig()
CASE_AUROC = 0.95
DNA_LETTERS = "ACGTN"
AMBIGUOUS = "RYSWKMBDHV"
RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
RARE = "BZUO"
GAPS = b"-."
STOP = b"*"
_LOWER = b"abcdefghijklmnopqrstuvwxyz"
_REFUSED = 0
_UNKNOWN = {"dna": b"N", "protein": b"X-"}
_HINTS = {
    "-": "a gap, which only aligned proteins may have (--aligned); --letters.gaps remove takes it out",
    "*": "a stop codon before the end; --letters.stops split cuts proteins there",
}
_HINTS["."] = _HINTS["-"]
_KEYS = {"U": "uracil t", "J": "xle x"} | dict.fromkeys("RYSWKMBDHV", "ambiguous n")
_PAIRED, _PARTNERS = b"ACGTRYSWKMBDHVN-", b"TGCAYRSWMKVHDBN-"


class BadSequenceError(UserError):
    """A letter outside the alphabet; the message names it and its 1-based position, not the record."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of clean letters without a cut.

    Attributes:
        start: 0-based offset in the record, in letters as read, of the first letter of the stretch.
        sequence: upper case; lower-case letters are soft-masked.
        gaps: (offset in ``sequence`` before which gaps were removed, how many), in order: letter i of
            ``sequence`` was letter ``start + i + (all that was removed at offsets <= i)`` of the record.
    """

    start: int
    sequence: bytes
    gaps: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What `clean` made of a sequence.

    Attributes:
        pieces: the stretches between stops (``letters.stops: split``; empty ones are left out), else one.
        changed: how many letters were changed, by kind.
    """

    pieces: list[Piece]
    changed: Counter[str]

    @property
    def sequence(self) -> bytes:
        """Return the letters of a sequence that was not cut."""
        assert len(self.pieces) == 1, "the sequence was cut at stops; take the pieces"
        return self.pieces[0].sequence


def folding(alphabet: Alphabet, letters: LettersConfig = DEFAULTS) -> dict[str, str]:
    """Return every accepted letter, of both cases, with the upper-case letter that it becomes.

    Files refuse what is not in it, and tokenizers read it as ``<unk>``. Gaps and stops are not in it.
    """
    if alphabet == "dna":
        becomes = dict(zip(DNA_LETTERS, DNA_LETTERS, strict=True))
        becomes |= {"U": "T"} if letters.uracil == "t" else {}
        becomes |= dict.fromkeys(AMBIGUOUS, "N") if letters.ambiguous == "n" else {}
    else:
        becomes = {letter: letter for letter in RESIDUES + "X"}
        becomes |= {letter: letter if letters.rare == "keep" else "X" for letter in RARE}
        becomes |= {"J": letters.xle.upper()} if letters.xle != "error" else {}
    return becomes | {old.lower(): new for old, new in becomes.items()}


def clean(
    sequence: bytes,
    alphabet: Alphabet,
    letters: LettersConfig = DEFAULTS,
    *,
    aligned: bool = False,
    insertions: bool = False,
    start: int = 0,
    last: bool = True,
) -> Cleaned:
    """Bring a sequence, or a part of one, to the letters of its alphabet.

    Args:
        sequence: letters as read, without blanks.
        alphabet: "dna" or "protein".
        letters: the policy.
        aligned: accept gaps, and keep them (proteins only); stops are not cut at.
        insertions: remove lower-case letters and dots first: the insertions of an A3M row.
        start: 0-based offset of a part in its record, for the starts of pieces and for messages.
        last: the record ends with this part, so that a ``*`` at its end is stripped.

    Returns:
        The clean letters and how many were changed, by kind: ``insertions_removed``, ``stops_stripped``,
        ``stops_cut``, ``gaps_removed``, ``lower_case_folded`` (or ``soft_masked``, which stay lower case),
        ``u_to_t``, ``ambiguous_to_n``, ``j_to_x``, ``j_to_l``, ``rare_to_x`` and ``dots_to_gaps``.

    Raises:
        BadSequenceError: a letter that the alphabet has no rule for.
    """
    aligned = aligned and alphabet == "protein"
    table = _table(alphabet, letters, aligned)  # pyright: ignore[reportArgumentType]
    body = sequence.removesuffix(STOP) if last and alphabet == "protein" else sequence
    folded = body.translate(table)
    if _REFUSED in folded:
        raise BadSequenceError(_blame(body, folded.index(_REFUSED), start, alphabet))
    cut = not aligned and (STOP in folded or b"-" in folded)
    if folded == sequence and letters.case == "fold" and not cut:
        return Cleaned([Piece(start, folded)], Counter())
    changed = Counter(stops_stripped=len(sequence) - len(body))
    if insertions:
        matched = body.translate(None, _LOWER + b".")
        changed["insertions_removed"] = len(body) - len(matched)
        body, folded = matched, matched.translate(table)
    changed.update(_count_changed(body, alphabet, letters, aligned))
    if cut:
        changed.update(stops_cut=folded.count(STOP), gaps_removed=folded.count(b"-"))
    return Cleaned(_cut(folded, start) if cut else [Piece(start, folded)], +changed)


@cache  # frozen settings are hashable, although pydantic does not tell type checkers
def _table(alphabet: Alphabet, letters: LettersConfig, aligned: bool) -> bytes:
    """Return what each byte becomes; gaps and stops that are dealt with later stay, refused bytes are 0."""
    becomes = folding(alphabet, letters)
    if letters.case == "soft-mask":
        becomes = {old: new.lower() if old.islower() else new for old, new in becomes.items()}
    if aligned or letters.gaps == "remove":
        becomes |= {"-": "-", ".": "-"}
    if alphabet == "protein" and letters.stops == "split" and not aligned:
        becomes |= {"*": "*"}
    table = bytearray([_REFUSED]) * 256
    for old, new in becomes.items():
        table[ord(old)] = ord(new)
    return bytes(table)


def _blame(body: bytes, index: int, start: int, alphabet: Alphabet) -> str:
    letter = body[index : index + 4].decode("utf-8", "replace")[0]
    if letter in folding(alphabet):
        key, value = _KEYS[letter.upper()].split()
        why = f"refused by letters.{key}; --letters.{key} {value} makes it {value.upper()}"
    else:
        why = _HINTS.get(letter, f"not a {'DNA' if alphabet == 'dna' else alphabet} letter")
    return f"letter {letter!r} at position {start + index + 1} is {why}"


@cache
def _kinds(alphabet: Alphabet, letters: LettersConfig, aligned: bool) -> tuple[list[str], bytes]:
    """Return the kinds of letters that change, and a table with the 1-based number of each letter's kind."""
    if alphabet == "dna":
        kinds = {"u_to_t": "U", "ambiguous_to_n": AMBIGUOUS}
    else:
        rare = RARE if letters.rare == "x" else ""
        kinds = {f"j_to_{letters.xle}": "J", "rare_to_x": rare, "dots_to_gaps": "." if aligned else ""}
    table = bytearray(256)
    for number, olds in enumerate(kinds.values(), 1):
        for old in olds + olds.lower():
            table[ord(old)] = number
    return list(kinds), bytes(table)


def _count_changed(body: bytes, alphabet: Alphabet, letters: LettersConfig, aligned: bool) -> dict[str, int]:
    kinds, table = _kinds(alphabet, letters, aligned)  # pyright: ignore[reportArgumentType]
    lower = "soft_masked" if letters.case == "soft-mask" else "lower_case_folded"
    counts = {lower: int(np.count_nonzero(np.frombuffer(body, np.uint8) >= ord("a")))}
    kind_L = np.frombuffer(body.translate(table), np.uint8)
    return counts | {kind: int(np.count_nonzero(kind_L == number)) for number, kind in enumerate(kinds, 1)}


def _cut(folded: bytes, start: int) -> list[Piece]:
    """Cut at the stops and remove the gaps; leave out empty pieces, unless there is nothing else."""
    pieces = []
    for part in folded.split(STOP):
        pieces.append(Piece(start, part.translate(None, b"-"), _gap_runs(part)))
        start += len(part) + 1
    return [piece for piece in pieces if piece.sequence] or pieces[:1]


def _gap_runs(part: bytes) -> list[tuple[int, int]]:
    gap_L = np.frombuffer(part, np.uint8) == ord("-")
    edges = np.flatnonzero(np.diff(gap_L, prepend=False, append=False))
    begin_R, length_R = edges[::2], np.diff(edges)[::2]
    offset_R = begin_R - (np.cumsum(length_R) - length_R)
    return list(zip(offset_R.tolist(), length_R.tolist(), strict=True))


def count_unknown(sequence: bytes, alphabet: Alphabet) -> int:
    """Return how many letters of a clean sequence, in either case, are unknown (N; X and gaps)."""
    unknown = _UNKNOWN[alphabet]
    return sum(sequence.count(letter) for letter in {*unknown, *unknown.lower()})


def without_case(sequence: bytes) -> bytes:
    """Return letters in upper case; what is no letter is changed as well, one to one (faster than upper)."""
    return (np.frombuffer(sequence, np.uint8) & 0xDF).tobytes()


def case_separates(labels: Sequence[int], lower_case: Sequence[float]) -> bool:
    """Tell whether letter case gives a class away: it would be learnt instead of biology if it were kept.

    Args:
        labels: class of each record.
        lower_case: share of each record's letters that are lower case.

    Returns:
        Whether that share tells some class from all others with an AUROC of 0.95 or more, either way.
    """
    from scipy.stats import rankdata

    label_N, rank_N = np.array(labels), rankdata(lower_case)
    for label in np.unique(label_N):
        of_N = label_N == label
        inside, outside = of_N.sum(), (~of_N).sum()
        if outside:
            auroc = (rank_N[of_N].sum() - inside * (inside + 1) / 2) / (inside * outside)
            if max(auroc, 1 - auroc) >= CASE_AUROC:
                return True
    return False


def reverse_complement(sequence: AnyStr) -> AnyStr:
    """Return the other strand, 5' to 3', IUPAC codes and case kept; twice gives the same strand again.

    A sequence with U is RNA: its A is paired with U (and twice is the same if both strands have a U).

    Raises:
        UserError: a letter that has no complement, or both T and U.
    """
    if isinstance(sequence, str):
        return _reverse_complement(sequence.encode()).decode()
    return _reverse_complement(sequence)


def _reverse_complement(letters: bytes) -> bytes:
    nucleic_acid = "RNA" if b"U" in letters or b"u" in letters else "DNA"
    paired, table = _complement(nucleic_acid)
    strangers = letters.translate(None, paired)
    if strangers:
        index = letters.index(strangers[0])
        letter = letters[index : index + 4].decode("utf-8", "replace")[0]
        raise UserError(f"letter {letter!r} at position {index + 1} has no complement in {nucleic_acid}")
    return letters.translate(table)[::-1]


@cache
def _complement(nucleic_acid: str) -> tuple[bytes, bytes]:
    """Return the letters that have a complement, and the table of it."""
    paired, partners = _PAIRED + _PAIRED.lower(), _PARTNERS + _PARTNERS.lower()
    if nucleic_acid == "RNA":
        paired, partners = (letters.replace(b"T", b"U").replace(b"t", b"u") for letters in (paired, partners))
    return paired, bytes.maketrans(paired, partners)
