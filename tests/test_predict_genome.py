import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from Bio.Seq import Seq

import pipeline.predict
from pipeline.config import PredictConfig
from pipeline.errors import UserError
from pipeline.model import StrandForSequenceClassification
from pipeline.tokens.vocabulary import load_tokenizer
from pipeline.training import scan

WORD, OTHER = "TATAAT", "ATTATA"
# Where the words begin, 5' to 3', on each strand: the base that is called. A stride of 5 meets them, too.
PLANTED = {
    ("one", 400, "+"),
    ("one", 1500, "+"),
    ("one", 904, "-"),
    ("one", 2104, "-"),
    ("two", 300, "+"),
    ("two", 704, "-"),
}


def genome_letters():
    """Random bases without the word but where it is planted; 12 unknown bases, some lower case."""
    rng = np.random.default_rng(4)
    records = {}
    for name, length in (("one", 2400), ("two", 900)):
        letters = "".join(rng.choice(list("ACGT"), length))
        while WORD in letters or OTHER in letters:
            letters = letters.replace(WORD, "TAGCAT").replace(OTHER, "ATGCTA")
        for record, at, strand in PLANTED:
            if record == name:
                start, word = (at, WORD) if strand == "+" else (at - 5, OTHER)
                letters = letters[:start] + word + letters[start + 6 :]
        records[name] = letters
    two = records["two"]
    records["two"] = two[:500].lower() + "N" * 12 + two[512:]
    return records | {"short": "ACGTACGTAC"}


@pytest.fixture(scope="module")
def genome(tmp_path_factory):
    """The FASTA file, and its records in upper case."""
    path = tmp_path_factory.mktemp("genome") / "g.fa"
    records = genome_letters()
    path.write_text("".join(f">{name} of a test\n{letters}\n" for name, letters in records.items()))
    return path, {name: letters.upper() for name, letters in records.items()}


@pytest.fixture(scope="module")
def settings(genome, classifier_folder):
    return {"checkpoint": classifier_folder, "genome": genome[0], "batch_size": 256}


def run(output, settings, **changes):
    options = {"window": 40, "offset": 20, "stride": 1, "apart": 30, **changes.pop("scan", {})}
    return pipeline.predict.run(PredictConfig(output=output, scan=options, **settings | changes))


@pytest.fixture(scope="module")
def scanned(settings, tmp_path_factory):
    options = {"false_calls_per_kb": 3.0, "table": True}
    return run(tmp_path_factory.mktemp("scanned") / "out", settings, scan=options)


def calls_of(result):
    rows = pd.read_csv(result.folder / "calls.tsv", sep="\t")
    return rows, set(zip(rows["chromosome"], rows["position"], rows["strand"], strict=True))


def table_of(result):
    return pd.read_csv(result.folder / "windows.tsv", sep="\t")


def test_planted_words_are_called_on_their_strand(scanned):
    rows, found = calls_of(scanned)
    assert found >= PLANTED
    assert len(found) <= len(PLANTED) + 14, "the threshold lets through what is no word"
    places = [
        key in PLANTED for key in zip(rows["chromosome"], rows["position"], rows["strand"], strict=True)
    ]
    assert rows["false_calls_per_kb"][places].max() < 2
    assert rows["false_calls_per_kb"].max() <= 3.0
    bed = (scanned.folder / "calls.bed").read_text().splitlines()
    assert bed == [
        f"{r.chromosome}\t{r.position}\t{r.position + 1}\t{r.name_}\t{int(1000 * r.probability)}\t{r.strand}"
        for r in rows.rename(columns={"name": "name_"}).itertuples()
    ]


def test_every_score_is_that_of_its_window(scanned, genome, classifier_folder):
    """By the Hugging Face tokenizer and model, one window at a time, on the strand that Biopython gives."""
    table = table_of(scanned)
    tokenizer = load_tokenizer(classifier_folder)
    model = StrandForSequenceClassification.from_pretrained(classifier_folder).eval()
    some = table.sample(60, random_state=0)
    assert set(some["strand"]) == {"+", "-"}
    for row in some.itertuples():
        letters = genome[1][row.chromosome][row.start : row.end]
        letters = str(Seq(letters).reverse_complement()) if row.strand == "-" else letters
        with torch.inference_mode():
            logits = model(**tokenizer(letters, return_tensors="pt")).logits[0]
        assert row.probability == pytest.approx(logits.softmax(0)[1].item(), abs=1e-5)
        assert row.position == (row.start + 20 if row.strand == "+" else row.end - 1 - 20)


