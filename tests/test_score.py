"""Scores without labels, each against the definition, computed one sequence at a time by the saved model."""

import json
import math
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

import pipeline.score
from pipeline.config import ScoreConfig
from pipeline.errors import UserError
from pipeline.model import StrandForMaskedLM, StrandForSequenceClassification
from pipeline.sequences.alphabets import reverse_complement
from pipeline.tokens.kmers import codec_of
from pipeline.tokens.vocabulary import load_tokenizer, save_tokenizer
from pipeline.training.correlation import spearman

CONTEXT = 12  # letters, for single letters
CLASSES = {0: "background", 1: "promoter"}
GENOME = "".join(np.random.default_rng(5).choice(list("ACGT"), 60))
GENOME = GENOME[:40] + "NN" + GENOME[42:]
PROTEIN = "MKVLAAGIRSTWWYCDEFHNPQ"


@pytest.fixture
def checkpoint(tokenizer_folder, tiny_model, tmp_path):
    """Write a tiny model with random weights and return its folder."""

    def build(name="dna-1mer", kind=StrandForMaskedLM, room=CONTEXT, **changes):
        codec = codec_of(tokenizer_folder(name))
        facts = {"alphabet": codec.alphabet, "k": codec.k, "overlapping": codec.overlapping}
        sizes = {"vocab_size": len(codec.vocabulary), "pad_token_id": codec.special("pad")}
        model = tiny_model(kind, max_position_embeddings=room + 2, **facts, **sizes, **changes)
        folder = tmp_path / f"{name}-{kind.__name__}"
        model.save_pretrained(folder)
        save_tokenizer(load_tokenizer(tokenizer_folder(name)), folder)
        return folder

    return build


@pytest.fixture
def score(tmp_path):
    """Run the stage; return its table, with empty cells as they are, and the result."""

    def run(name="scores", **settings):
        result = pipeline.score.run(ScoreConfig(output=tmp_path / name, **settings))
        table = pd.read_csv(result.folder / "scores.tsv", sep="\t", dtype=str, keep_default_na=False)
        return table, result

    return run


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


class Slow:
    """The model of a checkpoint with one token for each letter, asked one place at a time."""

    def __init__(self, folder):
        self.tokenizer = load_tokenizer(folder)
        self.model = AutoModelForMaskedLM.from_pretrained(folder).eval()
        self.letters = "ACDEFGHIKLMNPQRSTVWY" if "protein" in folder.name else "ACGT"

    def logs(self, text, places):
        """Return {place: {letter: log-probability}} with all these places hidden."""
        ids = self.tokenizer(text, return_tensors="pt")["input_ids"]
        for place in places:
            ids[0, place + 1] = self.tokenizer.mask_token_id
        with torch.no_grad():
            logits = self.model(input_ids=ids).logits[0].double()
        own = self.tokenizer.convert_tokens_to_ids(list(self.letters))
        logs = logits[:, own].log_softmax(-1)
        return {place: dict(zip(self.letters, logs[place + 1].tolist(), strict=True)) for place in places}

    def likelihood(self, text):
        real = [place for place, letter in enumerate(text) if letter in self.letters]
        return sum(self.logs(text, [place])[place][text[place]] for place in real)

    def marginal(self, old, new):
        places = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        logs = self.logs(old, places)
        return sum(logs[place][new[place]] - logs[place][old[place]] for place in places)


def numbers(column):
    return [float(cell) if cell else None for cell in column]


# -- sequences


