"""The corpus that prepare writes: what is in it, what is counted, and that equal inputs give equal bytes."""

import json
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from datasets import List, Value, load_from_disk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.config import LettersConfig, PrepareConfig
from pipeline.errors import UserError
from pipeline.prepare import run
from pipeline.sequences.alphabets import reverse_complement

WHOLE = {"validation": 0, "test": 0}
SPLITS = ("train", "validation", "test")


@pytest.fixture
def prepare(tmp_path):
    def prepare(content, name="in.fa", output="corpus", **settings):
        path = tmp_path / name
        path.write_text(content)
        return run(PrepareConfig(output=tmp_path / output, input=[path], **settings))

    return prepare


def rows(result, split="train"):
    table = load_from_disk(str(result.folder))[split]
    return [tuple(row.values()) for row in table]


def all_rows(result):
    return sorted(row for split in load_from_disk(str(result.folder)) for row in rows(result, split))


def random_fasta(records, length, seed=0):
    rng = np.random.default_rng(seed)
    return "".join(f">r{i}\n{''.join(rng.choice(list('ACGT'), length))}\n" for i in range(records))


def test_soft_masked_record(prepare):
    result = prepare(">m\nACGTacgtNNNNnnnnACGT\n", **WHOLE)
    assert rows(result) == [("m", 0, "ACGTACGTNNNNNNNNACGT")]
    counts = result.manifest["counts"]
    assert counts["changed"] == {"lower_case_folded": 8}
    assert counts["soft_masked_fraction"] == 0.4
    assert counts["read"] == {"records": 1, "letters": 20}
    assert counts["splits"] == {"train": {"rows": 1, "letters": 20}}


def test_unknown_bases(prepare, capsys):
    fasta = f">a\nACGTRYKMACGTNNNNNNNNNNNNACGT\n>n\n{'N' * 500}\n>b\nAACCNNNN\n"
    result = prepare(fasta, **WHOLE)
    assert rows(result) == [("b", 0, "AACCNNNN")]
    assert result.manifest["counts"]["dropped"] == {
        "all_unknown": {"rows": 1, "letters": 500},
        "too_unknown": {"rows": 1, "letters": 28},
    }
    said = capsys.readouterr().err
    assert "record 'n', line 3: nothing but unknown letters, dropped" in said
    assert "record 'a', line 1: 16 of 28 letters unknown, a larger share than 0.5, dropped" in said
    result = prepare(fasta, max_unknown=0.6, **WHOLE)
    assert rows(result)[0] == ("a", 0, "ACGTNNNNACGTNNNNNNNNNNNNACGT")
    assert result.manifest["counts"]["changed"] == {"ambiguous_to_n": 4}
    gaps = prepare(">p\nMK--\n>q\nM---\n", alphabet="protein", aligned=True, **WHOLE)
    assert rows(gaps) == [("p", 0, "MK--")]


PROTEINS = ">p1\nMKUOBZJX*\n>p2\nMK*LV*\n>p3\nMK--LV.A\n>p4\nmkvl\n>p5\nMK?V\n"


def test_odd_proteins(prepare):
    result = prepare(PROTEINS, alphabet="protein", on_bad_record="skip", **WHOLE)
    assert rows(result) == [("p1", 0, "MKUOBZXX"), ("p4", 0, "MKVL")]
    counts = result.manifest["counts"]
    assert counts["dropped"] == {"bad_letters": {"records": 3, "letters": 18}}
    assert counts["changed"] == {"j_to_x": 1, "lower_case_folded": 4}
    assert counts["removed"] == {"final_stops": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (">p1\nMK\n>p2\nMK*LV*\n", r"in.fa: record 'p2', line 3: letter '\*' at position 3 is a stop codon"),
        (">p3\nMK--LV.A\n", "in.fa: record 'p3', line 1: letter '-' at position 3 is a gap"),
        (">p5\nMK?1V\n", "in.fa: record 'p5', line 2, column 4: digit '1'"),
        (">p5\nMK?V\n", r"in.fa: record 'p5', line 1: letter '\?' at position 3 is not a protein letter"),
        ("", "in.fa: no records in it"),
        (">x 1\nAAAA\n>x 2\nCCCC\n", "record 'x', line 3: the same id as line 1"),
        (">a\nXXX\n>b\n", "in.fa: no usable record; dropped: 1 empty, 1 all unknown"),
    ],
)
def test_bad_input_leaves_nothing_behind(prepare, tmp_path, content, message):
    with pytest.raises(UserError, match=message) as error:
        prepare(content, alphabet="protein")
    assert "\n" not in str(error.value)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_blocks(prepare):
    sequence = "ACGTACGTAA" + "N" * 10 + "CCCCCTTTTT" + "GGG"
    result = prepare(f">c\n{sequence}\n>d\nAC\n", block=10, min_length=3, **WHOLE)
    assert rows(result) == [("c", 0, "ACGTACGTAA"), ("c", 20, "CCCCCTTTTT"), ("c", 30, "GGG")]
    assert result.manifest["counts"]["dropped"] == {
        "too_short": {"rows": 1, "letters": 2},
        "all_unknown": {"rows": 1, "letters": 10},
    }
    assert result.manifest["counts"]["kept"] == {"rows": 3, "letters": 23}


