"""The accounts of a corpus close: records, rows and letters, whatever a corpus holds."""

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipeline.config import PrepareConfig
from pipeline.errors import UserError
from pipeline.prepare import run


def total(parts, key):
    return sum(part.get(key, 0) for part in parts.values())


def assert_closed(counts):
    read, taken, kept, dropped = (counts[name] for name in ("read", "taken", "kept", "dropped"))
    assert read["records"] == taken["records"] + total(dropped, "records")
    assert taken["rows"] == kept["rows"] + total(dropped, "rows")
    removed = sum(counts["removed"].values())
    assert read["letters"] == kept["letters"] + total(dropped, "letters") + removed
    splits = counts["splits"].values()
    for unit in ("rows", "letters"):
        assert kept[unit] == sum(split[unit] for split in splits)


def prepare(folder, files, **settings):
    for name, text in files.items():
        (folder / name).write_text(text)
    config = {"output": folder / "out", "on_bad_record": "skip", **settings}
    return run(PrepareConfig(input=[folder / name for name in files], **config)).manifest["counts"]


def test_a_messy_corpus(tmp_path):
    """Every kind of loss, in letters counted by hand."""
    fasta = (
        ">a\nMK*LV--AEDE*\n>a1\nMKLVAEDE\n>e\n>b\nMK?VA\n>c\nM V L  A\n>d\nXXXXX\n>f\nMXXXX\n>g\nMKLVAEDE\n"
    )
    files = {
        "in.fa": fasta,
        "t.csv": "id,sequence\nh,MKLVC\ni,MKL VC\nj,MKLVC,1\nk,\n",
        "r.fq": "@l\nMKLVD\n+\nIII\n@m\nMKLVE\n+\nIIIII\n",
    }
    letters = {"stops": "split", "gaps": "remove"}
    whole = {"validation": 0, "test": 0}
    counts = prepare(tmp_path, files, alphabet="protein", letters=letters, min_length=4, **whole)
    assert counts["dropped"] == {
        "empty": {"records": 2, "letters": 0},
        "bad_records": {"records": 3, "letters": 10},
        "bad_letters": {"records": 1, "letters": 5},
        "too_short": {"rows": 1, "letters": 2},
        "all_unknown": {"rows": 1, "letters": 5},
        "too_unknown": {"rows": 1, "letters": 5},
        "duplicates": {"rows": 1, "letters": 8},
    }
    assert counts["removed"] == {"gaps": 2, "inner_stops": 1, "final_stops": 1}
    assert counts["blanks_removed"] == 4
    assert counts["read"] == {"records": 14, "letters": 12 + 8 + 5 + 4 + 5 + 5 + 8 + 5 + 10 + 5 + 0}
    assert counts["taken"] == {"records": 8, "rows": 9}
    assert counts["kept"] == {"rows": 5, "letters": 6 + 8 + 4 + 5 + 5}
    assert_closed(counts)


def test_intervals(tmp_path):
    (tmp_path / "g.fa").write_text(">1\nAACCGGTTACGT!CCC\n>2\nTTTTTTTTTTGA\n")
    lines = ["1\t0\t6", "1\t4\t90", "3\t0\t5", "1\tx\t5", "1\t10\t14", "1\t10\t14\ty\t0\t-", "2\t0\t9"]
    counts = prepare(
        tmp_path, {"a.bed": "\n".join(lines) + "\n"}, genome=tmp_path / "g.fa", validation=0, test=0
    )
    assert counts["read"] == {"records": 7, "letters": 6 + 4 + 9}
    assert counts["dropped"]["bad_letters"] == {"records": 2, "letters": 4}
    assert counts["dropped"]["unknown_chromosome"] == {"records": 1, "letters": 0}
    assert counts["taken"] == {"records": 2, "rows": 2}
    assert_closed(counts)


LETTERS = st.text("AAACCGT Nn-.!*u", min_size=0, max_size=60)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.lists(LETTERS, min_size=1, max_size=12),
    block=st.none() | st.integers(3, 20),
    buffer=st.integers(0, 6),
    least=st.integers(1, 3),
    protein=st.booleans(),
    piece=st.integers(1, 30),
)
def test_accounts_close(tmp_path, monkeypatch, records, block, buffer, least, protein, piece):
    monkeypatch.setattr("pipeline.prepare.PIECE", piece)
    letters = {"gaps": "remove"} | ({"stops": "split"} if protein else {})
    config = {"alphabet": "protein"} if protein else {"strandless": True}
    config |= {"letters": letters, "block": block, "min_length": least, "validation": 0.2, "test": 0.2}
    config |= {"buffer": buffer, "repeat": 16} if block else {}
    fasta = "".join(f">r{i}\n{text}\n" for i, text in enumerate(records)) + ">z\nACCGTACCATTGGAGACCCATT\n"
    try:
        counts = prepare(Path(tempfile.mkdtemp(dir=tmp_path)), {"in.fa": fasta}, **config)
    except UserError as error:
        assume("leave nothing to train on" not in str(error) and "no usable record" not in str(error))
        raise
    assert_closed(counts)
    assert counts["read"]["records"] == len(records) + 1
    text = "".join(fasta.split("\n")[1::2])
    assert counts["read"]["letters"] == len(text.replace(" ", ""))
    inner = sum(record.strip().count(" ") for record in records)
    assert counts.get("blanks_removed", 0) == inner or "kmers_joined" in counts


def test_rows_of_a_record_that_turns_out_bad_count_once(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.prepare.PIECE", 10)
    files = {"in.fa": f">a\n{'N' * 20}ACGTACGT!AC\n>b\nACGGTACC\n"}
    counts = prepare(tmp_path, files, block=8, validation=0, test=0)
    assert counts["dropped"] == {"bad_letters": {"records": 1, "letters": 31}}
    assert_closed(counts)
