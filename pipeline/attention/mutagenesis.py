"""In-silico mutagenesis: what every single substitution changes, for a classifier or for a language model.

Attention says what was read; a substitution says what matters. The change of a classifier is that of the
log-odds of one class; the change of a language model is the logarithm of the ratio of the probabilities of
the new and of the old letter, the place hidden (Meier et al. 2021, doi:10.1101/2021.07.09.450648). Both are
in nats, and below 0 where the old letter is the better one. Sequences are read one after another, and what is
in memory does not grow with their number.

Shapes: L letters of a sequence, A letters that may stand at a place (4 bases, or 20 residues), M mutants,
C classes, P places, U letters that are hidden together.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, tee
from pathlib import Path

import numpy as np

from pipeline.errors import UserError
from pipeline.sequences.places import Place
from pipeline.sequences.tracks import SIGNS, TRACKS, bedgraph
from pipeline.tokens.kmers import Codec, KmerCodec
from pipeline.tokens.likelihood import Asked, hides_letters, log_probabilities
from pipeline.training.classifier import window_logits

AT_ONCE = 1024  # mutants, or questions, in memory


def classifier_changes(
    model, codec: Codec, sequences: Iterable[str], positive: int, batch_size: int
) -> Iterator[np.ndarray]:
    """Yield for each sequence the change (L, A) of the log-odds of a class with each letter at each place.

    It is 0 for the letter that is there, and not a number in the rows of places that have no real letter (N).

    Args:
        model: a sequence classifier of ours.
        codec: codec of its tokenizer, of any kind.
        sequences: clean letters.
        positive: number of the class; its odds are those against all others together.
        batch_size: mutants read at once; results do not depend on it.

    Raises:
        UserError: a sequence, or a mutant of it, has more tokens than the classifier's context.
    """
    first, second = tee(codec.codes(sequence) for sequence in sequences)
    mutants = (mutant for codes_L in first for mutant in _mutants(codes_L, codec.n_real))
    odds = _log_odds(model, codec, mutants, positive, batch_size)
    for codes_L in second:
        own = next(odds)
        yield _table(codes_L, (other - own for other in odds), codec.n_real)


def likelihood_changes(model, codec: Codec, sequences: Iterable[str], budget: int) -> Iterator[np.ndarray]:
    """Yield for each sequence the change (L, A) of the log-probability with each letter at each place.

    Under overlapping k-mers all tokens that touch the place are hidden. Of k-mers that do not overlap the
    whole token is, and the other letters of the token stay in both: the ratio is that of the changed letter
    given them. Zeros and missing values are as in `classifier_changes`.

    Args:
        model: a masked language model of ours.
        codec: codec of its tokenizer, not one of byte pairs.
        sequences: clean letters that fit into the context.
        budget: tokens read at once, at most, but for a sequence that is longer; results do not depend on it.

    Raises:
        UserError: the tokenizer is one of byte pairs, where other letters are other tokens.
    """
    if not isinstance(codec, KmerCodec):
        raise UserError(
            "checkpoint: its tokens are byte pairs, none of which has another letter in its place; give a "
            "model of k-mers or single letters"
        )
    return _likelihood_changes(model, codec, sequences, budget)


def _likelihood_changes(
    model, codec: KmerCodec, sequences: Iterable[str], budget: int
) -> Iterator[np.ndarray]:
    first, second = tee(codec.codes(sequence) for sequence in sequences)
    asked = _chunks(one for codes_L in first for one in _questions(codes_L, codec))
    answers = (nats_M for some in asked for nats_M in log_probabilities(model, codec, some, budget))
    changes = (change for nats_M in answers for change in nats_M[1:] - nats_M[0])
    for codes_L in second:
        yield _table(codes_L, changes, codec.n_real)


def position_effects(change_LA: np.ndarray) -> np.ndarray:
    """Return the effect (L,) of each place: by how much a substitution lowers the score, on average.

    It is above 0 where the letter supports the class, or is likelier than the others, and not a number where
    there is no real letter.
    """
    return -change_LA.sum(1) / (change_LA.shape[1] - 1)


def write_effects(folder: Path, places: Sequence[Place | None], effects: Sequence[np.ndarray]) -> list[Path]:
    """Write effects in genome coordinates, one bedGraph file for each strand that sequences lie on.

    The score of a base is the mean over the sequences of that strand that hold it; bases without an effect
    are left out. Of a place that runs over the origin of a circular record, positions go on past its end.

    Args:
        folder: where effects.plus.bedgraph and effects.minus.bedgraph come to lie.
        places: where each sequence lies; None where that is not known.
        effects: (L,) of each sequence, from its first letter on, on its own strand.

    Returns:
        The files; none, if no sequence has a place.
    """
    written = []
    for strand in (1, -1):
        pairs = [(p, e) for p, e in zip(places, effects, strict=True) if p and p.strand == SIGNS[strand]]
        if pairs:
            written.append(folder / f"effects.{TRACKS[strand]}.bedgraph")
            with bedgraph(written[-1]) as write:
                for chromosome in dict.fromkeys(place.chromosome for place, _ in pairs):
                    write(chromosome, *_merged([pair for pair in pairs if pair[0].chromosome == chromosome]))
    return written


def _merged(pairs: Sequence[tuple[Place, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bases of a chromosome that have an effect, ascending, and their mean effects."""
    assert all(place.end - place.start == len(effect_L) for place, effect_L in pairs)
    at = np.concatenate([np.arange(place.start, place.end) for place, _ in pairs])
    effect = np.concatenate([effect_L[:: -1 if place.strand == "-" else 1] for place, effect_L in pairs])
    seen = np.isfinite(effect)
    at_N, number = np.unique(at[seen], return_inverse=True)
    return at_N, np.bincount(number, effect[seen]) / np.bincount(number)


