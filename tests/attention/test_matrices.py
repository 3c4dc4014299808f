"""Simulated promoters with weak boxes; noisy scores in place of attention."""

import numpy as np
import pytest
from Bio.Seq import Seq

from pipeline.attention.matrices import LETTERS, Motif, Seed, correlation, grow
from pipeline.attention.motif_files import best_hits
from pipeline.attention.words import Word, enriched, false_discovery, held_words, high_regions
from pipeline.config import MotifsConfig

BOXES = {"minus35": ("TTGACA", (82, 84, 78, 65, 54, 45)), "minus10": ("TATAAT", (80, 95, 45, 60, 50, 96))}
WINDOW = 81


def truth(box: str) -> np.ndarray:
    word, percent = BOXES[box]
    matrix = np.repeat((1 - np.array(percent) / 100)[:, None] / 3, 4, axis=1)
    matrix[range(6), [LETTERS.index(c) for c in word]] = np.array(percent) / 100
    return matrix


def draw_box(rng: np.random.Generator, box: str) -> list[str]:
    return [LETTERS[rng.choice(4, p=column)] for column in truth(box)]


def make_windows(rng: np.random.Generator, count: int, planted: bool) -> tuple[list[str], list[np.ndarray]]:
    """Windows with two attended stretches each: at a box in half of the cases, else anywhere."""
    sequences, scores = [], []
    for _ in range(count):
        letters, score = rng.choice(list(LETTERS), WINDOW), rng.normal(0, 0.2, WINDOW)
        ten = 48 + rng.integers(-2, 3)
        for box, start in (("minus10", ten), ("minus35", ten - 6 - rng.integers(16, 19))):
            if planted:
                letters[start : start + 6] = draw_box(rng, box)
            seen = start if planted and rng.random() < 0.5 else rng.integers(2, WINDOW - 8)
            seen -= rng.integers(0, 3)
            score[seen : seen + 8] += 1
        sequences.append("".join(letters))
        scores.append(score)
    return sequences, scores


def find_seeds(seed: int, planted: bool, count: int = 1000):
    rng = np.random.default_rng(seed)
    positives, scores = make_windows(rng, count, planted)
    negatives, negative_scores = make_windows(rng, count, planted=False)
    regions = [high_regions(s, 6) for s in scores]
    found = regions + [high_regions(s, 6) for s in negative_scores]
    held = held_words(positives + negatives, found, 6)
    words = enriched(held, np.arange(len(found)) < count, 6)
    q_values = false_discovery([w.p_value for w in words])
    return [Seed(w, q, "2.1") for w, q in zip(words, q_values, strict=True) if q < 0.01], positives, regions


