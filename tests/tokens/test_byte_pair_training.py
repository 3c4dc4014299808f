import random
import time
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from pipeline.errors import UserError
from pipeline.tokens import byte_pair_training
from pipeline.tokens.byte_pair_training import BASES, CHUNK, choose, cut_dna, learn_byte_pairs


def random_dna(length, seed=0):
    return np.random.default_rng(seed).choice(np.frombuffer(b"ACGT", np.uint8), length).tobytes().decode()


def learn(records, size, longest=16, seed=0):
    letters = sum(map(len, records))
    return learn_byte_pairs(records, letters, vocabulary_size=size, longest=longest, seed=seed)


def slowly(words, merges):
    """Merge the most frequent pair again and again; of equally frequent ones, the one with smaller ids."""
    ids = {letter: i for i, letter in enumerate("ACGTN")}
    words, learnt = [list(word) for word in words], []
    for _ in range(merges):
        pairs = Counter((a, b) for word in words for a, b in pairwise(word))
        best = min(pairs, key=lambda pair: (-pairs[pair], ids[pair[0]], ids[pair[1]]))
        learnt.append(best)
        ids.setdefault("".join(best), len(ids))
        words = [list(merge(word, best)) for word in words]
    return learnt


def merge(word, pair):
    i = 0
    while i < len(word):
        if tuple(word[i : i + 2]) == pair:
            yield "".join(pair)
            i += 2
        else:
            yield word[i]
            i += 1


def test_the_pairs_are_those_of_the_definition():
    records = [random_dna(CHUNK, seed).replace("CG", "CA") for seed in range(12)]
    learnt = learn(records, 10 + 20)
    assert learnt.merges == slowly(records, 20)
    assert learnt.bases == 12 * CHUNK


def test_dna_is_cut_at_strangers_and_every_chunk():
    assert list(cut_dna(["ACGTNNacRgt-", "", "NN"])) == ["ACGT", "AC", "GT"]
    long = random_dna(2 * CHUNK + 5)
    assert list(cut_dna([long])) == [long[:CHUNK], long[CHUNK : 2 * CHUNK], long[2 * CHUNK :]]


def test_no_token_is_longer_than_asked_for():
    learnt = learn(["ACGT" * 2000 + random_dna(3000)], 60, longest=8)
    assert max(len(left + right) for left, right in learnt.merges) == 8
    assert max(len(left + right) for left, right in learn(["ACGT" * 2000 + random_dna(3000)], 60).merges) > 8


def test_what_is_learnt_does_not_depend_on_the_order_of_records(monkeypatch):
    monkeypatch.setattr(byte_pair_training, "BASES", 30_000)
    records = [random_dna(700, seed) for seed in range(100)]
    first = learn(records, 40)
    assert 20_000 < first.bases < 40_000
    random.Random(0).shuffle(records)
    assert learn(records, 40) == first
    assert learn(records, 40, seed=1).merges != first.merges
    assert learn(records, 40, seed=1).bases != first.bases


def test_the_share_chosen_is_the_one_asked_for():
    chunks = [random_dna(20, seed) for seed in range(4000)]
    assert 900 < len(list(choose(chunks, 0.25, seed=0))) < 1100
    assert list(choose(chunks, 1.0, seed=0)) == chunks


def test_one_record_of_20_megabases_is_learnt_from_in_seconds(capsys):
    began = time.monotonic()
    learnt = learn([random_dna(20_000_000)], 512)
    assert time.monotonic() - began < 60
    assert len({left + right for left, right in learnt.merges}) == 502
    assert abs(learnt.bases - BASES) < 0.05 * BASES
    assert "learning 512 tokens from" in capsys.readouterr().err


def test_too_little_to_learn_from_is_said():
    with pytest.raises(
        UserError, match=r"vocabulary_size: 512: the corpus has pieces for \d+ tokens of up to 16"
    ):
        learn(["ACGT" * 10], 512)
