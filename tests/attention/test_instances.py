"""Scores against enumeration; sites and positions where they were planted."""

from itertools import product

import numpy as np
import pytest
from Bio.Seq import Seq
from hypothesis import given
from hypothesis import strategies as st

from pipeline.attention.halves import Frame
from pipeline.attention.instance_files import instances, write_instances
from pipeline.attention.instances import Sites, best_sites, positions, scan, score_steps, tail_probabilities
from pipeline.attention.words import false_discovery
from pipeline.sequences.places import Place

BACKGROUND = np.array([0.3, 0.2, 0.15, 0.35])


def matrix(word: str, share: float = 0.85) -> np.ndarray:
    return np.array([[share if letter == base else (1 - share) / 3 for letter in "ACGT"] for base in word])


@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_tails_are_sums_over_all_words(width, seed):
    rng = np.random.default_rng(seed)
    steps_W4 = rng.integers(-30, 20, (width, 4))
    tail_S = tail_probabilities(steps_W4, BACKGROUND)
    lowest = steps_W4.min(1).sum()
    chance: dict[int, float] = {}
    for word in product(range(4), repeat=width):
        score = int(sum(steps_W4[i, base] for i, base in enumerate(word)))
        chance[score] = chance.get(score, 0.0) + float(np.prod(BACKGROUND[list(word)]))
    assert len(tail_S) == max(chance) - lowest + 1
    for s, tail in enumerate(tail_S):
        expected = sum(share for score, share in chance.items() if score >= lowest + s)
        assert tail == pytest.approx(expected, rel=1e-9)


def test_scores_are_log_odds_in_bits():
    frequencies = matrix("TG")
    mixed = 0.99 * frequencies + 0.01 * BACKGROUND
    assert score_steps(frequencies, BACKGROUND) / 1000 == pytest.approx(np.log2(mixed / BACKGROUND), abs=5e-4)


@pytest.mark.parametrize("both", [False, True])
def test_windows_are_those_of_a_slow_scan(both):
    sequences = ["ACGTNACGGTTA", "acg", "AC", "", "GGGTTTACAT"]
    frequencies = np.random.default_rng(0).dirichlet(np.ones(4), 3)
    steps = score_steps(frequencies, BACKGROUND)
    found = scan(sequences, frequencies, BACKGROUND, both)
    expected = {}
    words = ["".join(word) for word in product("ACGT", repeat=3)]

    def score(word: str) -> int:
        return sum(int(steps[i]["ACGT".index(base)]) for i, base in enumerate(word))

    def p_value(word: str, strand: int) -> float:
        """Chance that a random window, read on that strand, scores as high."""
        read = {w: w if strand == 1 else str(Seq(w).reverse_complement()) for w in words}
        share = {w: np.prod([BACKGROUND["ACGT".index(base)] for base in w]) for w in words}
        return float(sum(share[w] for w in words if score(read[w]) >= score(word)))

    for i, sequence in enumerate(sequences):
        for start in range(len(sequence) - 2):
            window = sequence[start : start + 3].upper()
            for strand in (1, -1) if both else (1,):
                if "N" not in window:
                    word = window if strand == 1 else str(Seq(window).reverse_complement())
                    expected[i, start, strand] = score(word) / 1000, p_value(word, strand)
    places = zip(found.sequence.tolist(), found.start.tolist(), found.strand.tolist(), strict=True)
    pairs = zip(found.score, found.p_value, strict=True)
    for place, values in zip(places, pairs, strict=True):
        assert values == pytest.approx(expected.pop(place), rel=1e-9)
    assert not expected
    assert found.q_value == pytest.approx(false_discovery(found.p_value), rel=1e-12)


def test_the_best_site_of_each_sequence_is_where_it_was_planted():
    rng = np.random.default_rng(1)
    sequences, starts = [], rng.integers(0, 30, 50).tolist()
    for start in starts:
        letters = "".join(rng.choice(list("CG"), 40))
        sequences.append(letters[:start] + "TATAAT" + letters[start + 6 :])
    windows = scan([*sequences, "CCCCCCCC", ""], matrix("TATAAT"), np.full(4, 0.25))
    sites = best_sites(windows, 52, 1e-3, 0)
    assert sites.start.tolist() == [*starts, -1, -1]
    assert sites.strand.tolist() == [1] * 50 + [0, 0]
    assert sites.regions[:2] == [[(starts[0], starts[0] + 6)], [(starts[1], starts[1] + 6)]]


def test_of_equal_sites_none_is_preferred():
    """Two copies in each of 400 sequences: the first is taken in about half of them (5 standard errors)."""
    sites = best_sites(scan(["TATAATCCTATAAT"] * 400, matrix("TATAAT"), np.full(4, 0.25)), 400, 1e-3, 3)
    assert set(sites.start.tolist()) == {0, 8}
    assert abs((sites.start == 0).sum() - 200) < 50


