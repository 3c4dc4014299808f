from itertools import pairwise

import numpy as np
import pytest
from Bio.Seq import Seq
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import fisher_exact

from pipeline.attention.words import (
    enriched,
    false_discovery,
    held_words,
    high_regions,
    spell,
    word_code,
)

SCORES = st.lists(st.one_of(st.floats(0, 10, allow_subnormal=False), st.just(float("nan"))), max_size=60)


def peaked(length: int, *peaks: tuple[int, int]) -> np.ndarray:
    scores = np.full(length, 0.1)
    for start, stop in peaks:
        scores[start:stop] = 1.0
    return scores


def test_regions_are_where_the_peaks_are():
    assert high_regions(peaked(80, (10, 16), (40, 52)), 6) == [(10, 16), (40, 52)]


def test_the_threshold_is_mean_and_robust_deviation():
    scores = np.arange(100.0)  # median 49.5, MAD 25: threshold 49.5 + 37.065 = 86.565
    assert high_regions(scores, 6) == [(87, 100)]
    spiked = np.concatenate([np.zeros(60), np.full(8, 1.0), np.full(8, 100.0), np.zeros(4)])
    assert high_regions(spiked, 6) == [(68, 76)]  # MAD is 0: the mean, 10.1, decides


def test_close_runs_are_one_region_and_far_ones_two():
    assert high_regions(peaked(80, (10, 16), (18, 24)), 6) == [(10, 24)]
    assert high_regions(peaked(80, (10, 16), (19, 25)), 6) == [(10, 16), (19, 25)]


def test_short_runs_grow_to_the_higher_side_and_stubs_are_dropped():
    scores = peaked(40, (10, 14), (30, 32))
    scores[9], scores[14], scores[15] = 0.2, 0.3, 0.25
    assert high_regions(scores, 6) == [(10, 16)]
    scores[8:10], scores[14:16] = 0.15, 0.12
    assert high_regions(scores, 6) == [(8, 14)]
    assert high_regions(peaked(40, (10, 14)), 6) == [(8, 14)]  # the left one in a tie
    assert high_regions(peaked(40, (37, 40)), 6) == [(34, 40)]


def test_unseen_bases_are_never_inside_a_region():
    scores = peaked(60, (10, 16), (17, 23), (58, 60))
    scores[16] = np.nan
    assert high_regions(scores, 6) == [(10, 16), (17, 23)]
    stub = peaked(60, (30, 34))
    stub[29], stub[35:] = np.nan, np.nan
    assert high_regions(stub, 6) == []


@pytest.mark.parametrize(
    "scores", [np.zeros(0), np.full(50, 0.1), np.full(50, np.nan), np.zeros(50), np.full(3, 1.0)]
)
def test_nothing_stands_out_gives_an_empty_list(scores):
    assert high_regions(scores, 6) == []


@given(SCORES, st.integers(1, 8))
def test_regions_are_ordered_disjoint_seen_and_long_enough(values, min_length):
    scores = np.array(values, dtype=float)
    regions = high_regions(scores, min_length)
    assert all(
        stop - start >= min_length and np.isfinite(scores[start:stop]).all() for start, stop in regions
    )
    assert all(before[1] <= after[0] for before, after in pairwise(regions))
    assert high_regions(scores, min_length) == regions
    assert high_regions(scores * 4, min_length) == regions


# -- words


def whole(texts: list[str]) -> list[list[tuple[int, int]]]:
    return [[(0, len(text))] for text in texts]


def slow_words(text: str, regions, k: int, both: bool) -> set[str]:
    """Words by string slices and Biopython's reverse complement."""
    found = set()
    for start, stop in regions:
        piece = text[start:stop].upper()
        for i in range(len(piece) - k + 1):
            word = piece[i : i + k]
            if set(word) <= set("ACGT"):
                found.add(min(word, str(Seq(word).reverse_complement())) if both else word)
    return found


def held_texts(held, k: int) -> list[set[str]]:
    return [{spell(int(code), k) for code in np.flatnonzero(row)} for row in held.toarray()]


@given(
    st.lists(st.text("ACGTNacgt", max_size=20), min_size=1, max_size=6),
    st.integers(1, 4),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_words_are_those_of_slices(texts, k, both, random):
    regions = []
    for text in texts:
        ends = sorted(random.randint(0, len(text)) for _ in range(4))
        regions.append([(ends[0], ends[1]), (ends[2], ends[3])])
    held = held_words(texts, regions, k, both)
    assert held.shape == (len(texts), 4**k)
    expected = [slow_words(text, found, k, both) for text, found in zip(texts, regions, strict=True)]
    assert held_texts(held, k) == expected
    assert set(held.data.tolist()) <= {1}


def test_a_word_is_spelt_as_its_code_says():
    assert [spell(code, 2) for code in range(16)] == [a + b for a in "ACGT" for b in "ACGT"]
    assert all(word_code(spell(code, 3)) == code for code in range(64))


def test_p_values_are_fishers():
    rng = np.random.default_rng(3)
    texts = ["".join(rng.choice(list("ACGT"), 5)) for _ in range(110)]
    positive_N = np.arange(110) < 40
    words = enriched(held_words(texts, whole(texts), 2), positive_N, 2)
    assert len(words) == 16
    for w in words:
        own = [sum(w.word in text for text in texts[:40]), sum(w.word in text for text in texts[40:])]
        assert [w.foreground_count, w.background_count] == own
        table = [[own[0], 40 - own[0]], [own[1], 70 - own[1]]]
        assert w.p_value == pytest.approx(fisher_exact(table, alternative="greater").pvalue, rel=1e-9)
    assert [w.p_value for w in words] == sorted(w.p_value for w in words)


def test_an_enriched_word_is_first_and_sizes_are_told():
    texts = ["TATAAT"] * 9 + [""] + ["GGGGGG"] * 5 + [""] * 15
    words = enriched(held_words(texts, whole(texts), 6), np.arange(30) < 10, 6)
    assert (words[0].word, words[0].foreground_count, words[0].background_count) == ("TATAAT", 9, 0)
    assert (words[0].n_foreground, words[0].n_background) == (10, 20)
    assert (words[1].word, words[1].p_value) == ("GGGGGG", 1.0)


def test_chosen_words_are_tested_even_if_nobody_holds_them():
    texts = ["TATAAT", "GGGGGG"]
    words = enriched(held_words(texts, whole(texts), 6), np.array([True, False]), 6, ["CCCCCC", "TATAAT"])
    assert [(w.word, w.foreground_count, w.p_value) for w in words] == [
        ("TATAAT", 1, 0.5),
        ("CCCCCC", 0, 1.0),
    ]


def test_no_words_no_records():
    assert enriched(held_words([], [], 6), np.zeros(0, bool), 6) == []
    assert enriched(held_words(["ACG"], [[(0, 3)]], 6), np.array([True]), 6) == []


def slow_q(p_values: list[float], i: int) -> float:
    n = len(p_values)
    cuts = [p for p in p_values if p >= p_values[i]]
    return min(min(1.0, p * n / sum(other <= p for other in p_values)) for p in cuts)


@given(st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.01, 0.5])), max_size=30))
def test_q_values_follow_the_definition(p_values):
    q = false_discovery(p_values)
    assert q == pytest.approx([slow_q(p_values, i) for i in range(len(p_values))], rel=1e-12, abs=0)