def test_small_spool_batches_change_nothing(prepare, monkeypatch):
    fasta = random_fasta(30, 100)
    whole = prepare(fasta, block=7, buffer=2)
    monkeypatch.setattr("pipeline.sequences.spool.SPOOL_ROWS", 4)
    monkeypatch.setattr("pipeline.sequences.spool.SPOOL_LETTERS", 20)
    pieces = prepare(fasta, block=7, buffer=2, output="pieces")
    for split in SPLITS:
        assert rows(whole, split) == rows(pieces, split)


def test_every_letter_is_in_one_split(prepare):
    fasta = random_fasta(1, 1003)
    settings = {"block": 10, "validation": 0.2, "test": 0.2, "deduplicate": False, "buffer": 0}
    result = prepare(fasta, **settings)
    pieces = {start: piece for split in SPLITS for _, start, piece in rows(result, split)}
    assert "".join(pieces[start] for start in sorted(pieces)) == fasta.split()[1]
    assert result.manifest["counts"]["kept"] == {"rows": 101, "letters": 1003}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.lists(st.text("ACGTacgtuNnRk", min_size=1, max_size=60), min_size=1, max_size=5),
    piece=st.integers(1, 25),
    block=st.none() | st.integers(1, 30),
    longest=st.integers(5, 40),
)
def test_pieces_change_nothing_and_lose_nothing(tmp_path, monkeypatch, records, piece, block, longest):
    """The corpus has the same bytes whatever the size of pieces, and gives every base of the input back."""
    monkeypatch.setattr("pipeline.sequences.intake.LONGEST_ROW", longest)
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    path = folder / "in.fa"
    path.write_text(">first\nAC\n" + "".join(f">r{i}\n{text}\n" for i, text in enumerate(records)))
    limits = {"max_unknown": 1, "deduplicate": False, "split_by": "sequence"}
    config = {"input": [path], "block": block, "letters": LettersConfig(case="soft-mask"), **limits}
    results = []
    for size in (piece, 1000):
        monkeypatch.setattr("pipeline.prepare.PIECE", size)
        results.append(run(PrepareConfig(output=folder / f"out{size}", **config)))
    for key in ("content", "counts"):
        assert results[0].manifest[key] == results[1].manifest[key]
    found = {}
    for id, start, text in all_rows(results[0]):
        found.setdefault(id, {})[start] = text
    folded = str.maketrans("uRk", "tNn")
    for i, text in enumerate(records):
        given = text.translate(folded)
        size = block or longest
        parts = {start: given[start : start + size] for start in range(0, len(given), size)}
        parts = {start: part for start, part in parts.items() if set(part) - set("Nn")}
        assert found.get(f"r{i}", {}) == parts


def test_long_records_are_cut_and_stay_together(prepare, monkeypatch):
    monkeypatch.setattr("pipeline.sequences.intake.LONGEST_ROW", 30)
    monkeypatch.setattr("pipeline.prepare.PIECE", 17)
    fasta = random_fasta(40, 100)
    result = prepare(fasta, validation=0.3, test=0.3)
    assert result.manifest["counts"]["records_cut"] == 40
    seen = {}
    for split in SPLITS:
        for id, start, text in rows(result, split):
            seen.setdefault((id, split), {})[start] = text
    assert len(seen) == 40
    assert {split for _, split in seen} == set(SPLITS)
    given = dict(zip(fasta.split()[::2], fasta.split()[1::2], strict=True))
    assert {f">{id}": "".join(parts.values()) for (id, _), parts in seen.items()} == given
    assert all(list(parts) == [0, 30, 60, 90] for parts in seen.values())