@pytest.mark.parametrize(("name", "text"), [("dna-1mer", "ACGTNACGGAT"), ("protein", PROTEIN[:11] + "X")])
def test_every_sequence_has_its_pseudo_log_likelihood(checkpoint, score, write, name, text):
    folder = checkpoint(name)
    slow, unknown = Slow(folder), "N" if name == "dna-1mer" else "X"
    records = {"b": text, "a": text[3:], "none": unknown * 3, "c": text[:1]}
    fasta = write("r.fa", "".join(f">{i}\n{s.lower() if i == 'b' else s}\n" for i, s in records.items()))
    table, result = score(checkpoint=folder, input=[fasta])
    assert list(table) == ["id", "pseudo_log_likelihood", "bits_per_letter", "scored", "not_scored", "note"]
    assert list(table["id"]) == list(records)
    for row, sequence in zip(table.to_dict("records"), records.values(), strict=True):
        real = len(sequence) - sequence.count(unknown)
        assert (int(row["scored"]), int(row["not_scored"])) == (real, len(sequence) - real)
        if real:
            nats = slow.likelihood(sequence)
            assert float(row["pseudo_log_likelihood"]) == pytest.approx(nats, rel=1e-5)
            assert float(row["bits_per_letter"]) == pytest.approx(-nats / real / math.log(2), rel=1e-5)
            assert not row["note"]
    assert table["note"][2] == "no letter in it that can be hidden"
    assert table["pseudo_log_likelihood"][2] == ""
    counts = result.manifest["counts"]
    assert (counts["rows"], counts["scored"], counts["failed"]) == (4, 3, 1)
    other, _ = score("small", checkpoint=folder, input=[fasta], batch_size=1)
    found, again = (numbers(each["pseudo_log_likelihood"]) for each in (table, other))
    assert found[:2] == pytest.approx(again[:2], rel=1e-5)


def test_a_bad_record_has_a_row_or_stops(checkpoint, score, write):
    folder = checkpoint()
    fasta = write("r.fa", ">a\nACGT\n>b\nAC!T\n>c\nacg\n>c\n")
    table, result = score(checkpoint=folder, input=[fasta], duplicate_ids="rename")
    assert list(table["id"]) == ["a", "b", "c", "c_2"]
    assert [bool(cell) for cell in table["pseudo_log_likelihood"]] == [True, False, True, False]
    assert list(table["note"][[1, 3]]) == ["letter '!' at position 3 is not a DNA letter", "no sequence"]
    counts = result.manifest["counts"]
    assert (counts["lower_case_folded"], counts["renamed_ids"], counts["failed"]) == (3, 1, 2)
    assert table["not_scored"][1] == "4"
    with pytest.raises(UserError, match=r"r.fa: record 'b', line 3: letter '!' at position 3 .*; correct it"):
        score("strict", checkpoint=folder, input=[fasta], on_bad_record="error")


def test_a_protein_that_is_nothing_but_a_stop_has_a_row_or_stops(checkpoint, score, write):
    folder, fasta = checkpoint("protein"), write("r.fa", ">a\nMKV\n>b\n*\n>c\nMKL*\n")
    table, _ = score(checkpoint=folder, input=[fasta])
    assert [bool(cell) for cell in table["pseudo_log_likelihood"]] == [True, False, True]
    assert table["note"][1] == "no residues but a stop"
    with pytest.raises(UserError, match=r"r.fa: record 'b', line 3: no residues but a stop; correct it"):
        score("strict", checkpoint=folder, input=[fasta], on_bad_record="error")


def test_long_sequences_are_dealt_with_as_asked(checkpoint, score, write):
    folder = checkpoint()
    fasta = write("r.fa", f">a\nACGT\n>b\n{GENOME[:30]}\n")
    with pytest.raises(UserError, match="record 'b': 30 letters are 30 tokens, more than the model's 12"):
        score(checkpoint=folder, input=[fasta])
    skipped, _ = score("skip", checkpoint=folder, input=[fasta], long_sequences="skip")
    assert skipped["pseudo_log_likelihood"][1] == ""
    assert (skipped["not_scored"][1], skipped["note"][1]) == ("30", "skipped: only 12 of 30 letters fit")
    cut, _ = score("cut", checkpoint=folder, input=[fasta], long_sequences="truncate")
    slow = Slow(folder)
    assert float(cut["pseudo_log_likelihood"][1]) == pytest.approx(slow.likelihood(GENOME[:12]), rel=1e-5)
    assert (cut["scored"][1], cut["not_scored"][1]) == ("12", "18")
    windows, result = score("w", checkpoint=folder, input=[fasta], long_sequences="window", overlap=4)
    assert (windows["scored"][1], windows["not_scored"][1]) == ("30", "0")
    assert result.manifest["counts"]["windowed"] == 1


# -- variants


