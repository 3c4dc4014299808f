"""How prepare decides: what shares a split, what is held out by name, and what tests keep away."""

from itertools import combinations

import numpy as np
import pytest
from datasets import Value, load_from_disk

from pipeline.config import PrepareConfig
from pipeline.errors import UserError
from pipeline.prepare import run
from pipeline.sequences.alphabets import reverse_complement

SPLITS = ("train", "validation", "test")
HALVES = {"validation": 0.25, "test": 0.25}


def bases(length, seed):
    return "".join(np.random.default_rng(seed).choice(list("ACGT"), length))


def fasta(sequences):
    return "".join(f">{name}\n{sequence}\n" for name, sequence in sequences.items())


@pytest.fixture
def prepare(tmp_path):
    """Prepare records; return the manifest's counts and {(id, start): (split, row)}."""

    def build(sequences, output="corpus", **settings):
        files = {name: tmp_path / f"{name}.fa" for name in ("input", "test_input")}
        tests = settings.pop("tests", {})
        files["input"].write_text(fasta(sequences))
        files["test_input"].write_text(fasta(tests))
        inputs = {"input": [files["input"]], "test_input": [files["test_input"]] if tests else []}
        result = run(PrepareConfig(output=tmp_path / output, **inputs, **settings))
        corpus = load_from_disk(str(result.folder)).items()
        rows = {(row["id"], row["start"]): (split, row) for split, rows in corpus for row in rows}
        return result.manifest["counts"], rows

    return build


def splits_of(rows):
    return {id: split for (id, _), (split, _) in rows.items()}


def test_records_stay_whole(prepare):
    _, rows = prepare({f"r{i}": bases(100, i) for i in range(40)}, block=10, split_by="record", **HALVES)
    assert len(rows) == 400
    assert len({(id, split) for (id, _), (split, _) in rows.items()}) == 40
    assert set(splits_of(rows).values()) == set(SPLITS)


def test_records_by_name(prepare):
    sequences = {f"r{i}": bases(50, i) for i in range(20)}
    names = {"validation_names": ["r3"], "test_names": ["r5", "r7"]}
    _, rows = prepare(sequences, split_by="record", **names)
    expected = dict.fromkeys(sequences, "train") | {"r3": "validation", "r5": "test", "r7": "test"}
    assert splits_of(rows) == expected
    _, rows = prepare(sequences, split_by="record", test_names=["r5"], validation=0.4)
    found = splits_of(rows)
    assert [name for name, split in found.items() if split == "test"] == ["r5"]
    assert 2 <= list(found.values()).count("validation") <= 15
    with pytest.raises(UserError, match="'r99' does not occur"):
        prepare(sequences, split_by="record", test_names=["r99"])


def test_chromosomes_of_intervals(tmp_path):
    chromosomes = {name: bases(200, i) for i, name in enumerate(("chr1", "chr2", "chr3"))}
    (tmp_path / "g.fa").write_text(fasta(chromosomes))
    lines = [f"{name}\t{start}\t{start + 30}\n" for name in chromosomes for start in range(0, 160, 7)]
    (tmp_path / "a.bed").write_text("".join(lines))
    files = {"input": [tmp_path / "a.bed"], "genome": tmp_path / "g.fa", "split_by": "chromosome"}
    result = run(PrepareConfig(output=tmp_path / "named", **files, test_names=["chr2"], validation=0))
    corpus = load_from_disk(str(result.folder))
    assert set(corpus["test"]["chromosome"]) == {"chr2"}
    assert set(corpus["train"]["chromosome"]) == {"chr1", "chr3"}
    result = run(PrepareConfig(output=tmp_path / "random", **files, validation=0.3, test=0.3))
    held = [set(rows["chromosome"]) for rows in load_from_disk(str(result.folder)).values()]
    assert sorted(map(len, held)) == [1, 1, 1]


def test_blocks_that_share_a_repeat_stay_together(prepare):
    """A repeat of 100 bases, on either strand, keeps blocks in one split; shorter ones do not."""
    repeat = bases(100, 99)
    together = 0
    for seed in range(4):
        parts = [bases(300, 100 * seed + i) for i in range(30)]
        parts[2] = parts[2][:50] + repeat + parts[2][150:]
        parts[20] = parts[20][:120] + reverse_complement(repeat) + parts[20][220:]
        settings = {"block": 300, "buffer": 0, "seed": seed, **HALVES}
        _, rows = prepare({"c": "".join(parts)}, **settings)
        assert rows["c", 600][0] == rows["c", 6000][0]
        _, rows = prepare({"c": "".join(parts)}, repeat=110, **settings)
        together += rows["c", 600][0] == rows["c", 6000][0]
    assert together < 4


def test_buffers_between_splits(prepare):
    sequence = bases(20_000, 1)
    counts, rows = prepare({"c": sequence}, block=200, buffer=30, **HALVES)
    kept = sum(len(row["sequence"]) for _, row in rows.values())
    assert counts["removed"]["buffers"] == 20_000 - kept > 0
    places = []
    for (_, start), (split, row) in rows.items():
        assert sequence[start:].startswith(row["sequence"])
        places.append((start, start + len(row["sequence"]), split))
    for (_, end, split), (start, _, other) in combinations(sorted(places), 2):
        assert split == other or start - end >= 30
    plain, _ = prepare({"c": sequence}, block=200, buffer=0, **HALVES)
    assert plain["kept"]["letters"] == 20_000
    assert plain["removed"] == {}