def test_a_bad_letter_far_into_a_record_drops_all_of_it(prepare, monkeypatch):
    monkeypatch.setattr("pipeline.prepare.PIECE", 10)
    fasta = f">a\n{'ACGT' * 20}!\n>b\nGGCC\n"
    result = prepare(fasta, block=7, on_bad_record="skip", **WHOLE)
    assert rows(result) == [("b", 0, "GGCC")]
    assert result.manifest["counts"]["dropped"] == {"bad_letters": {"records": 1, "letters": 81}}
    assert result.manifest["counts"]["changed"] == {}
    with pytest.raises(UserError, match=r"record 'a', line 1: letter '!' at position 81 is not a DNA letter"):
        prepare(fasta, output="other", block=7, **WHOLE)


def test_soft_mask_stays_and_duplicates_ignore_it(prepare):
    letters = {"case": "soft-mask"}
    result = prepare(">a\nACgtN\n>b\nACGTN\n>c\nttGA\n", letters=letters, **WHOLE)
    assert rows(result) == [("a", 0, "ACgtN"), ("c", 0, "ttGA")]
    counts = result.manifest["counts"]
    assert counts["changed"] == {"soft_masked": 4}
    assert counts["dropped"] == {"duplicates": {"rows": 1, "letters": 5}}
    assert result.manifest["config"]["letters"]["case"] == "soft-mask"


def test_stops_and_gaps_keep_their_coordinates(prepare):
    letters = {"stops": "split", "gaps": "remove"}
    fasta = ">p\nMK*LV--A*\n>q\n--M..KRR-\n"
    result = prepare(fasta, alphabet="protein", letters=letters, **WHOLE)
    assert rows(result) == [("p", 0, "MK", []), ("p", 3, "LVA", [2, 2]), ("q", 2, "MKRR", [1, 2])]
    assert result.manifest["counts"]["removed"] == {"gaps": 7, "inner_stops": 1, "final_stops": 1}
    assert load_from_disk(str(result.folder))["train"].features["gaps"] == List(Value("int32"))


def test_refused_letters(prepare):
    with pytest.raises(
        UserError, match=r"record 'a', line 1: letter 'U' at position 3 is refused by letters.uracil; --"
    ):
        prepare(">a\nACU\n", letters={"uracil": "error"}, **WHOLE)


def test_equal_inputs_give_equal_bytes(tmp_path):
    contents = []
    for place, name in (("one", "a.fa"), ("two", "b c.txt")):
        (tmp_path / place).mkdir()
        path = tmp_path / place / name
        path.write_text(random_fasta(50, 40))
        result = run(PrepareConfig(output=tmp_path / place / "out", input=[path], validation=0.2, test=0.2))
        contents.append((result.manifest["content"], result.manifest["counts"]))
        names = {path.name for path in result.folder.rglob("*")}
        assert not [name for name in names if name.startswith(".")]
    assert contents[0] == contents[1]


def test_layout_of_the_file_does_not_matter(prepare):
    plain = prepare(">a\nACGT\n>b\nGGCC\n", **WHOLE)
    odd = prepare("\ufeff> a x\r\nAC\r\n\r\nGT\r\n>b\r\nGG CC", output="odd", **WHOLE)
    assert plain.manifest["content"] == odd.manifest["content"]


def test_up_to_date_unless_something_changed(prepare):
    assert not prepare(">a\nACGT\n", **WHOLE).up_to_date
    assert prepare(">a\nACGT\n", **WHOLE).up_to_date
    assert not prepare(">a\nACGA\n", **WHOLE).up_to_date


def test_duplicates_and_conflicts(prepare, capsys):
    table = "sequence,label\nAAAC,x\nAAAC,x\nCCCG,x\ncccg,y\nCCCG,y\nGGGT,y\n"
    result = prepare(table, "in.csv", label_column="label", **WHOLE)
    assert (
        "records 'record_3' and 'record_4': the same sequence, but another label" in capsys.readouterr().err
    )
    assert rows(result) == [("record_1", 0, "AAAC", 0), ("record_6", 0, "GGGT", 1)]
    counts = result.manifest["counts"]
    assert counts["dropped"] == {
        "duplicates": {"rows": 1, "letters": 4},
        "conflicting_labels": {"rows": 3, "letters": 12},
    }
    assert counts["splits"]["train"] == {"rows": 2, "letters": 8, "labels": {"x": 1, "y": 1}}
    everything = prepare(table, "in.csv", "all", label_column="label", deduplicate=False, **WHOLE)
    assert len(rows(everything)) == 6