def allele(place, *news):
    """Return the columns of a VCF row that has other letters from a place (from 1) on."""
    return f"chr1\t{place}\t.\t{GENOME[place - 1]}\t{','.join(news)}\t.\t.\t."


def other(letter, step=1):
    return "ACGT"[("ACGT".index(letter) + step) % 4]


VCF = [
    allele(20, other(GENOME[19]), other(GENOME[19], 2)),  # two alleles
    allele(1, other(GENOME[0])),  # at the record's end
    allele(30, GENOME[29] + "GG"),  # insertion
    f"chr1\t24\tdel\t{GENOME[23:26]}\t{GENOME[23]}\t.\t.\t.",
    f"chr1\t10\tmnv\t{GENOME[9:12]}\t{other(GENOME[9])}{GENOME[10]}{other(GENOME[11])}\t.\t.\t.",
    allele(25, other(GENOME[24])).replace(f"\t{GENOME[24]}\t", f"\t{other(GENOME[24], 3)}\t"),  # mismatch
    "chr1\t41\t.\tN\tA\t.\t.\t.",
    allele(21, "*", "<DEL>"),
    f"1\t20\t.\t{GENOME[19]}\tA\t.\t.\t.",
]
HEAD = "##fileformat=VCFv4.5\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"


@pytest.fixture
def called(write):
    """A genome and its variants."""
    return {
        "genome": write("g.fa", f">chr1\n{GENOME}\n"),
        "variants": write("v.vcf", HEAD + "\n".join(VCF) + "\n"),
    }


