"""Shared stretches and clusters against slow definitions, in one table and in many, and on real sequences."""

import gzip
import os
import stat
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import UserError
from pipeline.sequences import similarity
from pipeline.sequences.alphabets import reverse_complement
from pipeline.sequences.similarity import (
    KmerHash,
    close_to,
    common_letters,
    edits,
    link,
    mmseqs_clusters,
    protein_clusters,
    shared_kmer_clusters,
    shared_with,
)

DATA = Path(os.environ.get("STRANDLM_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
RESIDUES = "ACDEFGHIKLMNPQRSTVWY"


def read_fasta(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"no {path}; set STRANDLM_DATA")
    return ["".join(part.split("\n")[1:]) for part in gzip.open(path, "rt").read().split(">")[1:]]


def chunked(rows, cut=0, kind=None):
    return pa.chunked_array(
        [pa.array(rows[:cut], kind or pa.string()), pa.array(rows[cut:], kind or pa.string())]
    )


def words(row, k, both_strands):
    row = row.upper()
    found = {row[i : i + k] for i in range(len(row) - k + 1)}
    found = {word for word in found if not word.strip("ACGT")}
    return found | {reverse_complement(word) for word in found} if both_strands else found


def slow_clusters(rows, related):
    cluster = list(range(len(rows)))
    for one, other in combinations(range(len(rows)), 2):
        if related(rows[one], rows[other]):
            cluster = [cluster[one] if c == cluster[other] else c for c in cluster]
    order = {c: i for i, c in enumerate(dict.fromkeys(cluster))}
    return [order[c] for c in cluster]


@pytest.fixture
def small_tables(monkeypatch):
    """Make blocks and tables so small that a few hundred letters take several passes."""
    monkeypatch.setattr(similarity, "BLOCK", 7)
    monkeypatch.setattr(similarity, "CAPACITY", 16)
    monkeypatch.setattr(similarity, "SEED", 4)
    monkeypatch.setattr(similarity, "LONG_SEED", 6)


dna_rows = st.lists(st.text("ACGTacgN", max_size=30), min_size=1, max_size=8)


@given(dna_rows, st.integers(1, 12), st.booleans(), st.integers(0, 8))
@settings(max_examples=60, deadline=None)
def test_shared_stretches(rows, k, both_strands, cut):
    found = shared_kmer_clusters(chunked(rows, cut), k, both_strands)
    assert found.dtype == np.int64
    stretches = [words(row, k, both_strands) for row in rows]
    assert found.tolist() == slow_clusters(stretches, lambda one, other: bool(one & other))


def test_shared_stretches_in_many_passes(small_tables, monkeypatch):
    passes = []
    monkeypatch.setattr(similarity, "_tables", counted(similarity._tables, passes))
    rng = np.random.default_rng(0)
    genome = "".join(rng.choice(list("ACGT"), 600))
    for k, both_strands in ((3, True), (6, False), (13, True), (20, False), (20, True)):
        rows = [genome[i : i + 37] for i in range(0, 590, 31)]  # neighbours share 6 letters
        rows += [
            reverse_complement(genome[60:85]) + "N" + genome[200:225].lower(),
            "A" * 50,
            "A" * 30,
            "",
            "T" * 40,
        ]
        stretches = [words(row, k, both_strands) for row in rows]
        expected = slow_clusters(stretches, lambda one, other: bool(one & other))
        assert shared_kmer_clusters(chunked(rows, 9), k, both_strands).tolist() == expected
    assert max(passes) > 3


def test_every_path_of_tiny_tables(small_tables, monkeypatch):
    passes, kept, resized = [], [], []
    monkeypatch.setattr(similarity, "_tables", counted(similarity._tables, passes))
    letters, shrink = similarity._listed_letters, similarity._Table._shrink
    monkeypatch.setattr(
        similarity, "_listed_letters", lambda *a: kept.append(len(letters(*a)[0])) or letters(*a)
    )
    monkeypatch.setattr(
        similarity._Table, "_shrink", lambda self: shrink(self) or resized.append(len(self.hash_E))
    )
    rng = np.random.default_rng(3)
    for trial in range(24):
        k, both_strands = int(rng.integers(5, 40)), bool(rng.integers(2))
        rows = ["".join(rng.choice(list("ACGT"), rng.integers(0, 120))) for _ in range(8)]
        rows += ["A" * 300, "", "AC" * 25, "ACACG" * 9] if trial % 2 else []
        for _ in range(4):  # copies of k letters or one less, on either strand, beside strange letters
            size, source, target = k - int(rng.integers(2)), *rng.integers(0, 8, 2)
            at = int(rng.integers(0, max(1, len(rows[source]) - size)))
            piece = rows[source][at : at + size]
            piece = reverse_complement(piece) if rng.integers(2) else piece.lower()
            rows[target] += rng.choice(["N", "T", "-"]) + piece
        rows = [rows[i] for i in rng.permutation(len(rows))]
        stretches = [words(row, k, both_strands) for row in rows]
        expected = slow_clusters(stretches, lambda one, other: bool(one & other))
        found = shared_kmer_clusters(chunked(rows, int(rng.integers(0, 8))), k, both_strands)
        assert found.tolist() == expected
    assert max(passes) > 3
    assert (min(kept), max(kept) > 0) == (0, True)  # some blocks are skipped
    assert max(resized) > 2 * 40  # one hash filled a table


def test_no_stretch_across_what_is_skipped():
    rng = np.random.default_rng(4)
    for k in (2, 3, 7):
        text, listed_S, begin = "".join(rng.choice(list("ACGT"), 200)), rng.random(110) < 0.3, 5
        letters_L, row_L = np.frombuffer(text.encode(), np.uint8), np.zeros(200, np.int32)
        kept_L, row_L = similarity._listed_letters(similarity.Block(letters_L, row_L, begin), listed_S, k)
        found = np.flatnonzero(KmerHash(k).valid(kept_L, row_L))
        near = [any(listed_S[max(s - 1, 0) : s + 1]) for s in (np.arange(200) + begin) // k]
        expected = [text[i : i + k] for i in range(201 - k) if all(near[i : i + k])]
        assert [kept_L[i : i + k].tobytes().decode() for i in found] == expected


def counted(tables, passes):
    def count(*arguments):
        found = list(tables(*arguments))
        passes.append(len(found))
        return found

    return count


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_slices_and_both_kinds_of_strings(kind):
    rows = ["ACGTTGCA", "GGGGGGG", "CCACGTTG", "TTTTTT"]
    whole = chunked(["AAAAAAAA", *rows, "GGGGGGGG"], 3, kind)
    assert shared_kmer_clusters(whole.slice(1, 4), 5, False).tolist() == [0, 1, 0, 2]
    assert shared_kmer_clusters(whole.slice(0, 0), 5, False).tolist() == []


@given(dna_rows, st.lists(st.integers(0, 7), min_size=8, max_size=8), st.booleans())
@settings(max_examples=60, deadline=None)
def test_groups_that_share(rows, groups, both_strands):
    groups_N = np.array(groups[: len(rows)], np.uint8)
    found_N = shared_with(chunked(rows), groups_N, KmerHash(4, both_strands))
    own = [words(row, 4, both_strands) if bits else set() for row, bits in zip(rows, groups, strict=False)]
    for i, found in enumerate(found_N.tolist()):
        others = [groups[j] for j in range(len(rows)) if j != i and own[i] & own[j]]
        assert found == np.bitwise_or.reduce([*others, groups[i]] if others else [0])


def test_close_to_targets():
    rows = chunked(["ACGTAC", "GTACGT", "TTGCGG", "AACGTA", "CCGCAA", "ACGTAC"])
    candidates_N = np.array([1, 0, 1, 1, 0, 0], bool)
    targets_N = np.array([0, 0, 0, 0, 1, 1], bool)
    assert close_to(rows, candidates_N, targets_N, 5, False).tolist() == [
        True,
        False,
        False,
        True,
        False,
        False,
    ]
    assert close_to(rows, candidates_N, targets_N, 5, True).tolist() == [
        True,
        False,
        True,
        True,
        False,
        False,
    ]
    assert close_to(rows, candidates_N | targets_N, targets_N, 7, True).tolist() == targets_N.tolist()


@pytest.mark.parametrize("k", [6, 31, 32, 100])
def test_different_stretches_have_different_hashes(k):
    letters = np.random.default_rng(k).choice(np.frombuffer(b"ACGT", np.uint8), 20_000)
    letters = np.concatenate([letters, np.tile(letters[:50], 40), np.repeat(letters[:99], 9)])
    text = letters.tobytes().decode()
    stretches = [text[i : i + k] for i in range(len(text) - k + 1)]
    forward, both = KmerHash(k)(letters).tolist(), KmerHash(k, both_strands=True)(letters).tolist()
    canonical = [min(stretch, reverse_complement(stretch)) for stretch in stretches]
    for hashes, names in ((forward, stretches), (both, canonical)):
        assert len(set(hashes)) == len(set(names)) == len(set(zip(hashes, names, strict=True)))


@pytest.mark.parametrize(
    ("k", "places"), [(40, (0, 7, 8, 15, 31, 32, 39)), (100, (0, 31, 32, 36, 64, 67, 99))]
)
def test_changes_where_packed_letters_begin_and_end(k, places):
    """Differences in the highest bits of packs of letters must not cancel each other."""
    base = np.random.default_rng(k).choice(np.frombuffer(b"ACGT", np.uint8), k)
    stretches = np.tile(base, (4 ** len(places), 1))
    stretches[:, places] = np.stack(np.meshgrid(*[list(b"ACGT")] * len(places)), -1).reshape(-1, len(places))
    for kmer in (KmerHash(k), KmerHash(k, both_strands=True)):
        hashes = [kmer(part.ravel())[::k] for part in np.array_split(stretches, 16)]
        assert len(np.unique(np.concatenate(hashes))) == len(stretches)


@pytest.mark.parametrize("k", [100, 128])
def test_pairs_of_changes_have_different_hashes(k):
    base, (one_P, other_P) = np.full(k, ord("A"), np.uint8), np.triu_indices(k, 1)
    stretches = np.tile(base, (9 * len(one_P), 1))
    for i, (one, other) in enumerate((one, other) for one in b"CGT" for other in b"CGT"):
        rows = np.arange(i * len(one_P), (i + 1) * len(one_P))
        stretches[rows, one_P], stretches[rows, other_P] = one, other
    for kmer in (KmerHash(k), KmerHash(k, both_strands=True)):
        hashes = [kmer(part.ravel())[::k] for part in np.array_split(stretches, 16)]
        assert len(np.unique(np.concatenate(hashes))) == len(stretches)


def test_clusters_are_numbered_by_their_first_rows():
    cluster_N = link(np.arange(6), np.array([5, 3]), np.array([1, 2]))
    assert cluster_N.tolist() == [0, 1, 2, 2, 3, 1]
    assert link(cluster_N, np.array([4]), np.array([3])).tolist() == [0, 1, 2, 2, 2, 1]


def test_promoters_that_share_30_bases():
    rows = read_fasta("promoters/ecoli/regulondb93_positive2860.fa.gz")
    cluster_N = shared_kmer_clusters(chunked(rows, 1000), 30, both_strands=True)
    assert (np.bincount(cluster_N)[cluster_N] > 1).sum() == 986


# Proteins


@given(st.text("ACD", max_size=12), st.text("ACD", max_size=12))
@settings(max_examples=60, deadline=None)
def test_edits_and_common_letters(one, other):
    distance, common = slow_edits(one, other), slow_common(one, other)
    assert edits(one, other) == distance
    assert common_letters(one, other) == common


def slow_edits(one, other):
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        above, row = row, [i]
        for j, b in enumerate(other, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (a != b)))
    return row[-1]


def slow_common(one, other):
    row = [0] * (len(other) + 1)
    for a in one:
        above, row = row, [0]
        for j, b in enumerate(other, 1):
            row.append(above[j - 1] + 1 if a == b else max(above[j], row[-1]))
    return row[-1]


def mutated(protein, share, rng):
    letters = np.array(list(protein))
    places = rng.choice(len(letters), round(share * len(letters)), replace=False)
    letters[places] = [rng.choice(list(RESIDUES.replace(letter, ""))) for letter in letters[places]]
    return "".join(letters)


def test_proteins_of_a_family_stay_together():
    rng = np.random.default_rng(0)
    founders = ["".join(rng.choice(list(RESIDUES), 300)) for _ in range(12)]
    close = [mutated(founder, 0.3, rng) for founder in founders]
    shifted = [founder[20:150] + founder[155:] for founder in founders]
    far = [mutated(founder, 0.75, rng) for founder in founders]
    domain = [founder[:150] for founder in founders]
    rows = founders + close + shifted + far + domain + [founders[0].lower(), "MK", "MK"]
    cluster_N = protein_clusters(chunked(rows, 17), identity=0.5, coverage=0.8)
    assert cluster_N.tolist() == [*list(range(12)) * 3, *range(12, 36), 0, 36, 36]


def test_identity_and_coverage_are_kept():
    rng = np.random.default_rng(1)
    founder = "".join(rng.choice(list(RESIDUES), 400))
    rows = chunked([founder, mutated(founder, 0.2, rng), founder[:300]])
    assert protein_clusters(rows, identity=0.9, coverage=0.8).tolist() == [0, 1, 2]
    assert protein_clusters(rows, identity=0.7, coverage=0.8).tolist() == [0, 0, 1]
    assert protein_clusters(rows, identity=0.5, coverage=0.7).tolist() == [0, 0, 0]
    apart = "".join(rng.choice(list(RESIDUES), 80))
    for changed, cluster in ((0.42, 0), (0.6, 1)):  # of the 80 % that two proteins have in common
        rows = chunked([founder, mutated(founder[:320], changed, rng) + apart])
        assert protein_clusters(rows, identity=0.5, coverage=0.8).tolist() == [0, cluster]


def test_common_words_still_link_a_large_family(monkeypatch):
    monkeypatch.setattr(similarity, "POSTINGS", 8)
    monkeypatch.setattr(similarity, "PRODUCT", 7)
    rng = np.random.default_rng(2)
    founder = "".join(rng.choice(list(RESIDUES), 120))
    rows = [mutated(founder, 0.2, rng)[: 120 - i % 15] for i in range(60)]
    assert set(protein_clusters(chunked(rows)).tolist()) == {0}
    most = (
        similarity._word_table(
            chunked(rows),
            KmerHash(5, letters=similarity.RESIDUES),
            np.ones(60, bool),
            np.array([len(row) for row in rows]),
        )
        .sum(axis=0)
        .max()
    )
    assert most == 8


# MMseqs2


FAKE = """#!/bin/sh
[ "$8" = 0.8 ] || { echo "no coverage $8" >&2; exit 3; }
cp rows.fasta "$COPY"
printf '0\\t0\\n0\\t2\\n1\\t1\\n' > "$3_cluster.tsv"
"""


@pytest.fixture
def fake_mmseqs(tmp_path, monkeypatch):
    program = tmp_path / "mmseqs"
    program.write_text(FAKE)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("COPY", str(tmp_path / "copy.fasta"))
    return tmp_path


def test_what_mmseqs_says(fake_mmseqs):
    assert mmseqs_clusters(chunked(["MKV", "WWW", "mkl"]), "protein", 0.5, 0.8).tolist() == [0, 1, 0]
    assert (fake_mmseqs / "copy.fasta").read_text() == ">0\nMKV\n>1\nWWW\n>2\nMKL\n"


def test_failing_mmseqs(fake_mmseqs, monkeypatch):
    with pytest.raises(UserError, match=r"easy-cluster failed: no coverage 0\.5; .*use cluster_with kmers"):
        mmseqs_clusters(chunked(["MKV"]), "protein", 0.5, 0.5)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="no program mmseqs on the PATH; install MMseqs2, or use kmers"):
        mmseqs_clusters(chunked(["MKV"]), "protein", 0.5, 0.8)


@pytest.mark.slow
@pytest.mark.parametrize("alphabet", ["dna", "protein"])
def test_real_mmseqs(alphabet):
    if not similarity.shutil.which("mmseqs"):
        pytest.skip("no program mmseqs on the PATH")
    rng = np.random.default_rng(0)
    letters = "ACGT" if alphabet == "dna" else RESIDUES
    founders = ["".join(rng.choice(list(letters), 200)) for _ in range(9)]
    copies = [founder[:100] + letters[0] + founder[101:] for founder in founders]
    if alphabet == "dna":
        copies[4:] = map(reverse_complement, copies[4:])
    assert mmseqs_clusters(chunked(founders + copies), alphabet, 0.8, 0.8).tolist() == [*range(9)] * 2