def test_copies_and_other_strands_share_a_split(prepare):
    lines = random_fasta(60, 30).split()[1::2]
    strands = [*lines, *lines, *map(reverse_complement, lines)]
    fasta = "".join(f">r{i}\n{sequence}\n" for i, sequence in enumerate(strands))
    result = prepare(fasta, deduplicate=False, validation=0.3, test=0.3)
    seen = [
        {min(s, reverse_complement(s)) for _, _, s in rows(result, name)}
        for name in ("train", "validation", "test")
    ]
    assert sum(map(len, seen)) == 60 == len(set().union(*seen))


def test_alignment(prepare):
    a3m = "#A3M\n>q\nMK-L\n>h\nMKabL-\n>g\n----\n"
    settings = {"alphabet": "protein", "aligned": True, **WHOLE}
    result = prepare(a3m, "in.a3m", **settings)
    assert rows(result) == [("q", 0, "MK-L"), ("h", 0, "MKL-")]
    assert result.manifest["counts"]["removed"] == {"insertions": 2}
    assert result.manifest["counts"]["dropped"] == {"all_unknown": {"rows": 1, "letters": 4}}
    with pytest.raises(UserError, match=r"in.fa: record 'h', line 4: 6 columns where the first record has 4"):
        prepare(a3m, output="fasta", **settings)


def test_an_empty_split_is_told(prepare, capsys):
    prepare(random_fasta(2, 40), validation=0.3, test=0.3)
    assert "warning: no row is left for " in capsys.readouterr().err
    with pytest.raises(UserError, match="buffers of 500 letters leave nothing to train on"):
        prepare(random_fasta(1, 40), block=20, buffer=500, validation=0.3, test=0.3)


def test_renamed_ids(prepare):
    result = prepare(">seq 0\nACCA\n>seq 1\nGGTT\n", duplicate_ids="rename", **WHOLE)
    assert [row[0] for row in rows(result)] == ["seq", "seq_2"]
    assert result.manifest["counts"]["renamed_ids"] == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give sequence files either as input or as classes"),
        ({"input": ["a"], "classes": {"x": "b"}}, "give sequence files either as input or as classes"),
        ({"classes": {"x": "b"}, "label_column": "y"}, "classes are the labels already; drop label_column"),
        ({"classes": {"x": "b", "y": "b"}}, "one file is given for two classes"),
        ({"input": ["a"], "aligned": True, "block": 5}, "cannot be cut into blocks"),
        ({"input": ["a"], "keep_columns": ["start"]}, "'start' is a column of the corpus itself"),
        ({"input": ["a"], "keep_columns": ["strand"], "genome": "g"}, "'strand' is a column of the corpus"),
        ({"input": ["a"], "validation": 0.5, "test": 0.5}, "leave nothing for training"),
        ({"input": ["none.fa"]}, "none.fa: no such file"),
        ({"input": ["a"], "aligned": True, "letters": {"gaps": "remove"}}, "an alignment keeps its gaps"),
        ({"input": ["a"], "alphabet": "protein", "strandless": True}, "proteins have no other strand"),
        ({"input": ["a"], "test_input": ["t"], "test_names": ["x"]}, "test_input and test_names"),
        ({"input": ["a"], "test_input": ["t"], "split_column": "x"}, "test_input and split_column"),
        ({"classes": {"x": "a"}, "test_input": ["t"]}, "test_input and classes"),
        ({"input": ["a"], "test_input": ["a"]}, "a is in input and in test_input"),
        ({"input": ["a", "a"]}, "a is given twice in input; drop one"),
        ({"input": ["a", "b", "./x/../b"]}, "b is given twice in input; drop one"),
        ({"classes": {"x": "a", "y": "./z/../a"}}, "a is in class x and in class y; drop one"),
        ({"input": ["a"], "test_input": ["t", "t"]}, "t is given twice in test_input; drop one"),
        ({"input": ["a"], "upstream": 5}, "upstream is for intervals of a genome"),
        ({"input": ["a"], "anchor": "start"}, "anchor is for intervals of a genome"),
        ({"input": ["a"], "split_column": "s", "split_by": "record"}, "drop split_by"),
        ({"input": ["a"], "split_column": "s", "test_names": ["r"]}, "drop test_names"),
        ({"input": ["a"], "split_by": "block"}, "needs block, the length of one"),
        ({"input": ["a"], "split_by": "chromosome"}, "needs intervals .* use split_by: record"),
        ({"input": ["a"], "test_names": ["r"]}, "test_names needs split_by: record or"),
        (
            {"input": ["a"], "split_by": "record", "test_names": ["r"], "validation_names": ["r"]},
            "'r' is in validation_names and in test_names",
        ),
    ],
)
def test_contradictory_settings(tmp_path, settings, message):
    with pytest.raises(UserError, match=message) as error:
        run(PrepareConfig(output=Path(tmp_path) / "out", **settings))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"split_by": "record", "test_names": ["a", "b"]},
            "0 rows are for validation, 2 rows are for test; le",
        ),
        ({"split_by": "record", "test_names": ["a"], "validation_names": ["b"]}, "leave fewer names"),
        (
            {"split_column": "part", "strandless": True},
            "dropped: 1 duplicates .4 letters.; give rows for train",
        ),
    ],
)
def test_nothing_left_to_train_on(prepare, settings, message):
    table = "id,sequence,part\na,AAAC,train\nb,GTTT,test\n"
    with pytest.raises(UserError, match=f"no row is left to train on: .*{message}") as error:
        prepare(table, "in.csv", **settings)
    assert "\n" not in str(error.value)