def decoys(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {f"decoy{i}": rng.dirichlet(np.full(4, 0.4), rng.integers(6, 14)) for i in range(count)}


@pytest.mark.parametrize("seed", range(5))
def test_both_boxes_come_out_and_match_the_right_known_motif(seed):
    seeds, sequences, regions = find_seeds(seed, planted=True)
    motifs = grow(seeds, sequences, {"2.1": regions}, 8)
    known = {box: truth(box) for box in BOXES} | decoys(200)
    hits = best_hits({m.name: m.frequencies for m in motifs}, known)
    assert sorted(h.target for h in hits) == ["minus10", "minus35"]
    assert all(abs(h.offset) <= 2 and h.strand == "+" and h.e_value < 0.01 for h in hits)
    assert {m.consensus.upper() for m in motifs} == {"TATAAT", "TTGACA"}
    assert [m.name for m in motifs] == ["motif-1", "motif-2"]
    assert motifs[0].p_value <= motifs[1].p_value
    assert all(m.heads == ["2.1"] and m.q_value < 0.01 for m in motifs)


@pytest.mark.parametrize("seed", range(6))
def test_noise_has_no_significant_word(seed):
    assert find_seeds(seed, planted=False)[0] == []


def test_frequencies_of_a_planted_motif_are_recovered():
    """One box, attended exactly: expected counts are not biased to the consensus."""
    rng = np.random.default_rng(5)
    sequences, regions = [], []
    for _ in range(2000):
        letters, start = rng.choice(list(LETTERS), WINDOW), rng.integers(10, 60)
        letters[start : start + 6] = draw_box(rng, "minus10")
        sequences.append("".join(letters))
        regions.append([(int(start), int(start) + 6)])
    motif = grow([make_seed("TATAAT")], sequences, {"0.0": regions}, 3)[0]
    # standard error of a frequency is at most 0.011
    assert motif.frequencies == pytest.approx(truth("minus10"), abs=0.05)
    assert motif.n_sites > 1850


def slow_expectation(motif: Motif, sequences, regions, share: float) -> tuple[np.ndarray, float]:
    """One round of ZOOPS as it is defined, sequence by sequence: expected counts and expected sites."""
    counts, sites, width = np.zeros_like(motif.counts), 0.0, len(motif.counts)
    composition = np.array([sum(s.count(letter) for s in sequences) + 1 for letter in LETTERS], dtype=float)
    composition /= composition.sum()
    for sequence, ((low, high),) in zip(sequences, regions, strict=True):
        codes = np.array([LETTERS.index(letter) for letter in sequence])
        starts = range(max(0, low - 2), min(len(sequence), high + 2) - width + 1)
        ratios = [motif.frequencies[range(width), codes[i : i + width]].prod() for i in starts]
        ratios = [r / composition[codes[i : i + width]].prod() for r, i in zip(ratios, starts, strict=True)]
        total = 1 - share + share * np.mean(ratios)
        for ratio, i in zip(ratios, starts, strict=True):
            counts[range(width), codes[i : i + width]] += share * ratio / len(ratios) / total
            sites += share * ratio / len(ratios) / total
    return counts, sites


def test_counts_are_the_fixed_point_of_a_slow_expectation():
    rng = np.random.default_rng(8)
    sequences, regions = [], []
    for i in range(300):
        letters, start = rng.choice(list(LETTERS), 50), int(rng.integers(0, 45))
        if i % 2:
            letters[start : start + 6] = draw_box(rng, "minus10")[: 50 - start]
        sequences.append("".join(letters))
        regions.append([(max(0, start - 4), min(50, start + 9))])
    (motif,) = grow([make_seed("TATAAT")], sequences, {"0.0": regions}, 1)
    assert len(motif.counts) == 6
    counts, sites = slow_expectation(motif, sequences, regions, motif.n_sites / 300)
    assert motif.n_sites == pytest.approx(150, abs=30)  # as many were planted
    assert sites == pytest.approx(motif.n_sites, abs=0.1)
    assert counts == pytest.approx(motif.counts, abs=0.1)


def make_seed(word: str, p_value: float = 1e-9, head: str = "0.0") -> Seed:
    return Seed(Word(word, 50, 1, 100, 100, p_value), p_value, head)


def plant(word: str, count: int = 60, seed: int = 0) -> tuple[list[str], list[list[tuple[int, int]]]]:
    rng = np.random.default_rng(seed)
    sequences, regions = [], []
    for _ in range(count):
        start = int(rng.integers(0, 40 - len(word) + 1))
        letters = rng.choice(list(LETTERS), 40)
        letters[start : start + len(word)] = list(word)
        sequences.append("".join(letters))
        regions.append([(start, start + len(word))])
    return sequences, regions


def test_sites_are_where_the_word_stands():
    sequences, regions = plant("TTGACA")
    (motif,) = grow([make_seed("TTGACA")], sequences, {"0.0": regions}, 3)
    assert motif.sites == [(i, found[0][0]) for i, found in enumerate(regions)]
    assert motif.consensus == "TTGACA"
    assert motif.frequencies.sum(axis=1) == pytest.approx(np.ones(6), abs=1e-12)
    assert motif.n_sites == pytest.approx(60, abs=1.5)


def test_case_does_not_matter():
    sequences, regions = plant("TTGACA")
    upper = grow([make_seed("TTGACA")], sequences, {"0.0": regions}, 3)[0]
    lower = grow([make_seed("TTGACA")], [s.lower() for s in sequences], {"0.0": regions}, 3)[0]
    assert (upper.counts == lower.counts).all()


@pytest.mark.parametrize(
    ("planted", "seed", "shift"),
    [("CTTGACAG", "TTGACA", -1), ("TATAATGC", "TAATGC", -2), ("TTGACA", "GACA", -2)],
)
def test_flanks_are_added_where_they_say_something(planted, seed, shift):
    sequences, regions = plant(planted, count=150)
    (motif,) = grow([make_seed(seed)], sequences, {"0.0": regions}, 3)
    assert motif.consensus == planted
    assert planted.index(seed) + shift == 0
    assert len(motif.sites) >= 149
    assert all(start == regions[i][0][0] for i, start in motif.sites)


def test_columns_that_say_nothing_are_cut():
    rng = np.random.default_rng(1)
    sequences, regions = plant("NTGACAN", count=300)
    filled = ["".join(rng.choice(list(LETTERS)) if c == "N" else c for c in s) for s in sequences]
    (motif,) = grow([make_seed("ATGACAC")], filled, {"0.0": regions}, 3)
    assert motif.consensus == "TGACA"


@pytest.mark.parametrize(("word", "expected"), [("ATGACA", "TGAC"), ("ATGAC", "TGAC"), ("TGACA", "TGAC")])
def test_a_matrix_has_five_columns_at_least(word, expected):
    """A window of four is too common to be told from chance, so such a motif would have no sites."""
    rng = np.random.default_rng(1)
    sequences, regions = plant("NTGACN", count=300)
    filled = ["".join(rng.choice(list(LETTERS)) if c == "N" else c for c in s) for s in sequences]
    (motif,) = grow([make_seed(word)], filled, {"0.0": regions}, 3)
    assert len(motif.counts) == 5
    assert expected in motif.consensus
    assert 0.25**5 < MotifsConfig.model_fields["site_p_value"].default < 0.25**4


def test_shifted_and_reversed_copies_are_one_motif_with_all_heads():
    sequences, regions = plant("CTTGACAG", count=150)
    reverse = str(Seq("TTGACA").reverse_complement())
    words = [("TTGACA", "0.0"), ("CTTGAC", "1.2"), ("TTGACA", "3.1"), (reverse, "2.0")]
    seeds = [make_seed(word, 10.0 ** (i - 20), head) for i, (word, head) in enumerate(words)]
    both = [s + str(Seq(s).reverse_complement()) for s in sequences]
    wide = [[*found, (80 - found[0][1], 80 - found[0][0])] for found in regions]
    (motif,) = grow(seeds, both, dict.fromkeys(["0.0", "1.2", "3.1", "2.0"], wide), 5)
    assert (motif.consensus, motif.word, motif.p_value) == ("CTTGACAG", "TTGACA", 1e-20)
    assert motif.heads == ["0.0", "3.1", "1.2", "2.0"]


def test_words_that_share_an_end_with_a_motif_are_no_copies_of_it():
    a, a_regions = plant("TATAAT", seed=1)
    b, b_regions = plant("TAATTGAC", seed=2)  # begins as the other one ends
    seeds = [make_seed("TATAAT", 1e-8, "0.0"), make_seed("ATTGAC", 1e-5, "1.1")]
    regions = {"0.0": a_regions + [[]] * len(b), "1.1": [[]] * len(a) + b_regions}
    motifs = grow(seeds, a + b, regions, 5)
    assert [(m.consensus, m.heads) for m in motifs] == [("TATAAT", ["0.0"]), ("TAATTGAC", ["1.1"])]


def test_no_more_motifs_than_asked_best_first():
    a, a_regions = plant("TTGACA", seed=1)
    b, b_regions = plant("CCGCGG", seed=2)
    seeds = [make_seed("TTGACA", 1e-5), make_seed("CCGCGG", 1e-8)]
    motifs = grow(seeds, a + b, {"0.0": a_regions + b_regions}, 5)
    assert [m.consensus for m in motifs] == ["CCGCGG", "TTGACA"]
    assert [m.consensus for m in grow(seeds, a + b, {"0.0": a_regions + b_regions}, 1)] == ["CCGCGG"]


def test_sites_at_the_very_ends_and_sequences_with_other_letters():
    sequences = ["TTGACA" + "N" * 10] * 10 + ["N" * 10 + "TTGACA"] * 10 + ["NNNN", ""]
    regions = [[(0, 6)]] * 10 + [[(10, 16)]] * 10 + [[(0, 4)], []]
    (motif,) = grow([make_seed("TTGACA")], sequences, {"0.0": regions}, 3)
    assert motif.consensus == "TTGACA"
    assert motif.sites == [(i, 0) for i in range(10)] + [(i, 10) for i in range(10, 20)]


def test_nothing_to_grow_gives_nothing():
    assert grow([], ["ACGT"], {"0.0": [[]]}, 3) == []
    assert grow([], [], {}, 3) == []
    assert grow([make_seed("TTGACA")], ["ACGTACGTAC"] * 9, {"0.0": [[]] * 9}, 3) == []


@pytest.mark.parametrize(("shift", "reverse"), [(0, False), (2, False), (-2, False), (1, True)])
def test_correlation_finds_offset_and_strand(shift, reverse):
    rng = np.random.default_rng(0)
    long = rng.dirichlet(np.full(4, 0.5), 12)
    a, b = long[2:10], long[2 + shift : 10 + shift]
    assert correlation(a, b[::-1, ::-1] if reverse else b) == pytest.approx(1.0, abs=1e-12)
    assert correlation(a, rng.dirichlet(np.full(4, 0.5), 8)) < 0.7


def test_correlation_is_pearsons_where_widths_leave_one_offset():
    rng = np.random.default_rng(2)
    a, b = rng.dirichlet(np.ones(4), 4), rng.dirichlet(np.ones(4), 4)
    expected = max(np.corrcoef(a.ravel(), x.ravel())[0, 1] for x in (b, b[::-1, ::-1]))
    assert correlation(a, b) == pytest.approx(expected, abs=1e-12)
    assert correlation(a, b[:3]) == -1.0


def test_consensus_is_lower_case_below_one_half():
    counts = np.array([[100, 0, 0, 0], [45, 25, 15, 15], [0, 0, 90, 10]], dtype=float)
    assert Motif("", counts, np.full(4, 0.25), [], "", 0, 0, []).consensus == "AaG"