def _others(codes_L: np.ndarray, n_real: int) -> np.ndarray:
    """Return (L, A) which letters may be put in place of another one."""
    return (codes_L[:, None] < n_real) & (codes_L[:, None] != np.arange(n_real))


def _mutants(codes_L: np.ndarray, n_real: int) -> Iterator[np.ndarray]:
    """Yield the codes (L,) as they are, then with each single substitution: by place, then by letter."""
    yield codes_L
    for place, letter in np.argwhere(_others(codes_L, n_real)):
        mutant_L = codes_L.copy()
        mutant_L[place] = letter
        yield mutant_L


def _table(codes_L: np.ndarray, changes: Iterator[float], n_real: int) -> np.ndarray:
    """Return the changes (L, A), taking those of the substitutions in the order of `_mutants`."""
    others_LA = _others(codes_L, n_real)
    change_LA = np.full(others_LA.shape, np.nan)
    change_LA[codes_L < n_real] = 0
    change_LA[others_LA] = list(islice(changes, int(others_LA.sum())))
    return change_LA


def _chunks(items: Iterable) -> Iterator[list]:
    left = iter(items)
    while chunk := list(islice(left, AT_ONCE)):
        yield chunk


def _log_odds(
    model, codec: Codec, windows: Iterable[np.ndarray], positive: int, batch_size: int
) -> Iterator[float]:
    """Yield the log-odds of a class for each window of letter codes, in nats."""
    size = model.config.max_position_embeddings - 2
    for chunk in _chunks(windows):
        batch = codec.batch(chunk)
        ids = [framed[1:-1] for framed in np.split(batch.ids, batch.offsets[1:-1])]
        if (longest := max(map(len, ids))) > size:
            raise UserError(
                f"a sequence with one letter substituted has {longest} tokens, more than the classifier's "
                f"{size}; cut sequences into shorter windows"
            )
        logits_MC = window_logits(model, codec, ids, batch_size).astype(float)
        others_MC = np.delete(logits_MC, positive, 1)
        yield from logits_MC[:, positive] - np.logaddexp.reduce(others_MC, 1)


def _questions(codes_L: np.ndarray, codec: KmerCodec) -> Iterator[Asked]:
    """Hide each real letter, or each token, once, and ask for its letters with every single substitution."""
    tokens, place_P = codec.tokens(codes_L), np.flatnonzero(codes_L < codec.n_real)
    unit_P = place_P
    if not hides_letters(codec):
        unit_P = np.searchsorted(tokens.starts, place_P, side="right") - 1
    for place_U in np.split(place_P, np.flatnonzero(np.diff(unit_P)) + 1):
        if len(place_U):
            choices_MU = np.stack(list(_mutants(codes_L[place_U], codec.n_real)))
            yield Asked(tokens, codes_L, place_U, choices_MU)
