import json
import shutil

import numpy as np
import pandas as pd
import pytest
from datasets import load_from_disk

import pipeline.attention.capture
import pipeline.motifs
import pipeline.prepare
from pipeline.artifacts import read_manifest
from pipeline.attention.heads import Reader, chosen_heads
from pipeline.attention.motif_files import read_motifs, write_meme
from pipeline.attention.words import high_regions
from pipeline.config import MotifsConfig, PrepareConfig
from pipeline.errors import UserError
from pipeline.tokens.kmers import KmerCodec
from pipeline.training.classifier import load_classifier


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """Simulated matrices and, among them, that of the planted word."""
    rng = np.random.default_rng(0)
    matrices = {f"decoy{i}": rng.dirichlet(np.full(4, 0.3), rng.integers(6, 12)) for i in range(40)}
    word = np.full((6, 4), 0.02)
    word[np.arange(6), ["ACGT".index(letter) for letter in "TATAAT"]] = 0.94
    matrices["minus10"] = word
    path = tmp_path_factory.mktemp("database") / "database.meme"
    write_meme(path, matrices, dict.fromkeys(matrices, 100))
    return path


@pytest.fixture
def find(classifier_folder, rule_folder, tmp_path):
    """Run the stage with these settings; return its metrics and motifs."""

    def run(name="motifs", **changes):
        settings = {"checkpoint": classifier_folder, "data": rule_folder / "corpus", "positive": "promoter"}
        settings |= {"max_sequences": 120, "mutagenesis": 0, "controls": ["untrained"]}
        folder = pipeline.motifs.run(MotifsConfig(output=tmp_path / name, **settings | changes)).folder
        return json.loads((folder / "metrics.json").read_text()), json.loads(
            (folder / "motifs.json").read_text()
        )

    return run


@pytest.mark.parametrize("queries", ["cls", "all"])
def test_the_planted_word_is_found(find, database, tmp_path, queries):
    metrics, motifs = find(database=[database], expected=["minus10"], queries=queries)
    recovered = metrics["motifs_recovered"]
    assert recovered["found"] == ["minus10"]
    assert (recovered["value"], recovered["of"], recovered["motifs"]) == (1, 1, len(motifs))
    assert recovered["untrained"] in (0, 1)
    best = motifs[0]
    assert best["consensus"] == "TATAAT"
    assert best["best_hit"]["target"] == "minus10"
    assert (best["best_hit"]["offset"], best["best_hit"]["strand"]) == (0, "+")
    assert 60 <= best["n_sites"] <= 132  # of 120 planted
    assert best["q_value"] < 1e-6
    assert np.array(best["matrix"]).sum(1) == pytest.approx(1, abs=1e-3)
    assert set(best["heads"]) <= {"0.0", "0.1"}
    folder = tmp_path / "motifs"
    assert list(read_motifs(folder / "motifs.meme")) == [motif["name"] for motif in motifs]
    assert {p.stem for p in (folder / "logos").iterdir()} == {motif["name"] for motif in motifs}
    assert (folder / "logos" / "motif-1.png").read_bytes().startswith(b"\x89PNG")
    counts = read_manifest(folder)["counts"]
    assert counts["found_on"] == {"positives": 120, "others": 120}
    assert counts["tested_on"] == {"positives": 100, "others": 100}
    assert counts["motifs"] == len(motifs)


def test_without_a_database_motifs_are_counted(find):
    metrics, motifs = find(controls=[])
    assert metrics == {"motifs_found": {"value": len(motifs), "controls": {}}}
    assert motifs[0]["best_hit"] is None


def test_only_chosen_heads_are_read(find, tmp_path):
    _, motifs = find(heads=["0.1"])
    assert all(motif["heads"] == ["0.1"] for motif in motifs)
    assert set(pd.read_csv(tmp_path / "motifs" / "words.tsv", sep="\t")["head"].astype(str)) == {"0.1"}


def test_splits_and_numbers_of_sequences_may_be_limited(find, tmp_path):
    find("test", test_on=["test"])
    assert read_manifest(tmp_path / "test")["counts"]["tested_on"] == {"positives": 60, "others": 60}
    find("few", discover_on=["test"], test_on=["validation"], max_sequences=50)
    counts = read_manifest(tmp_path / "few")["counts"]
    assert counts["found_on"] == {"positives": 50, "others": 50}
    assert counts["tested_on"] == {"positives": 40, "others": 40}


def test_one_split_is_halved(find, tmp_path):
    """The halves share no row: those tested are read from the table of instances and from the counts."""
    find("halves", discover_on=["test", "validation"], test_on=["validation", "test"], max_sequences=1000)
    counts = read_manifest(tmp_path / "halves")["counts"]
    assert counts["found_on"] == counts["tested_on"] == {"positives": 50, "others": 50}