def test_labels_that_differ_on_the_other_strand(prepare, capsys):
    """Of strandless sequences, 10 reverse complements and one copy in test have another label."""
    lines = random_fasta(12, 40).split()[1::2]
    table = "".join(f"{s},x,train\n" for s in lines)
    table += "".join(f"{reverse_complement(s)},y,test\n" for s in lines[:10]) + f"{lines[10]},y,test\n"
    settings = {"label_column": "label", "split_column": "part"}
    for strandless, conflicts in ((True, 11), (False, 1)):
        result = prepare("sequence,label,part\n" + table, "in.csv", strandless=strandless, **settings)
        pair = json.loads((result.folder / "leakage.json").read_text())["given"]["pairs"]["test in train"]
        assert (pair["exact"], pair["reverse_complement"]) == (1, 10)
        assert pair["conflicting_labels"] == conflicts
        assert f"and {conflicts} of these have another label there" in capsys.readouterr().err


def test_proteins_that_look_like_dna(prepare, capsys):
    for text, warned in (("ACGTTGCANA", True), ("ACGTTGCANL", False), ("A" * 19 + "L", True)):
        prepare(f">a\n{text}\n", alphabet="protein", **WHOLE)
        assert ("look like DNA" in capsys.readouterr().err) is warned
    prepare(">a\nACGTTGCANA\n", output="dna", **WHOLE)
    assert "look like DNA" not in capsys.readouterr().err


def test_other_strands_of_strandless_sequences(prepare):
    """A reverse complement is a duplicate, and may conflict, only where strands mean nothing."""
    table = "sequence,label\nAAAC,x\nGTTT,x\nCCCA,x\nTGGG,y\n"
    result = prepare(table, "in.csv", label_column="label", **WHOLE)
    assert len(rows(result)) == 4
    assert result.manifest["counts"]["dropped"] == {}
    result = prepare(table, "in.csv", "strandless", label_column="label", strandless=True, **WHOLE)
    assert rows(result) == [("record_1", 0, "AAAC", 0)]
    assert result.manifest["counts"]["dropped"] == {
        "duplicates": {"rows": 1, "letters": 4},
        "conflicting_labels": {"rows": 2, "letters": 8},
    }


def write(path, text):
    path.write_text(text)
    return path


@contextmanager
def peak_memory():
    """Give a function that returns by how many bytes anonymous memory grew at most inside the block."""

    def used():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

    def watch():
        while not done.wait(0.01):
            seen.append(used())

    seen, done = [used()], threading.Event()
    watcher = threading.Thread(target=watch)
    watcher.start()
    yield lambda: max(seen) - seen[0]
    done.set()
    watcher.join()


def test_memory_does_not_grow_with_a_line(tmp_path):
    """64 million bases in one line take less memory than that."""
    rng = np.random.default_rng(0)
    with (tmp_path / "long.fa").open("wb") as file:
        file.write(b">one\n")
        for _ in range(16):
            file.write(
                np.frombuffer(b"ACGT", np.uint8)[rng.integers(0, 4, 1 << 22, dtype=np.uint8)].tobytes()
            )
    run(PrepareConfig(output=tmp_path / "warm", input=[write(tmp_path / "s.fa", ">a\nACGT\n")], **WHOLE))
    settings = {"block": 10_000, "split_by": "sequence", **WHOLE}
    with peak_memory() as peak:
        run(PrepareConfig(output=tmp_path / "out", input=[tmp_path / "long.fa"], **settings))
    assert peak() < 48 << 20
