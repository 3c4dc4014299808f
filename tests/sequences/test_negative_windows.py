"""Shuffles against all that there can be; windows against a definition base by base."""

from collections import Counter
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from pipeline.errors import UserError
from pipeline.sequences.alphabets import reverse_complement
from pipeline.sequences.genomes import GenomeInMemory, locate
from pipeline.sequences.negatives import (
    PIECES,
    REPLACED,
    Positive,
    dinucleotide_shuffle,
    gc_share,
    genome_windows,
    partly_shuffled,
)
from pipeline.sequences.places import Place, Places, strata


def doublets(sequence):
    return Counter(pairwise(sequence))


@given(st.text("ACGTNa", max_size=60), st.integers(0, 9))
@settings(max_examples=80, deadline=None)
def test_pairs_of_neighbours_stay(sequence, seed):
    shuffled = dinucleotide_shuffle(sequence, np.random.default_rng(seed))
    assert doublets(shuffled) == doublets(sequence)
    assert shuffled[:1] == sequence[:1]
    assert Counter(shuffled) == Counter(sequence)


@pytest.mark.parametrize("sequence", ["AACACGAC", "ACGACTCAG", "AATATTAAT"])
def test_all_shuffles_are_equally_likely(sequence):
    possible = {"".join(p) for p in permutations(sequence) if p[0] == sequence[0]}
    possible = {p for p in possible if doublets(p) == doublets(sequence)}
    rng = np.random.default_rng(0)
    drawn = Counter(dinucleotide_shuffle(sequence, rng) for _ in range(400 * len(possible)))
    assert len(possible) >= 6
    assert drawn.keys() == possible
    assert chisquare(list(drawn.values())).pvalue > 1e-3


def test_a_shuffle_ends_where_its_last_exits_are_rare():
    sequence = "A" * 2000 + "C" * 2000 + "G" * 2000 + "T" * 2000
    assert dinucleotide_shuffle(sequence, np.random.default_rng(0)) == sequence


def test_a_shuffle_of_much_is_unlike_it():
    rng = np.random.default_rng(0)
    sequence = "".join(rng.choice(list("ACGT"), 400))
    same = np.mean([a == b for a, b in zip(sequence, dinucleotide_shuffle(sequence, rng), strict=True)])
    assert 0.15 < same < 0.35


@pytest.mark.parametrize("length", [20, 81, 300])
def test_twelve_of_twenty_pieces_are_replaced(length):
    rng, kept, letters = np.random.default_rng(0), [], Counter()
    cut = [round(end) for end in np.floor(np.linspace(0, length, PIECES + 1) + 1e-9)]
    assert {end - begin for begin, end in pairwise(cut)} <= {length // 20, length // 20 + 1}
    for _ in range(300):
        made = partly_shuffled("n" * length, rng)
        pieces = [made[begin:end] for begin, end in pairwise(cut)]
        kept.append([set(piece) == {"n"} for piece in pieces])
        assert all(set(piece) <= set("ACGT") for piece in pieces if set(piece) != {"n"})
        letters.update(made)
    kept = np.array(kept)
    assert (kept.sum(1) == PIECES - REPLACED).all()
    assert np.abs(kept.mean(0) - 0.4).max() < 5 * (0.24 / 300) ** 0.5
    count = [letters[base] for base in "ACGT"]
    assert chisquare(count).pvalue > 1e-3


def test_short_sequences_are_not_partly_shuffled():
    with pytest.raises(UserError, match="19 bases, and 20 are the least that can be partly shuffled"):
        partly_shuffled("A" * 19, np.random.default_rng(0))


RECORDS = {"one": "ACGTTGCANGATTACAGGCATCGAT", "two": "TTGACAGCTAGCTCAGTCCTAGGTATAATGCTAGC"}
GENES = [Place("one", 0, 8, "+"), Place("two", 4, 16, "-"), Place("two", 13, 30, "+")]
START, SITE, SIZE = Place("two", 9, 10, "+"), Place("one", 14, 17, "-"), 4


def allowed(where, away):
    """All windows that the rules allow, by looking at every one and at each of its bases."""
    places = []
    for name, text in RECORDS.items():
        for start in range(len(text) - SIZE + 1):
            window = range(start, start + SIZE)
            near = [b for p in (START, SITE) if p.chromosome == name for b in range(p.start, p.end)]
            far = all(abs(base - other) >= away for base in window for other in near)
            if "N" not in text[start : start + SIZE] and far:
                places += [Place(name, start, start + SIZE, strand) for strand in "+-"]
    kinds = strata(Places.of(places), Places.of(GENES))
    return {place for place, kind in zip(places, kinds, strict=True) if where in ("any", kind)}


@pytest.mark.parametrize(
    ("where", "away"),
    [("any", 3), *((where, away) for where in ("intergenic", "coding", "antisense") for away in (1, 3))],
)
def test_windows_are_drawn_from_all_that_are_allowed(where, away):
    genome = GenomeInMemory((name, text.encode()) for name, text in RECORDS.items())
    positive = Positive("p", "ACGT", [SITE])
    rules = {"features": Places.of(GENES), "starts": Places.of([START]), "where": where, "away": away}
    drawn = Counter()
    for seed in range(10 * len(allowed(where, away))):
        (window,) = genome_windows(genome, [positive], **rules, gc_tolerance=1, tries=1, seed=seed)
        drawn[window.place] += 1
    assert drawn.keys() == allowed(where, away)
    assert chisquare(list(drawn.values())).pvalue > 1e-3


@pytest.fixture(scope="module")
def world():
    """A genome of isochores and repeats, and positives out of it, of two lengths."""
    rng = np.random.default_rng(1)
    shares = np.repeat(rng.uniform(0.2, 0.8, 60), 500)
    strong = rng.random(30_000) < shares
    letters = np.where(strong, rng.choice([*b"CG"], 30_000), rng.choice([*b"AT"], 30_000)).astype(np.uint8)
    for begin in range(0, 30_000, 3000):
        letters[begin : begin + 1000] += 32
    genome = GenomeInMemory([("x", letters.tobytes())])
    starts = rng.choice(600, 40, replace=False) * 50
    sites = [Place("x", int(s), int(s) + (50, 30)[i % 2], "+-"[i % 2]) for i, s in enumerate(starts)]
    return genome, [Positive(f"p{i}", genome.fetch(site), [site]) for i, site in enumerate(sites)]


def lower(genome, place):
    return np.mean([letter >= ord("a") for letter in genome.letters_L[place.start : place.end]])


def test_windows_are_like_their_positives(world):
    genome, positives = world
    windows = genome_windows(genome, positives, away=20, ratio=2, tries=20_000)
    assert [window.positive for window in windows] == [i for i in range(40) for _ in range(2)]
    for window in windows:
        positive, place = positives[window.positive], window.place
        assert window.sequence == genome.fetch(place)
        assert place.end - place.start == len(positive.sequence)
        differs = abs(gc_share(window.sequence) - gc_share(positive.sequence))
        assert window.gc_difference == pytest.approx(differs)
        repeats = abs(lower(genome, place) - lower(genome, positive.places[0]))
        assert window.repeat_difference == pytest.approx(repeats)
        assert differs <= 0.02 + 1e-9
        assert repeats <= 0.1 + 1e-9
        for other in positives:
            site = other.places[0]
            assert max(place.start - site.end + 1, site.start - place.end + 1) >= 20
    ends = sorted((window.place.start, window.place.end) for window in windows)
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))
    assert {window.place.strand for window in windows} == {"+", "-"}