def test_a_motif_stands_beside_its_evidence(find, tmp_path):
    """Sites, position, heads, mutagenesis and controls of the planted word, read from the files."""
    metrics, motifs = find(
        controls=["shuffled_positives", "permuted_labels", "random_regions", "no_attention"],
        permutations=3,
        mutagenesis=12,
        max_motifs=2,
    )
    best, folder = motifs[0], tmp_path / "motifs"
    assert best["sites_in_positives"] == "100 of 100"
    assert int(best["sites_in_others"].split()[0]) < 30
    assert (best["modal_start"], best["supported"]) == (20, True)
    assert best["gathering_p_value"] < 1e-50
    # The word always stands at one place, so that the regions of other sequences hold it, too.
    assert best["also_found_in"] == ["random_regions", "no_attention"]
    controls = metrics["motifs_found"]["controls"]
    assert {name: control["runs"] for name, control in controls.items()} == {
        "shuffled_positives": 1,
        "permuted_labels": 3,
        "random_regions": 1,
        "no_attention": 1,
    }
    assert controls["permuted_labels"]["runs_with_motifs"] == 0
    sites = pd.read_csv(folder / "instances.tsv", sep="\t")
    mine = sites[(sites["motif_id"] == "motif-1") & (sites["start"] == 21)]
    assert len(mine) >= 220  # all that are read: 120 and 100
    assert mine["matched_sequence"].value_counts().index[0] == best["consensus"]
    heads = pd.read_csv(folder / "heads.tsv", sep="\t")
    assert set(heads["head"].astype(str)) == {"0.0", "0.1"}
    assert heads["sites"].max() == 100
    held = np.load(folder / "examples.npz")
    assert held["attention"].shape == (2, 12, 40)
    assert held["effect"].shape == (12, 40)
    assert held["motifs"].tolist() == [each["name"] for each in motifs]
    marked = held["sites"][held["sites"][:, 1] == 0]
    assert sorted(marked[:, 0]) == list(range(12))  # every promoter has the first motif
    words = [str(held["sequences"][i])[a:b] for i, _, a, b, _ in marked]
    assert pd.Series(words).value_counts().index[0] == best["consensus"]
    inside = held["effect"][:, 20:26].mean()
    assert inside > 5 * abs(held["effect"][:, :15].mean())
    assert not list(folder.glob("*.bedgraph"))  # these rows have no place in a genome


def test_nothing_enriched_is_an_empty_table(find, database, rule_folder, tmp_path, capsys):
    """Labels without meaning: half of the promoters against the other half."""
    rows = pd.read_csv(rule_folder / "rule.tsv", sep="\t", keep_default_na=False)
    rows = rows[rows["class"] == "promoter"]
    rows["class"] = np.where(rows["number"] == 0, "promoter", "other")
    rows.to_csv(tmp_path / "rows.tsv", sep="\t", index=False)
    corpus = PrepareConfig(output=tmp_path / "corpus", input=[tmp_path / "rows.tsv"], label_column="class")
    metrics, motifs = find(
        data=pipeline.prepare.run(corpus).folder,
        database=[database],
        expected=["minus10"],
        controls=MotifsConfig.model_fields["controls"].default,
        mutagenesis=3,
    )
    assert motifs == []
    assert metrics["motifs_recovered"]["value"] == 0
    assert "0 motifs: none" in capsys.readouterr().err
    folder = tmp_path / "motifs"
    assert "MOTIF" not in (folder / "motifs.meme").read_text()
    assert (folder / "motifs.meme").read_text().startswith("MEME version 4")
    assert not list((folder / "logos").iterdir())
    for name in ("pairs", "spacings", "heads", "instances"):
        assert len((folder / f"{name}.tsv").read_text().splitlines()) == 1, name
    assert (folder / "motifs.jaspar").read_text() == ""


# -- where attention lies, in bases


def test_a_trained_head_looks_at_the_planted_bases(classifier_folder, rule_folder):
    """On average over promoters, the attended region of some head lies on bases 20 to 25."""
    model, codec = load_classifier(classifier_folder)
    rows = load_from_disk(str(rule_folder / "corpus"))["test"]
    promoters = [s for s, label in zip(rows["sequence"], rows["label"], strict=True) if label == 1]
    scores = Reader(codec, chosen_heads(model.config, []), batch_size=7)(model, promoters)
    assert set(scores) == {"0.0", "0.1"}
    regions = {head: high_regions(np.mean(letters, axis=0), 6) for head, letters in scores.items()}
    best = [max(r, key=lambda ab: ab[1] - ab[0]) for r in regions.values() if r]
    assert any(abs(a - 20) <= 2 and abs(b - 26) <= 2 for a, b in best), regions


