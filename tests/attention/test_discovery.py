"""Words chosen on one half and tested on the other: calibration without effect, power with one."""

import numpy as np
import pytest

from pipeline.attention.discovery import (
    Half,
    Search,
    assess_words,
    candidate_words,
    discover,
    elsewhere,
    everywhere,
    relabelled,
)
from pipeline.attention.findings import Measure, examine
from pipeline.attention.halves import Frame, Rows
from pipeline.sequences.alphabets import reverse_complement
from pipeline.sequences.places import Place

LENGTH = 60


def simulated(rng: np.random.Generator, number: int, words: dict[str, str], flip: bool = False):
    """Sequences, labels, and regions of two heads: "look" has the planted place, "gaze" a random one."""
    texts, look, gaze = [], [], []
    positive_N = np.arange(number) % 2 == 0
    for positive in positive_N:
        letters = "".join(rng.choice(list("ACGT"), LENGTH))
        start = int(rng.integers(0, LENGTH - 10))
        word = words["positive" if positive else "other"]
        letters = letters[:start] + word + letters[start + len(word) :]
        if flip and rng.random() < 0.5:
            letters, start = reverse_complement(letters), LENGTH - start - 10
        texts.append(letters)
        look.append([(start, start + 10)])
        other = int(rng.integers(0, LENGTH - 10))
        gaze.append([(other, other + 10)])
    return texts, positive_N, {"look": look, "gaze": gaze}


def halves(seed: int, words: dict[str, str], search: Search, number: int = 300, **more) -> tuple[Half, Half]:
    rng = np.random.default_rng(seed)
    first, second = (Half.of(*simulated(rng, number, words, **more), search) for _ in range(2))
    return first, second


PLANTED, NOTHING = {"positive": "TTGACA", "other": ""}, {"positive": "", "other": ""}


def test_a_planted_word_is_found_with_the_numbers_of_the_second_half():
    search = Search(q_value=0.01)
    first, second = halves(0, PLANTED, search)[0], halves(1, PLANTED, search, number=200)[1]
    found = discover(first, second, search)
    assert found.motifs[0].consensus == "TTGACA"
    assert found.motifs[0].heads[0] == "look"
    best = min(found.tested, key=lambda seed: seed.word.p_value)
    texts = [text for text, p in zip(second.sequences, second.positive, strict=True) if p]
    places = [r for r, p in zip(second.regions["look"], second.positive, strict=True) if p]
    held = sum("TTGACA" in text[a:b] for text, ((a, b),) in zip(texts, places, strict=True))
    assert (best.word.word, best.word.foreground_count) == ("TTGACA", held)
    assert {(s.word.n_foreground, s.word.n_background) for s in found.tested} == {(100, 100)}
    assert found.motifs[0].p_value == best.word.p_value
    assert found.best_q == best.q_value <= 1e-10


def test_words_tested_are_few_and_chosen_on_the_first_half():
    search = Search(words_per_head=7)
    first, second = halves(1, PLANTED, search)
    chosen = candidate_words(first, search)
    assert set(chosen) == {"look", "gaze"}
    assert all(len(words) <= 7 for words in chosen.values())
    found = discover(first, second, search)
    assert {(s.word.word, s.head) for s in found.tested} == {(w, h) for h, ws in chosen.items() for w in ws}


def test_the_choice_does_not_look_at_the_second_half():
    """Where the first half has no signal the second's is only tested by luck; chosen words stay the same."""
    search = Search()
    first, second = halves(2, NOTHING, search)
    other = halves(3, PLANTED, search)[1]
    tested = [
        {(s.word.word, s.head) for s in discover(first, part, search).tested} for part in (second, other)
    ]
    assert tested[0] == tested[1]