def test_every_window_without_other_letters_is_scored(scanned, genome):
    table = table_of(scanned)
    expected = {
        (name, s, strand)
        for name, letters in genome[1].items()
        for s in range(len(letters) - 39)
        if "N" not in letters[s : s + 40]
        for strand in "+-"
    }
    assert set(zip(table["chromosome"], table["start"], table["strand"], strict=True)) == expected
    assert len(table) == len(expected)
    counts = scanned.manifest["counts"]
    assert counts["windows_scored"] == len(expected) / 2
    assert counts["windows_not_scored"] == 39 + 12
    assert counts["records_too_short"] == 1
    assert counts["lower_case_folded"] == 500
    assert counts["bases"] == 3310


def test_tracks_hold_the_same_scores(scanned):
    pyBigWig = pytest.importorskip("pyBigWig")
    table = table_of(scanned)
    for strand, name in (("+", "plus"), ("-", "minus")):
        rows = table[table["strand"] == strand]
        graph = pd.read_csv(scanned.folder / f"{name}.bedgraph", sep="\t", header=None)
        assert (graph[0].to_numpy() == rows["chromosome"].to_numpy()).all()
        assert (graph[1].to_numpy() == rows["position"].to_numpy()).all()
        assert (graph[2] == graph[1] + 1).all()
        assert (graph[3].to_numpy() == rows["probability"].to_numpy()).all()
        with pyBigWig.open(str(scanned.folder / f"{name}.bw")) as file:
            assert file.chroms() == {"one": 2400, "two": 900, "short": 10}
            of_one = rows[rows["chromosome"] == "one"]
            starts, _, scores = zip(*file.intervals("one"), strict=True)
            assert list(starts) == list(of_one["position"])
            assert scores == pytest.approx(of_one["probability"].to_numpy(), rel=1e-5)


def killed(output, settings, monkeypatch, after, **changes):
    """Scan, and be killed after so many chunks; return how many are left to do of how many."""
    save, saved = scan._save, []

    def save_some(*arguments):
        if len(saved) == after:
            raise KeyboardInterrupt
        saved.append(save(*arguments))

    with monkeypatch.context() as patched:
        patched.setattr(scan, "_save", save_some)
        with pytest.raises(KeyboardInterrupt):
            run(output, settings, **changes)
    assert not output.exists()