def by_hand(place, reference, new):
    """Return both alleles in windows of 12, the place (from 0) in the middle."""
    before = min((CONTEXT - reference) // 2, place)
    start = place - before
    changed = GENOME[:place] + new + GENOME[place + reference :]
    return GENOME[start : start + CONTEXT], changed[start : start + CONTEXT]


SUBSTITUTED = {
    0: by_hand(19, 1, other(GENOME[19])),
    1: by_hand(19, 1, other(GENOME[19], 2)),
    2: by_hand(0, 1, other(GENOME[0])),
    5: by_hand(9, 3, other(GENOME[9]) + GENOME[10] + other(GENOME[11])),
}
CUT = {3: by_hand(30, 0, "GG"), 4: by_hand(24, 2, "")}


@pytest.mark.parametrize("strandless", [False, True])
def test_every_allele_has_its_change_of_likelihood(checkpoint, score, called, strandless):
    folder = checkpoint()
    slow = Slow(folder)
    table, result = score(checkpoint=folder, strandless=strandless, **called)
    assert len(table) == 11
    assert list(table["line"][:3]) == ["3", "3", "4"]
    for rows, method in ((SUBSTITUTED, "masked"), (CUT, "window")):
        for row, pair in rows.items():
            strands = [pair, tuple(map(reverse_complement, pair))][: 1 + strandless]
            if method == "masked":
                expected = np.mean([slow.marginal(*each) for each in strands])
            else:
                expected = np.mean([slow.likelihood(new) - slow.likelihood(old) for old, new in strands])
            assert table["method"][row] == method
            assert float(table["log_likelihood_change"][row]) == pytest.approx(expected, abs=1e-4), row
            assert not table["note"][row]
    assert all(table["log_likelihood_change"][6:] == "")
    told = [
        "the reference allele is",
        "the reference allele 'N' holds",
        "the allele '*'",
        "'<DEL>' is symbolic",
    ]
    told.append("no record '1'; write 'chr1' for '1'")
    assert all(part in note for part, note in zip(told, table["note"][6:], strict=True))
    assert result.manifest["counts"]["methods"] == {"masked": 4, "window": 2}
    assert result.manifest["counts"]["failed"] == 5


def test_windows_may_be_compared_as_a_whole(checkpoint, score, called):
    folder = checkpoint()
    slow = Slow(folder)
    table, _ = score(checkpoint=folder, method="window", window=CONTEXT, **called)
    for row, (old, new) in (SUBSTITUTED | CUT).items():
        expected = slow.likelihood(new) - slow.likelihood(old)
        assert float(table["log_likelihood_change"][row]) == pytest.approx(expected, abs=1e-4)
        assert table["method"][row] == "window"


@pytest.mark.parametrize("name", ["dna-3mer-overlap", "dna-6mer", "codons", "dna-bpe"])
def test_other_tokenizers_score_the_same_rows(checkpoint, score, called, name, tmp_path):
    table, _ = score(checkpoint=checkpoint(name, num_hidden_layers=1), **called)
    assert [bool(cell) for cell in table["log_likelihood_change"]] == [True] * 6 + [False] * 5
    expected = {"masked", "window"} if name != "dna-bpe" else {"window"}
    assert set(table["method"][:6]) == expected
    table, _ = score("both", checkpoint=tmp_path / f"{name}-StrandForMaskedLM", strandless=True, **called)
    assert [bool(cell) for cell in table["log_likelihood_change"]] == [True] * 6 + [False] * 5


def test_a_bad_variant_can_stop_the_run(checkpoint, score, called):
    with pytest.raises(
        UserError, match=r"v.vcf: line 8: the reference allele is .*; correct it, or pass"
    ) as error:
        score(checkpoint=checkpoint(), on_bad_record="error", **called)
    assert "\n" not in str(error.value)


def test_a_file_without_a_variant_that_can_be_scored_is_an_error(checkpoint, score, called, write):
    called["variants"] = write("w.vcf", HEAD + VCF[5] + "\n")
    with pytest.raises(UserError, match=r"none of 1 rows can be scored; the first: the reference allele is"):
        score(checkpoint=checkpoint(), **called)


# -- classifiers


WINDOW = 10


@pytest.fixture
def promoters(checkpoint):
    """A classifier of windows of 10 bases, and log-odds of its second class by hand."""
    labels = {"id2label": CLASSES, "label2id": {name: i for i, name in CLASSES.items()}}
    folder = checkpoint(kind=StrandForSequenceClassification, room=WINDOW, seed=3, **labels)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = load_tokenizer(folder)

    def log_odds(text):
        with torch.no_grad():
            logits = model(**tokenizer(text, return_tensors="pt")).logits[0].double()
        return float(logits[1] - logits[0])

    return folder, log_odds


def placed(place, reference, new, strand):
    """Return {offset: both alleles in windows of 10}, all that there can be, by sliding over the record."""
    old_text, new_text = GENOME, GENOME[:place] + new + GENOME[place + reference :]
    first = place
    if strand == "-":
        old_text, new_text = reverse_complement(old_text), reverse_complement(new_text)
        first = len(GENOME) - place - reference
    longer = max(reference, len(new))
    found = {}
    for offset in range(WINDOW - longer + 1):
        start = first - offset
        pair = old_text[start : start + WINDOW], new_text[start : start + WINDOW]
        if start >= 0 and len(pair[0]) == len(pair[1]) == WINDOW:
            found[offset] = pair
    return found


CHANGES = {0: (19, 1, other(GENOME[19])), 3: (30, 0, "GG"), 4: (24, 2, ""), 2: (0, 1, other(GENOME[0]))}


@pytest.mark.parametrize("strand", ["+", "-", "best"])
@pytest.mark.parametrize("offset", [None, 4])
def test_the_classifiers_score_changes(checkpoint, score, called, promoters, strand, offset):
    classifier, log_odds = promoters
    settings = {"classifier": classifier, "classifier_window": WINDOW, "offset": offset, "strand": strand}
    table, _ = score(checkpoint=checkpoint(), **called, **settings)
    chosen = []
    for row, change in CHANGES.items():
        scored = {}
        for side in "+-" if strand == "best" else strand:
            pairs = placed(*change, side)
            kept = {o: pair for o, pair in pairs.items() if offset in (None, o)}
            scored |= {(side, o): tuple(map(log_odds, pair)) for o, pair in kept.items()}
        if not scored:
            assert table["classifier_change"][row] == ""
            assert "no window of 10 bases with both alleles" in table["note"][row]
            assert table["log_likelihood_change"][row]
            continue
        best = max(scored, key=lambda key: max(scored[key]))[0]
        deltas = {o: new - old for (side, o), (old, new) in scored.items() if side == best}
        most = max(deltas, key=lambda o: abs(deltas[o]))
        old, new = scored[best, most]
        found = table.iloc[row]
        assert (found["classifier_strand"], int(found["classifier_offset"])) == (best, most)
        assert float(found["classifier_change"]) == pytest.approx(deltas[most], abs=1e-4)
        assert float(found["classifier_mean_change"]) == pytest.approx(
            np.mean(list(deltas.values())), abs=1e-4
        )
        assert float(found["classifier_reference"]) == pytest.approx(1 / (1 + math.exp(-old)), abs=1e-5)
        assert float(found["classifier_alternative"]) == pytest.approx(1 / (1 + math.exp(-new)), abs=1e-5)
        chosen.append(best)
    assert len(chosen) == (4 if offset is None else 3)  # the first base has none on its left
    assert all(table["classifier_change"][6:] == "")


def test_strandless_classifiers_are_averaged_over_both_strands(checkpoint, score, called, promoters):
    classifier, log_odds = promoters
    settings = {"classifier": classifier, "classifier_window": WINDOW, "offset": 4, "strandless": True}
    table, _ = score(checkpoint=checkpoint(), **called, **settings)
    old, new = placed(*CHANGES[0], "+")[4]
    means = [np.mean([log_odds(text), log_odds(reverse_complement(text))]) for text in (old, new)]
    assert float(table["classifier_change"][0]) == pytest.approx(means[1] - means[0], abs=1e-4)
    assert table["classifier_strand"][0] == "both"
    path = classifier / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"decision": {"strandless": False}}))
    with pytest.raises(UserError, match=r"^strandless: .* learnt labels of one strand .*; leave it out$"):
        score("again", checkpoint=checkpoint(), **called, **settings)