def test_nothing_is_found_where_nothing_is():
    """Permuted labels: runs with a significant word, and small p-values, are as rare as they should be."""
    search = Search(word_length=3)
    first, second = halves(4, PLANTED, search, number=200)
    runs, p = 0, []
    for number in range(80):
        words = candidate_words(relabelled(first, 0, 2 * number), search)
        tested = assess_words(relabelled(second, 0, 2 * number + 1), words, 3)
        runs += any(seed.q_value <= 0.05 for seed in tested)
        p += [seed.word.p_value for seed in tested]
    assert runs <= 80 * 0.05 + 3 * (80 * 0.05 * 0.95) ** 0.5
    assert len(p) > 200
    for level in (0.05, 0.2, 0.5):
        assert np.mean(np.array(p) <= level) <= level + 3 * (level * (1 - level) / len(p)) ** 0.5


def test_testing_where_words_were_chosen_would_not_be_calibrated():
    """The reason for two halves, and that this test of calibration can fail."""
    search = Search(word_length=3)
    first, _ = halves(4, PLANTED, search, number=200)
    shuffled = [relabelled(first, 0, number) for number in range(20)]
    tested = [assess_words(half, candidate_words(half, search), 3) for half in shuffled]
    p = [seed.word.p_value for found in tested for seed in found]
    assert np.mean(np.array(p) <= 0.05) == 1


def test_both_strands_are_one():
    search, one = Search(q_value=0.01, both_strands=True), Search(q_value=0.01)
    found = discover(*halves(5, PLANTED, search, flip=True), search)
    assert found.motifs[0].consensus in ("TTGACA", "TGTCAA")
    assert 120 < found.motifs[0].n_sites <= 151  # of 150, on either strand
    alone = discover(*halves(5, PLANTED, one, flip=True), one)
    counts = [max(seed.word.foreground_count for seed in each.tested) for each in (found, alone)]
    assert counts[0] > 1.6 * counts[1]


def test_random_regions_and_whole_sequences_are_what_they_say():
    search = Search(q_value=0.01)
    first, second = halves(6, PLANTED, search, number=600)
    moved = [elsewhere(half, search, seed)[0] for seed, half in enumerate((first, second))]
    for before, after in zip((first, second), moved, strict=True):
        for head in before.regions:
            sizes = [[b - a for a, b in found] for found in before.regions[head]]
            assert [[b - a for a, b in found] for found in after.regions[head]] == sizes
        assert after.regions["look"] != before.regions["look"]
    found = discover(moved[0], moved[1], search)
    assert found.best_q > 1e6 * discover(first, second, search).best_q
    blind = discover(everywhere(first, search), everywhere(second, search), search)
    assert blind.motifs[0].consensus == "TTGACA"
    assert blind.motifs[0].heads == ["any"]


def rows(half: Half) -> Rows:
    ids = [f"r{i}" for i in range(len(half.sequences))]
    return Rows(
        ids, list(half.sequences), half.positive, [Frame(Place(i, 0, LENGTH, "+"), False) for i in ids]
    )


def test_what_is_said_of_a_motif():
    """A head that looks at the sites is specialised, one that looks anywhere is not."""
    search = Search(q_value=0.01)
    first, second = halves(7, PLANTED, search, number=200)
    found = discover(first, second, search)
    scores = {}
    for head, regions in second.regions.items():
        scores[head] = [np.full(LENGTH, 0.1) for _ in range(100)]
        for score, ((a, b),) in zip(
            scores[head], [r for r, p in zip(regions, second.positive, strict=True) if p], strict=True
        ):
            score[a:b] = 1
    half = (rows(first), rows(second))
    findings = examine(found.motifs[:1], half, second, scores, Measure(1e-3, 50, False, 30, 0))
    name = found.motifs[0].name
    share = findings.enrichment[name]
    assert (share.of_positives, share.of_others) == (100, 100)
    assert share.positives >= 95 > 20 > share.others
    look, gaze = ({r.head: r for r in findings.readings}[head] for head in ("look", "gaze"))
    assert look.specialisation > 2 > 1.3 > gaze.specialisation > 0.7
    assert look.in_regions > 0.95 > 0.5 > gaze.in_regions
    assert look.auroc > 0.9 > 0.65 > gaze.auroc > 0.35
    assert look.expected == pytest.approx(gaze.expected, abs=0.05)
    assert findings.positions[name].first == -30
