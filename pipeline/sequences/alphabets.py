"""Which letters a sequence may hold, and what becomes of the others.

DNA: A C G T N stay; lower case (soft masking) is folded to upper case; U becomes T; the IUPAC codes
R Y S W K M B D H V become N; anything else, gaps included, makes a bad sequence. Protein: the 20 residues
and B Z X U O stay; lower case is folded; J (leucine or isoleucine) becomes X; one ``*`` at the end is
stripped; an inner ``*`` makes a bad sequence. Gaps (``-``, or ``.``, which becomes ``-``) are accepted only
in aligned proteins. Everything changed is counted. Codes: IUPAC-IUB nomenclature (Cornish-Bowden 1985,
doi:10.1093/nar/13.9.3021).
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from pipeline.config import Alphabet
from pipeline.errors import UserError

CASE_AUROC = 0.95
DNA_LETTERS = b"ACGTN"
PROTEIN_LETTERS = b"ACDEFGHIKLMNPQRSTVWYBZXUO"
_IUPAC = b"RYSWKMBDHV"
_LOWER = b"abcdefghijklmnopqrstuvwxyz"
_KEPT = {"dna": DNA_LETTERS, "protein": PROTEIN_LETTERS}
_ACCEPTED = {"dna": DNA_LETTERS + _IUPAC + b"U", "protein": PROTEIN_LETTERS + b"J"}
_UNKNOWN = {"dna": b"N", "protein": b"X-"}
_HINTS = {
    "-": "a gap, which only aligned proteins may have (--aligned)",
    ".": "a gap, which only aligned proteins may have (--aligned)",
    "*": "a stop codon before the end",
}


def _folding(changes: dict[bytes, bytes]) -> bytes:
    table = bytearray(bytes(range(256)).upper())
    for old, new in changes.items():
        for letter in old + old.lower():
            table[letter] = new[0]
    return bytes(table)


_FOLD = {"dna": _folding({b"U": b"T", _IUPAC: b"N"}), "protein": _folding({b"J": b"X", b".": b"-"})}
_PAIRED = b"ACGTRYSWKMBDHVN-U"
_COMPLEMENT = bytes.maketrans(_PAIRED + _PAIRED.lower(), b"TGCAYRSWMKVHDBN-A" + b"tgcayrswmkvhdbn-a")


class BadSequenceError(UserError):
    """A letter outside the alphabet; the message names it and its 1-based position, not the record."""


def clean(
    sequence: str, alphabet: Alphabet, *, aligned: bool = False, insertions: bool = False
) -> tuple[str, Counter[str]]:
    """Bring a sequence to the letters of its alphabet.

    Args:
        sequence: letters as read, without blanks.
        alphabet: "dna" or "protein".
        aligned: accept gaps (proteins only).
        insertions: remove lower-case letters and dots first: the insertions of an A3M row.

    Returns:
        The clean sequence and how many letters were changed, by kind: ``insertions_removed``,
        ``stops_stripped``, ``lower_case_folded``, ``u_to_t``, ``ambiguous_to_n``, ``j_to_x`` and
        ``dots_to_gaps``.

    Raises:
        BadSequenceError: a letter that the alphabet has no rule for.
    """
    changed: Counter[str] = Counter()
    letters = sequence.encode("utf-8", "replace")
    if not letters.translate(None, _KEPT[alphabet]):
        return sequence, changed
    gaps = b"-." if aligned and alphabet == "protein" else b""
    body = letters.removesuffix(b"*") if alphabet == "protein" else letters
    _refuse_bad(body, alphabet, gaps)
    changed["stops_stripped"] = len(letters) - len(body)
    if insertions:
        matched = body.translate(None, _LOWER + b".")
        changed["insertions_removed"] = len(body) - len(matched)
        body = matched
    changed += _count_folded(body, alphabet)
    return body.translate(_FOLD[alphabet]).decode("ascii"), +changed


def _refuse_bad(letters: bytes, alphabet: Alphabet, gaps: bytes) -> None:
    accepted = _ACCEPTED[alphabet] + gaps
    strangers = letters.translate(None, accepted + accepted.lower())
    if strangers:
        letter = strangers.decode()[0]
        why = _HINTS.get(letter, f"not a {'DNA' if alphabet == 'dna' else alphabet} letter")
        raise BadSequenceError(f"letter {letter!r} at position {letters.decode().index(letter) + 1} is {why}")


def _count_folded(letters: bytes, alphabet: Alphabet) -> Counter[str]:
    upper = letters.upper()
    kinds = {
        "dna": {"u_to_t": b"U", "ambiguous_to_n": _IUPAC},
        "protein": {"j_to_x": b"J", "dots_to_gaps": b"."},
    }
    counts = {kind: sum(upper.count(old) for old in olds) for kind, olds in kinds[alphabet].items()}
    return Counter({"lower_case_folded": len(letters) - len(letters.translate(None, _LOWER)), **counts})


def is_unknown(sequence: str, alphabet: Alphabet) -> bool:
    """Tell whether a clean sequence holds nothing but unknown letters (N; X and gaps)."""
    return not sequence.strip(_UNKNOWN[alphabet].decode())


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


def reverse_complement(sequence: str) -> str:
    """Return the other strand, 5' to 3', IUPAC codes and case kept; U pairs as T does.

    Raises:
        UserError: a letter that has no complement.
    """
    letters = sequence.encode()
    strangers = letters.translate(None, _PAIRED + _PAIRED.lower()).decode()
    if strangers:
        raise UserError(
            f"letter {strangers[0]!r} at position {sequence.index(strangers[0]) + 1} has no complement; "
            "only DNA sequences have a reverse complement"
        )
    return letters.translate(_COMPLEMENT)[::-1].decode()