@pytest.mark.parametrize(
    ("scheme", "shift", "attended"),
    [((3, True), 0, [20, 21, 22, 23]), ((6, True), 0, [20]), ((6, False), 2, [20])],
)
def test_attention_is_reported_in_bases(tiny_model, monkeypatch, scheme, shift, attended):
    """Hand-made attention on the tokens inside bases 20 to 25 (from 0) of sequences of several lengths."""
    codec = KmerCodec("dna", *scheme)
    rng = np.random.default_rng(0)
    sequences = ["N" * shift + "".join(rng.choice(list("ACGT"), n)) for n in (40, 30, 47, 26)]

    def received(model, inputs, queries):
        shown = np.zeros((2, len(inputs["input_ids"]), 2, inputs["input_ids"].shape[1]), np.float32)
        for row, ids in enumerate(inputs["input_ids"].numpy()):
            (text,) = (s for s in sequences if np.array_equal(codec.tokens(codec.codes(s)).ids, ids_of(ids)))
            starts = codec.tokens(codec.codes(text)).starts
            shown[1, row, 0, 1 + np.flatnonzero(np.isin(starts, attended))] = 1
        return shown

    def ids_of(row):
        return row[1 : np.flatnonzero(row == codec.special("eos"))[0]]

    monkeypatch.setattr(pipeline.attention.capture, "received_attention", received)
    model = tiny_model()
    scores = Reader(codec, chosen_heads(model.config, []), batch_size=3)(model, sequences)
    for sequence, letters in zip(sequences, scores["1.0"], strict=True):
        assert len(letters) == len(sequence)
        assert np.flatnonzero(letters > 1e-9).tolist() == [20, 21, 22, 23, 24, 25]
    assert not np.concatenate(scores["1.1"] + scores["0.0"]).any()


# -- mistakes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": ["1.0"]}, r"^heads: '1.0' is no head of .*: it has 0.0 to 0.1$"),
        ({"heads": ["0"]}, r"^heads: '0' is no head of "),
        ({"test_on": ["tests"]}, r"^test_on: 'tests' is none of train, validation, test$"),
        ({"test_on": ["train", "test"]}, r"^test_on: 'train' is in discover_on, too; name different splits"),
        (
            {"positive": "enhancer"},
            r"^positive: 'enhancer' is no class of .*; its classes: background, promoter",
        ),
        ({"expected": ["minus10"]}, r"^expected: 'minus10' is in no database; give one$"),
        ({"checkpoint": "lm"}, r"lm holds no trained classifier; run strandlm finetune on it$"),
        ({"checkpoint": "corpus"}, r"corpus: no config.json, so no checkpoint; pass finetune's folder$"),
        ({"data": "tokens"}, r"tokens was written by tokenize, not by prepare; pass a corpus$"),
        ({"data": "nowhere"}, r"nowhere: no such file or folder$"),
    ],
)
def test_mistakes_are_told_in_a_line(find, rule_folder, tmp_path, changes, message):
    for key in {"checkpoint", "data"} & set(changes):
        changes = {key: rule_folder / changes[key]}
    with pytest.raises(UserError, match=message) as error:
        find(**changes)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "motifs").exists()


def test_what_is_expected_must_be_in_the_database(find, database):
    with pytest.raises(UserError, match=rf"^expected: 'minus35' is not in {database}$"):
        find(database=[database], expected=["minus10", "minus35"])


def test_a_classifier_of_proteins_is_refused(find, classifier_folder, tokenizer_folder, tmp_path):
    shutil.copytree(classifier_folder, tmp_path / "classifier")
    shutil.copy(tokenizer_folder("protein") / "tokenizer_config.json", tmp_path / "classifier")
    with pytest.raises(UserError, match=r"classifier reads protein; motifs are sought in DNA$"):
        find(checkpoint=tmp_path / "classifier")


def test_both_kinds_of_sequences_are_needed(find, rule_folder, tmp_path):
    rows = pd.read_csv(rule_folder / "rule.tsv", sep="\t", keep_default_na=False)
    rows = rows[(rows["class"] == "promoter") | (rows["split"] == "train")]
    rows[rows["split"] != "validation"].to_csv(tmp_path / "rows.tsv", sep="\t", index=False)
    settings = {"label_column": "class", "split_column": "split"}
    corpus = PrepareConfig(output=tmp_path / "corpus", input=[tmp_path / "rows.tsv"], **settings)
    folder = pipeline.prepare.run(corpus).folder
    with pytest.raises(UserError, match=r"^data: .*corpus: test_on has 60 promoter, 0 others; both are "):
        find(data=folder)
    with pytest.raises(UserError, match=r"^test_on: .*corpus has no validation; it has train, test; name "):
        find(data=folder, test_on=["validation"])


def test_a_record_that_does_not_fit_is_named(find, rule_folder, tmp_path):
    rows = pd.read_csv(rule_folder / "rule.tsv", sep="\t", keep_default_na=False)
    rows.loc[3, "sequence"] += "ACG"
    rows.to_csv(tmp_path / "rows.tsv", sep="\t", index=False)
    corpus = PrepareConfig(output=tmp_path / "corpus", input=[tmp_path / "rows.tsv"], label_column="class")
    with pytest.raises(UserError, match=r"^record 's3': 43 letters are 41 tokens, more than the model's 40"):
        find(data=pipeline.prepare.run(corpus).folder, max_sequences=1000)