def test_the_order_of_the_positives_changes_nothing(world):
    genome, positives = world
    rules = {"away": 20, "ratio": 2, "seed": 3}
    order = np.random.default_rng(0).permutation(len(positives))
    moved = genome_windows(genome, [positives[i] for i in order], **rules)
    straight = genome_windows(genome, positives, **rules)
    assert {(positives[order[w.positive]].id, w.place) for w in moved} == {
        (positives[w.positive].id, w.place) for w in straight
    }
    assert [w.place for w in straight] == [w.place for w in genome_windows(genome, positives, **rules)]
    other = genome_windows(genome, positives, **rules | {"seed": 4})
    assert len({w.place for w in straight} & {w.place for w in other}) < 20


def test_equal_positives_get_windows_of_their_own(world):
    genome, positives = world
    twins = [Positive(name, positives[0].sequence, positives[0].places) for name in ("b", "a")]
    first, second = genome_windows(genome, twins, away=20)
    assert first.place != second.place


def test_nearest_window_where_none_matches():
    genome = GenomeInMemory([("x", b"A" * 50 + b"AACCA" + b"A" * 50)])
    (window,) = genome_windows(genome, [Positive("p", "CCCCC")], tries=5000)
    assert sorted(window.sequence.replace("T", "A").replace("G", "C")) == list("AAACC")
    assert window.gc_difference == pytest.approx(0.6)


def test_genome_is_filled_to_the_last_window():
    genome = GenomeInMemory([("x", b"ACGTA" * 4)])
    windows = genome_windows(genome, [Positive("p", "ACGTA")], ratio=2, tries=1)
    assert len({window.place for window in windows}) == 2
    with pytest.raises(UserError, match=r"no window is left for record 'p', 5 bases \([234] of 5 negatives"):
        genome_windows(genome, [Positive("p", "ACGTA")], ratio=5, tries=1)
    with pytest.raises(UserError, match=r"no window of the genome fits for record 'p', 21 bases \(0 of 1"):
        genome_windows(genome, [Positive("p", "A" * 21)])


def test_positives_are_looked_up_on_both_strands(world):
    genome, positives = world
    found = locate(genome, [reverse_complement(positive.sequence) for positive in positives])
    assert [{place[:3] for place in places} for places in found] == [
        {positive.places[0][:3]} for positive in positives
    ]