def test_blocks_smaller_than_the_buffer(prepare):
    counts, rows = prepare({"c": bases(20_000, 2)}, block=200, buffer=500, **HALVES)
    gone = counts["dropped"]["within_buffers"]
    assert counts["kept"]["rows"] == len(rows) == 100 - gone["rows"] < 100
    assert counts["kept"]["letters"] == 20_000 - gone["letters"] - counts["removed"]["buffers"]
    assert set(counts["splits"]) == set(SPLITS)


def windows(shift):
    """Ten promoters, each also as its other strand and as a window moved by ``shift``."""
    sources = [bases(90, 50 + i) for i in range(10)]
    sequences = {}
    for i, source in enumerate(sources):
        sequences |= {f"p{i}": source[:80], f"r{i}": reverse_complement(source[:80])}
        sequences |= {f"s{i}": source[shift : 80 + shift]}
    return sequences


def test_clusters_keep_strands_and_shifted_windows_together(prepare):
    sequences = windows(1)
    _, rows = prepare(sequences, split_by="cluster", **HALVES)
    assert len(rows) == 30
    found = splits_of(rows)
    assert all(found[f"p{i}"] == found[f"r{i}"] == found[f"s{i}"] for i in range(10))
    assert set(found.values()) == set(SPLITS)
    numbers = {id: row["cluster"] for (id, _), (_, row) in rows.items()}
    assert sorted(set(numbers.values())) == list(range(10))
    shuffled = dict(sorted(sequences.items(), key=lambda item: item[1]))
    again = prepare(shuffled, "again", split_by="cluster", **HALVES)[1]
    assert {id: row["cluster"] for (id, _), (_, row) in again.items()} == numbers
    assert splits_of(again) == found
    _, rows = prepare(sequences, "short", split_by="cluster", cluster_kmer=80, **HALVES)
    assert len({row["cluster"] for _, row in rows.values()}) == 20


def test_proteins_cluster_too(prepare):
    letters = np.random.default_rng(3).choice(list("ACDEFGHIKLMNPQRSTVWY"), (20, 60))
    sequences = {f"p{i}": "".join(row) for i, row in enumerate(letters)}
    sequences |= {f"q{i}": "W" + text[1:-1] for i, text in enumerate(list(sequences.values()))}
    _, rows = prepare(sequences, alphabet="protein", split_by="cluster", **HALVES)
    found = splits_of(rows)
    assert all(found[f"p{i}"] == found[f"q{i}"] for i in range(20))


def test_training_stays_clear_of_given_tests(prepare):
    """What is the same as a test, on its other strand, or shares 30 bases with it leaves the rest."""
    sequences = {f"x{i}": bases(80, 300 + i) for i in range(20)} | windows(40)
    tests = {
        "t0": sequences["p0"],
        "t1": reverse_complement(sequences["p1"]),
        "t2": "A" * 9 + sequences["p2"][:40],
    }
    counts, rows = prepare(sequences, tests=tests, validation=0.2)
    found = splits_of(rows)
    assert [id for id, split in found.items() if split == "test"] == ["t0", "t1", "t2"]
    close = {"p0", "r0", "s0", "p1", "r1", "s1", "p2", "r2"}
    assert set(sequences) - set(found) == close
    assert counts["dropped"] == {"too_close_to_test": {"rows": 8, "letters": 580}}
    assert set(found.values()) == set(SPLITS)
    counts, _ = prepare(sequences, tests=tests, split_by="cluster", validation=0.2)
    assert counts["dropped"] == {"too_close_to_test": {"rows": 9, "letters": 630}}
    with pytest.raises(UserError, match="too close to test_input; nothing is left"):
        prepare({"p0": sequences["p0"]}, tests=tests)


def test_tests_win_over_labels_that_conflict(tmp_path):
    (tmp_path / "a.csv").write_text("sequence,y\nACGTA,x\nCCCTA,x\nGGGAA,y\n")
    (tmp_path / "t.csv").write_text("id,sequence,y\nt,acgta,y\n")
    inputs = {"input": [tmp_path / "a.csv"], "test_input": [tmp_path / "t.csv"], "label_column": "y"}
    result = run(PrepareConfig(output=tmp_path / "out", **inputs, validation=0))
    corpus = load_from_disk(str(result.folder))
    assert corpus["test"]["id"][:] == ["t"]
    assert len(corpus["train"]) == 2
    assert result.manifest["counts"]["dropped"] == {"too_close_to_test": {"rows": 1, "letters": 5}}


def test_sequence_splits_ignore_case_and_strand(prepare):
    lines = [bases(30, 500 + i) for i in range(60)]
    sequences = {f"a{i}": line for i, line in enumerate(lines)}
    sequences |= {f"b{i}": reverse_complement(line).lower() for i, line in enumerate(lines)}
    _, rows = prepare(sequences, letters={"case": "soft-mask"}, **HALVES)
    found = splits_of(rows)
    assert all(found[f"a{i}"] == found[f"b{i}"] for i in range(60))
    assert "cluster" not in next(iter(rows.values()))[1]


def test_cluster_column_is_an_integer(prepare, tmp_path):
    prepare({"a": bases(50, 1), "b": bases(50, 2)}, split_by="cluster", validation=0, test=0)
    assert load_from_disk(str(tmp_path / "corpus"))["train"].features["cluster"] == Value("int64")