def test_reverse_sites_are_found_only_on_both_strands():
    texts = ["CCCCATTATACCCC"]
    assert not best_sites(scan(texts, matrix("TATAAT"), np.full(4, 0.25)), 1, 1e-3, 0).found.any()
    sites = best_sites(scan(texts, matrix("TATAAT"), np.full(4, 0.25), both=True), 1, 1e-3, 0)
    assert (sites.start.tolist(), sites.strand.tolist()) == ([4], [-1])


# -- positions


def sites_at(starts: list[int], width: int = 6) -> Sites:
    start = np.array(starts)
    return Sites(start, np.where(start < 0, 0, 1), width)


def test_positions_count_from_the_origin():
    where = positions(sites_at([48, 48, 48, 49, 20, -1]), [81] * 6, 60)
    assert (where.first, where.mode, where.sequences) == (-60, -12, 5)
    assert {where.first + i: n for i, n in enumerate(where.counts) if n} == {-12: 3, -11: 1, -40: 1}
    low, high = where.best_bin or (0, 0)
    assert low <= -12 < -11 <= high == low + 4
    assert where.in_bin == 4
    assert where.expected == pytest.approx(5 * 5 / 76)
    assert where.p_value < 0.01


def test_positions_of_uniform_sites_are_not_significant():
    """P-values of the best bin under the null hypothesis, corrected: at most 5 % below 0.05."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(40, 90, 200)
    p = [
        positions(sites_at(rng.integers(0, lengths - 5).tolist()), lengths.tolist(), 0).p_value
        for _ in range(200)
    ]
    assert np.mean(np.array(p) <= 0.05) <= 0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5
    assert np.mean(np.array(p) <= 0.5) <= 0.5 + 3 * (0.25 / 200) ** 0.5


def test_no_site_no_position():
    where = positions(sites_at([-1, -1]), [40, 40], 10)
    assert (where.sequences, where.mode, where.best_bin, where.p_value) == (0, None, None, 1.0)


# -- files


FORWARD, REVERSE = Place("chr1", 100, 140, "+"), Place("chr1", 100, 140, "-")


@pytest.mark.parametrize(
    ("frame", "start", "strand", "place"),
    [
        (Frame(FORWARD, True), 4, 1, ("chr1", 104, 110, "+")),
        (Frame(FORWARD, True), 4, -1, ("chr1", 104, 110, "-")),
        (Frame(REVERSE, True), 4, 1, ("chr1", 130, 136, "-")),
        (Frame(REVERSE, True), 4, -1, ("chr1", 130, 136, "+")),
        (Frame(Place("r", 7, 47, "+"), False, ((0, 2), (6, 3))), 4, 1, ("r", 13, 22, "+")),
    ],
)
def test_a_site_lies_where_its_row_lies(frame, start, strand, place):
    """In the last row two letters were removed before the first, and three before letter 6."""
    assert tuple(frame.span(start, start + 6, strand)) == place


def test_files_of_instances_agree(tmp_path):
    genome = "ACCGTTATAATGCAGGCATTATACC"
    rows = [genome[2:20], str(Seq(genome[2:25]).reverse_complement())]
    frames = [Frame(Place("chr 1", 2, 20, "+"), True), Frame(Place("chr 1", 2, 25, "-"), True)]
    windows = scan(rows, matrix("TATAAT"), np.full(4, 0.25), both=True)
    windows = windows.chosen(windows.p_value < 1e-3)
    found = list(instances({"m": windows}, {"m": "TATAAT"}, ["a", "b"], rows, frames))
    assert write_instances(tmp_path, found) == len(found) == 3
    for line in (tmp_path / "instances.bed").read_text().splitlines():
        chromosome, start, stop, name, score, strand = line.split("\t")
        letters = genome[int(start) : int(stop)]
        assert (letters if strand == "+" else str(Seq(letters).reverse_complement())) == "TATAAT"
        assert (chromosome, name) == ("chr 1", "m")
        assert 30 <= int(score) <= 1000
    bed = [line.split("\t") for line in (tmp_path / "instances.bed").read_text().splitlines()]
    gff = [line.split("\t") for line in (tmp_path / "instances.gff3").read_text().splitlines()[1:]]
    head, *tsv = [line.split("\t") for line in (tmp_path / "instances.tsv").read_text().splitlines()]
    assert head[2:6] == ["sequence_name", "start", "stop", "strand"]
    assert [(int(b[1]) + 1, int(b[2]), b[5]) for b in bed] == [(int(t[3]), int(t[4]), t[5]) for t in tsv]
    assert [(g[0], g[3], g[4], g[6]) for g in gff] == [("chr%201", t[3], t[4], t[5]) for t in tsv]
    assert {t[9] for t in tsv} == {"TATAAT"}