def test_a_killed_scan_goes_on_to_the_same_bytes(settings, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(scan, "CHUNK", 64)
    options = {"stride": 10, "table": True}
    whole = run(tmp_path / "whole", settings, scan=options)
    for after in (2, 5):
        killed(tmp_path / "out", settings, monkeypatch, after, scan=options)
    capfd.readouterr()
    resumed = run(tmp_path / "out", settings, scan=options)
    log = capfd.readouterr().err
    assert "scanning: 6 of 6 chunks are there already" in log
    assert "scanning shuffled bases: 1 of 6 chunks are there already" in log
    files = sorted(path.name for path in whole.folder.iterdir() if path.name != "manifest.json")
    assert len(files) == 8
    assert sorted(path.name for path in resumed.folder.glob("[!.]*")) == sorted([*files, "manifest.json"])
    for name in files:
        assert (resumed.folder / name).read_bytes() == (whole.folder / name).read_bytes(), name
    assert resumed.manifest["content"] == whole.manifest["content"]
    assert not list(tmp_path.glob(".out*"))
    assert run(tmp_path / "out", settings, scan=options).up_to_date


def test_scores_of_other_settings_are_not_used(settings, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(scan, "CHUNK", 64)
    killed(tmp_path / "out", settings, monkeypatch, 2, scan={"stride": 20})
    capfd.readouterr()
    changed = run(tmp_path / "out", settings, scan={"stride": 30, "threshold": 0.9})
    assert "of other inputs or settings; they are thrown away" in capfd.readouterr().err
    again = run(tmp_path / "again", settings, scan={"stride": 30, "threshold": 0.9})
    assert changed.manifest["content"] == again.manifest["content"]


def test_a_given_threshold_needs_no_shuffled_bases(settings, tmp_path, scanned, capfd):
    result = run(tmp_path / "out", settings, scan={"threshold": 0.9, "stride": 5})
    log = capfd.readouterr().err
    assert "threshold: probability 0.9, as given" in log
    assert "shuffled" not in log
    rows, found = calls_of(result)
    assert found
    assert rows["probability"].min() > 0.9
    assert rows["false_calls_per_kb"].isna().all()
    assert not (result.folder / "windows.tsv").exists()
    assert not (result.folder / "metrics.json").exists()
    assert result.manifest["counts"]["threshold"] == pytest.approx(0.9)


def test_regions_leave_the_scores_as_they_are(settings, tmp_path, scanned):
    bed = tmp_path / "r.bed"
    bed.write_text("two\t100\t160\none\t1000\t1030\none\t33\t80\none\t70\t101\n")
    options = {"regions": bed, "threshold": 0.5, "table": True, "stride": 4}
    part = table_of(run(tmp_path / "out", settings, scan=options))
    whole = table_of(scanned)
    inside = [
        (row.start % 4 == 0)
        and (row.chromosome, 33, 101) <= (row.chromosome, row.start, row.end)
        and (
            (row.chromosome == "one" and row.start >= 33 and row.end <= 101)
            or (row.chromosome == "two" and row.start >= 100 and row.end <= 160)
        )
        for row in whole.itertuples()
    ]
    expected = whole[inside].reset_index(drop=True)
    keys = ["chromosome", "start", "end", "strand", "position"]
    assert part[keys].equals(expected[keys])
    assert len(part) == 2 * (7 + 6)
    assert part["probability"].to_numpy() == pytest.approx(expected["probability"].to_numpy(), abs=1e-5)


def test_windows_run_over_the_origin_of_circular_records(settings, tmp_path, genome, scanned):
    """The record, begun 1510 bases later, has the same scores and calls at other places."""
    letters = genome[1]["one"]
    path = tmp_path / "turned.fa"
    path.write_text(f">one\n{letters[1510:]}{letters[:1510]}\n")
    options = {"circular": ["one"], "threshold": 0.9, "table": True, "stride": 5}
    result = run(tmp_path / "out", {**settings, "genome": path}, scan=options)
    table, whole = table_of(result), table_of(scanned)
    assert len(table) == 2 * 480
    assert table["end"].max() == 2395 + 40
    table["position"] = (table["position"] + 1510) % 2400
    joined = table.merge(whole[whole["chromosome"] == "one"], on=["position", "strand"])
    assert len(joined) == 2 * (480 - 7)
    assert joined["probability_x"].to_numpy() == pytest.approx(joined["probability_y"].to_numpy(), abs=1e-5)
    words = {(name, (at - 1510) % 2400, strand) for name, at, strand in PLANTED if name == "one"}
    assert calls_of(result)[1] >= words
    graph = pd.read_csv(result.folder / "plus.bedgraph", sep="\t", header=None)
    assert list(graph[1]) == list(range(0, 2400, 5))


def test_strandless_averages_the_log_odds(settings, tmp_path, scanned):
    options = {"strandless": True, "threshold": 0.5, "table": True, "stride": 5}
    with pytest.raises(UserError, match=r"^scan.strandless: .* learnt labels of one strand .* leave it out$"):
        run(tmp_path / "out", settings, scan=options)
    copy = shutil.copytree(settings["checkpoint"], tmp_path / "strandless")
    config = json.loads((copy / "config.json").read_text())
    config["decision"]["strandless"] = True
    (copy / "config.json").write_text(json.dumps(config))
    result = run(tmp_path / "out", settings | {"checkpoint": copy}, scan=options)
    table, whole = table_of(result), table_of(scanned)
    assert set(table["strand"]) == {"."}
    odds = np.log(whole["probability"]) - np.log1p(-whole["probability"])
    means = odds.groupby([whole["chromosome"], whole["start"]]).mean()
    order = pd.MultiIndex.from_frame(table[["chromosome", "start"]])
    expected = (1 / (1 + np.exp(-means[order]))).to_numpy()
    middle = (expected > 0.01) & (expected < 0.99)  # the table's six digits
    assert middle.sum() > 50
    assert table["probability"].to_numpy()[middle] == pytest.approx(expected[middle], abs=1e-4)
    assert {path.name for path in result.folder.glob("*.b*")} == {"both.bedgraph", "both.bw", "calls.bed"}


@pytest.fixture(scope="module")
def annotated(settings, tmp_path_factory):
    """Compared with the planted words (one more, on unknown bases), and genes that begin after each."""
    folder = tmp_path_factory.mktemp("annotated")
    rows = [f"{name}\t{at}\t{at + 1}\t.\t0\t{strand}" for name, at, strand in sorted(PLANTED)]
    (folder / "s.bed").write_text("\n".join([*rows, rows[0], "two\t506\t507\t.\t0\t+"]) + "\n")
    genes = [
        f"{name}\tx\tgene\t{first + 1}\t{first + 100}\t.\t{strand}\t.\tID=g{i}"
        for i, (name, at, strand) in enumerate(sorted(PLANTED))
        for first in [at + 50 if strand == "+" else at - 149]
    ]
    genes.append("one\tx\tCDS\t1\t2400\t.\t+\t.\tID=c")
    (folder / "g.gff3").write_text("\n".join(genes) + "\n")
    options = {"starts": folder / "s.bed", "genes": folder / "g.gff3", "stride": 5, "false_calls_per_kb": 3.0}
    return run(folder / "out", settings, scan=options)


def test_calls_are_compared_with_start_sites(annotated):
    recall = annotated.metrics()["recall"]
    assert (recall["starts"], recall["found"], recall["value"]) == (6, 6, 1.0)
    assert recall["calls"] == len(calls_of(annotated)[0])
    assert recall["median_distance"] == 0
    counts = annotated.manifest["counts"]
    assert (counts["starts"], counts["starts_not_scanned"]) == (6, 1)
    assert set(recall["controls"]) == {"at_content", "strands_swapped", "shuffled"}
    for name in ("strands_swapped", "shuffled", "at_content"):
        assert recall["controls"][name]["value"] < 0.6
    assert recall["controls"]["strands_swapped"]["calls"] == recall["calls"]
    for rate in ("0.1", "1"):
        for kind in ("false_calls", "calls_outside"):
            metric = annotated.metrics()[f"recall_at_{rate}_{kind}_per_kb"]
            assert metric["value"] >= metric["controls"]["at_content"]["value"]
            if kind == "calls_outside":
                assert metric["outside_per_kb"] <= float(rate)


def test_strands_are_compared_with_the_genes_downstream(annotated):
    agreement = annotated.metrics()["strand_agreement"]
    assert agreement["agree"] >= 6
    assert agreement["value"] > agreement["controls"]["strands_swapped"]["value"]
    assert agreement["low"] < agreement["value"] <= agreement["high"]


def test_the_window_of_the_classifier_is_used(settings, tmp_path, scanned):
    """What finetune wrote into the config is used, and not contradicted."""
    copy = shutil.copytree(settings["checkpoint"], tmp_path / "classifier")
    config = json.loads((copy / "config.json").read_text())
    config["decision"] |= {"window": 40, "offset": 20}
    (copy / "config.json").write_text(json.dumps(config))
    known = {**settings, "checkpoint": copy}
    options = {"window": None, "offset": None, "stride": 8, "threshold": 0.5, "table": True}
    table = table_of(run(tmp_path / "out", known, scan=options))
    whole = table_of(scanned)
    joined = table.merge(whole, on=["chromosome", "start", "end", "strand", "position"])
    assert len(joined) == len(table) > 500
    assert joined["probability_x"].to_numpy() == pytest.approx(joined["probability_y"].to_numpy(), abs=1e-5)
    for key, value in (("window", 41), ("offset", 3)):
        message = (
            rf"^scan.{key}: {value}: the classifier was trained with {config['decision'][key]}; leave it"
        )
        with pytest.raises(UserError, match=message):
            run(tmp_path / key, known, scan={**options, key: value})


def test_the_start_site_is_the_middle_unless_it_is_known(settings, tmp_path, capfd):
    copy = shutil.copytree(settings["checkpoint"], tmp_path / "classifier")
    config = json.loads((copy / "config.json").read_text())
    config["decision"] |= {"window": None, "offset": None}
    (copy / "config.json").write_text(json.dumps(config))
    options = {"window": 39, "offset": None, "stride": 100, "threshold": 0.5, "table": True}
    table = table_of(run(tmp_path / "out", {**settings, "checkpoint": copy}, scan=options))
    assert "the start site is taken to be the middle of a window, base 19" in capfd.readouterr().err
    assert (table["position"] - table["start"] == 19).all()
    with pytest.raises(
        UserError, match=r"^scan.window: 60 bases are 58 tokens, more than the classifier's 40$"
    ):
        run(tmp_path / "long", {**settings, "checkpoint": copy}, scan={"window": 60})
    with pytest.raises(
        UserError, match=r"classifier does not say how long the windows .*; pass --scan.window$"
    ):
        run(tmp_path / "other", {**settings, "checkpoint": copy}, scan={"window": None})


BED = "one\t10\t11\n"
WRONG = [
    ({"input": ["x.fa"]}, {}, "predict: input and genome given; give either --input or --genome"),
    ({"genome": None}, {}, "predict: nothing given; give either --input or --genome"),
    ({"genome": None, "input": ["x.fa"]}, {}, "predict: scan.window is for --genome; leave it out"),
    ({"overlap": 3}, {}, "predict: overlap is for --input; leave it out"),
    ({"genome": "no.fa"}, {}, r"no.fa: no such file or folder"),
    ({}, {"offset": 40}, r"scan.offset: 40: not in a window of 40 bases \(counted from 0\)"),
    (
        {},
        {"threshold": 0.5, "false_calls_per_kb": 2},
        "scan.threshold and scan.false_calls_per_kb both choose",
    ),
    ({}, {"feature": "gene"}, "scan.feature is for scan.starts; give these, or drop it"),
    (
        {},
        {"starts": "r.bed", "feature": "TSS"},
        "scan.feature is for scan.starts in GFF or GTF; leave it out",
    ),
    (
        {},
        {"starts": "s.gff"},
        "scan.starts: .*s.gff: GFF and GTF name the type of each feature; say which are starts: "
        "--scan.feature",
    ),
    ({}, {"starts": "far.bed"}, "far.bed: line 1: the interval ends at 9001, but 'one' has 2400"),
    (
        {},
        {"starts": "other.bed"},
        "other.bed: 1 of 1 intervals are on chromosomes that .* does not have: 'chr",
    ),
    (
        {},
        {"starts": "n.bed", "regions": "r.bed"},
        "scan.starts: .*n.bed: no start site is where windows are scored",
    ),
    ({}, {"genes": "s.gff"}, r"s.gff: no usable interval of type 'gene'; the types are 'TSS'"),
    ({}, {"regions": "s.bed"}, "scan.regions: .*s.bed: no interval is as long as a window, 40 bases"),
    ({}, {"regions": "v.vcf"}, "v.vcf: variants are no features; give a BED, GFF or GTF file"),
    (
        {},
        {"circular": ["three"]},
        "scan.circular: .*g.fa has no record 'three'; it has 'one', 'two', 'short'",
    ),
]


@pytest.mark.parametrize(("changes", "options", "message"), WRONG)
def test_what_is_wrong_is_told_in_a_line(settings, tmp_path, changes, options, message):
    (tmp_path / "s.bed").write_text(BED)
    (tmp_path / "s.gff").write_text("one\tx\tTSS\t11\t11\t.\t+\t.\tID=a\n")
    (tmp_path / "far.bed").write_text("one\t9000\t9001\n")
    (tmp_path / "other.bed").write_text("chr1\t10\t11\n")
    (tmp_path / "n.bed").write_text("two\t705\t706\n")
    (tmp_path / "r.bed").write_text("one\t90\t150\n")
    (tmp_path / "v.vcf").write_text("one\t10\t.\tA\tC\t.\t.\t.\n")
    options = {k: tmp_path / v if k in ("starts", "genes", "regions") else v for k, v in options.items()}
    with pytest.raises(UserError, match=message) as error:
        run(tmp_path / "out", {**settings, **changes}, scan={"stride": 100, **options})
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_letters_are_checked_before_anything_is_scored(settings, tmp_path, monkeypatch):
    path = tmp_path / "bad.fa"
    path.write_text(f">one\n{'ACGT' * 50}X\n")
    monkeypatch.setattr(scan, "scan", None)
    with pytest.raises(
        UserError, match=r"bad.fa: record 'one': letter 'X' at position 201 is not a DNA letter"
    ):
        run(tmp_path / "out", {**settings, "genome": path})


def test_bases_that_are_all_unknown_have_no_scores(settings, tmp_path):
    path = tmp_path / "n.fa"
    path.write_text(f">one\n{'N' * 200}\n")
    for options in ({}, {"threshold": 0.5}):
        with pytest.raises(
            UserError, match=r"n.fa: every window (of the shuffled sample )?holds letters other than ACGT"
        ):
            run(tmp_path / "out", {**settings, "genome": path}, scan=options)