def test_another_class_may_be_scored(checkpoint, score, called, promoters):
    settings = {"classifier": promoters[0], "classifier_window": WINDOW, "offset": 4, "strand": "+"}
    folder = checkpoint()
    tables = [score(n, checkpoint=folder, positive=n, **called, **settings)[0] for n in CLASSES.values()]
    first, second = (numbers(table["classifier_change"][:2]) for table in tables)
    assert first == pytest.approx([-x for x in second], abs=1e-5)


def test_the_class_that_fine_tuning_named_positive_is_scored(checkpoint, score, called, promoters, tmp_path):
    settings = {"classifier_window": WINDOW, "offset": 4, "strand": "+", "checkpoint": checkpoint()} | called
    shutil.copytree(promoters[0], tmp_path / "named")
    path = tmp_path / "named" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"decision": {"positive": CLASSES[0]}}))
    named = score("named-scores", classifier=tmp_path / "named", **settings)[0]
    asked = score("asked", classifier=promoters[0], positive=CLASSES[0], **settings)[0]
    other = score("other", classifier=promoters[0], **settings)[0]
    assert list(named["classifier_change"]) == list(asked["classifier_change"])
    assert list(named["classifier_change"]) != list(other["classifier_change"])


def test_a_trained_classifier_sees_its_box_broken_on_either_strand(
    rule_folder, classifier_folder, score, write
):
    """TATAAT 20 bases into a window is a promoter; other bases do not matter."""
    rng = np.random.default_rng(1)
    letters = "".join(rng.choice(list("ACGT"), 400))
    letters = letters[:120] + "TATAAT" + letters[126:300] + reverse_complement("TATAAT") + letters[306:]
    in_box = [*range(120, 126), *range(300, 306)]
    places = [*in_box, *range(105, 115), *range(312, 322)]
    rows = [f"c\t{p + 1}\t.\t{letters[p]}\t{other(letters[p])}\t.\t.\t." for p in places]
    table, _ = score(
        checkpoint=rule_folder / "lm",
        genome=write("g.fa", f">c\n{letters}\n"),
        variants=write("v.vcf", HEAD + "\n".join(rows) + "\n"),
        classifier=classifier_folder,
        classifier_window=40,
        window=40,
    )
    strands = table["classifier_strand"]
    assert set(strands[:6]) == {"+"}
    assert set(strands[6:12]) == {"-"}
    change = table["classifier_change"].astype(float)
    assert change[:12].max() < 0
    assert table["classifier_reference"][:12].astype(float).min() > 0.5


# -- substitutions


def test_substitutions_have_masked_marginals_and_their_correlation(checkpoint, score, write):
    folder = checkpoint("protein")
    slow = Slow(folder)
    cells = [f"{old}{i}{new}" for i, old in enumerate(PROTEIN[:9], 1) for new in "ACW" if new != old]
    cells += ["M1A:L4P", "A5A"]
    rng = np.random.default_rng(0)
    measured = rng.normal(size=len(cells)).round(1)
    rows = [f"{cell},{m}" for cell, m in zip(cells, measured, strict=True)] + ["A24G,1", "M1V,NA", "K2A,high"]
    settings = {
        "substitutions": write("dms.csv", "mutant,effect\n" + "\n".join(rows) + "\n"),
        "wild_type": write("p.fa", f">p\n{PROTEIN[:12]}\n"),
        "measured_column": "effect",
    }
    table, result = score(checkpoint=folder, **settings)
    assert list(table["substitutions"]) == [row.split(",")[0] for row in rows]
    found = np.array(numbers(table["masked_marginal"]), float)
    for row, cell in enumerate([*cells, "", "M1V", "K2A"]):
        if cell:
            new = list(PROTEIN[:12])
            for part in cell.split(":"):
                new[int(part[1:-1]) - 1] = part[-1]
            assert found[row] == pytest.approx(slow.marginal(PROTEIN[:12], "".join(new)), abs=1e-4), cell
    bad = len(cells)
    assert table["masked_marginal"][bad] == ""
    assert list(table["note"][bad:]) == [
        "'A24G': the protein has residues 1 to 12",
        "",
        "effect 'high' is no number",
    ]
    metric = result.metrics()["spearman"]
    assert metric["n"] == len(cells)
    assert metric["value"] == pytest.approx(spearmanr(found[:bad], measured).statistic)
    assert metric["low"] < metric["value"] < metric["high"]
    spread = (metric["high"] - metric["low"]) / 2 / 1.96
    assert spread == pytest.approx(1 / math.sqrt(len(cells)), rel=0.3)


def test_long_proteins_and_several_of_them(checkpoint, score, write):
    folder = checkpoint("protein")
    slow = Slow(folder)
    rows = ["a\tY14A\t1", "b\tK1M\t2", "a\tM1A:H19A\t3", "c\tM1A\t4", "a\tM1A\t2", "a\tQ22A\t4"]
    settings = {
        "substitutions": write("s.tsv", "gene\tmutant\teffect\n" + "\n".join(rows) + "\n"),
        "wild_type": write("p.fa", f">a\n{PROTEIN}\n>b\nKLM\n"),
        "protein_column": "gene",
        "measured_column": "effect",
    }
    table, result = score(checkpoint=folder, **settings)
    found = numbers(table["masked_marginal"])
    shown = PROTEIN[7:19]  # 12 residues, the 14th in the middle
    assert found[0] == pytest.approx(slow.marginal(shown, shown.replace("Y", "A")), abs=1e-4)
    assert found[1] == pytest.approx(slow.marginal("KLM", "MLM"), abs=1e-4)
    assert found[2:4] == [None, None]
    assert table["note"][2] == "the places are farther apart than the model's 12 residues"
    assert table["note"][3] == "wild_type has no record 'c'"
    assert list(result.metrics()) == ["spearman:a"]
    assert result.metrics()["spearman:a"]["n"] == 3


def test_ties_have_their_mean_rank():
    score = np.array([1.0, 2, 2, 3, 5, 5])
    measured = np.array([2.0, 1, 4, 4, 4, 9])
    found = spearman(score, measured, 0)
    assert found["value"] == pytest.approx(spearmanr(score, measured).statistic)
    assert found == spearman(score, measured, 0)
    assert found != spearman(score, measured, 1)


# -- mistakes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "score: nothing given; give one of --input, --variants and --substitutions"),
        ({"input": ["r.fa"], "variants": "v.vcf"}, "score: input and variants given"),
        ({"variants": "v.vcf"}, r"genome: no file given; variants need one \(--genome\)"),
        ({"substitutions": "s.csv"}, r"wild_type: no file given; substitutions need one \(--wild-type\)"),
        ({"input": ["r.fa"], "classifier": "c"}, "classifier: it is for variants, not for input"),
        (
            {"variants": "v.vcf", "genome": "g.fa", "window": 13},
            "window: 13: the model's context is 12 bases",
        ),
        ({"variants": "r.fa", "genome": "g.fa"}, "variants: .*r.fa: not a VCF file by its name"),
        (
            {"substitutions": "s.csv", "wild_type": "r.fa"},
            "checkpoint: .* reads dna, substitutions need protein",
        ),
    ],
)
def test_mistakes_are_one_line(checkpoint, score, write, called, settings, message):
    write("r.fa", ">a\nACG\n>b\nAC\n")
    write("s.csv", "mutant\nA1G\n")
    paths = {
        k: [called["genome"].with_name(p) for p in v] if isinstance(v, list) else v
        for k, v in settings.items()
    }
    paths = {k: called["genome"].with_name(v) if isinstance(v, str) else v for k, v in paths.items()}
    if "classifier" in paths:
        paths["classifier"].mkdir()
    with pytest.raises(UserError, match=message) as error:
        score(checkpoint=checkpoint(), **paths)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classifier_window": None}, "classifier_window: give the bases of the windows"),
        (
            {"positive": "enhancer"},
            "positive: 'enhancer' is no class of .*; its classes: background, promoter",
        ),
        ({"offset": 10}, "offset: 10: not in a window of 10 bases"),
        (
            {"classifier_window": 11},
            "classifier_window: 11 bases are 11 tokens, more than the classifier's 10",
        ),
    ],
)
def test_mistakes_about_classifiers_are_one_line(checkpoint, score, called, promoters, changes, message):
    settings = {"classifier": promoters[0], "classifier_window": WINDOW} | changes
    with pytest.raises(UserError, match=message):
        score(checkpoint=checkpoint(), **called, **settings)


def test_the_window_is_the_one_that_the_classifier_records(checkpoint, score, called, promoters):
    given, _ = score(checkpoint=checkpoint(), **called, classifier=promoters[0], classifier_window=WINDOW)
    path = promoters[0] / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"decision": {"window": WINDOW, "offset": 4}}))
    recorded, _ = score(checkpoint=checkpoint(), **called, classifier=promoters[0])
    assert recorded.equals(given)
    assert recorded["classifier_offset"].nunique() > 2, "the start site is not where alleles are placed"
    with pytest.raises(UserError, match="offset: 10: not in a window of 10 bases"):
        score(checkpoint=checkpoint(), **called, classifier=promoters[0], offset=10)


def test_a_classifier_of_proteins_scores_no_variants(checkpoint, score, called):
    folder = checkpoint("protein", kind=StrandForSequenceClassification, room=WINDOW)
    with pytest.raises(UserError, match=r"^classifier: .* reads protein, variants need dna"):
        score(checkpoint=checkpoint(), **called, classifier=folder, classifier_window=WINDOW)


def test_substitutions_of_another_protein_are_not_scored_on_the_only_one(checkpoint, score, write):
    settings = {
        "substitutions": write("s.tsv", "gene\tmutant\na\tK1M\nb\tK1M\n"),
        "wild_type": write("p.fa", ">a\nKLM\n"),
        "protein_column": "gene",
    }
    table, _ = score(checkpoint=checkpoint("protein"), **settings)
    assert [bool(cell) for cell in table["masked_marginal"]] == [True, False]
    assert table["note"][1] == "wild_type has no record 'b'"


def test_several_proteins_need_a_column(checkpoint, score, write):
    settings = {
        "substitutions": write("s.csv", "mutant\nA1G\n"),
        "wild_type": write("p.fa", ">a\nAC\n>b\nAL\n"),
    }
    with pytest.raises(UserError, match=r"p.fa has 2 records; pass --protein-column"):
        score(checkpoint=checkpoint("protein"), **settings)


def test_the_same_again_is_not_done_again(checkpoint, score, called):
    folder = checkpoint()
    first = score(checkpoint=folder, **called)[1]
    assert not first.up_to_date
    assert score(checkpoint=folder, **called)[1].up_to_date
    assert json.loads((first.folder / "manifest.json").read_text())["stage"] == "score"
