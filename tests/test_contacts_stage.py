import csv
import gzip
import json
import shutil

import numpy as np
import pytest
import torch
from Bio.SeqUtils import seq3
from datasets import Dataset, DatasetDict
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM

from pipeline.attention.contacts import average_product_correction, in_context, mutual_information
from pipeline.config import ContactsConfig
from pipeline.contacts import run
from pipeline.errors import UserError
from pipeline.model import FactoredConfig, FactoredForMaskedLM, StrandConfig, StrandForMaskedLM
from pipeline.tokens.vocabulary import RESIDUES, find_tokenizer, load_tokenizer, save_tokenizer

SEQUENCE = "MKTAYIAKQRQISFVKSHFSRQLE"
ROW = SEQUENCE[:6] + "--" + SEQUENCE[6:]
C, n = len(ROW), len(SEQUENCE)
UNRESOLVED = (15, 16)


def helix():
    k = np.arange(1, n + 1)
    return np.stack([8 * np.cos(k / 2), 8 * np.sin(k / 2), k / 3], 1)


def save(model, folder):
    model.save_pretrained(folder)
    save_tokenizer(load_tokenizer(find_tokenizer("protein")), folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contacts")
    rng = np.random.default_rng(0)
    rows = ["".join(rng.choice(list(RESIDUES), C)) for _ in range(9)]
    rows.insert(4, ROW)
    (folder / "family.fa").write_text("".join(f">row{k}\n{row}\n" for k, row in enumerate(rows)))
    (folder / "single.fa").write_text(f">alone\n{SEQUENCE}\n>other\nMKV\n")
    atoms = [
        f"ATOM  {k:>5}  CA  {seq3(a).upper()} A{k + 99:>4}    {x:8.3f}{y:8.3f}{z:8.3f}{1:6.2f}{0:6.2f}\n"
        for k, (a, (x, y, z)) in enumerate(zip(SEQUENCE, helix(), strict=True), 1)
        if k not in UNRESOLVED
    ]
    names = [seq3(a).upper() for a in SEQUENCE]
    lines = (f"SEQRES {k + 1:>3} A {n:>4}  {' '.join(names[13 * k : 13 * k + 13])}\n" for k in range(2))
    (folder / "x.pdb.gz").write_bytes(gzip.compress("".join([*lines, *atoms]).encode()))
    (folder / "no_seqres.pdb").write_text("".join(atoms))
    (folder / "pairs.tsv").write_text("i\tj\n1\t14\n3\t12\n")
    torch.manual_seed(0)
    tokens = load_tokenizer(find_tokenizer("protein")).convert_tokens_to_ids(list(RESIDUES))
    shape = {"num_attention_heads": 2, "hidden_size": 8, "residue_token_ids": tokens}
    save(FactoredForMaskedLM(FactoredConfig(num_columns=C, **shape)), folder / "factored")
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "pad_token_id": 1}
    save(StrandForMaskedLM(StrandConfig(alphabet="protein", **shape)), folder / "strand")
    save(StrandForMaskedLM(StrandConfig(hidden_size=32, num_hidden_layers=1)), folder / "dna")
    return folder


def config(folder, output, checkpoint="factored", data="family.fa", **settings):
    return ContactsConfig(output=output, checkpoint=folder / checkpoint, data=folder / data, **settings)


def read_table(path):
    with (path / "contacts.tsv").open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


def baseline_precision(folder, columns, truth):
    rows = [line for line in (folder / "family.fa").read_text().split() if line[0] != ">"]
    letters = [*sorted(RESIDUES), "-"]
    information = mutual_information(np.array([[letters.index(a) for a in row] for row in rows]))
    scores = in_context(average_product_correction(information))[np.ix_(columns, columns)]
    pairs = sorted(
        (pair for pair, contact in truth.items() if contact), key=lambda p: (-round(scores[p], 9), p)
    )
    return np.mean([int(truth[pair]) for pair in pairs[: n - 2]])


@pytest.mark.parametrize("structure", ["x.pdb.gz", "no_seqres.pdb"])
def test_factored_map_in_residues_of_the_row_like_the_structure(folder, tmp_path, structure):
    result = run(config(folder, tmp_path / "out", structure=folder / structure))
    assert result.manifest["counts"]["query"] == "row4"
    rows = read_table(result.folder)
    assert len(rows) == (n - 6) * (n - 5) // 2
    scores = AutoModelForMaskedLM.from_pretrained(folder / "factored").predict_contacts().numpy()
    columns = [c for c, letter in enumerate(ROW) if letter != "-"]
    points = helix()
    best, truth = [], {}
    for row in rows:
        i, j = int(row["i"]) - 1, int(row["j"]) - 1
        truth[i, j] = row["contact"]
        assert float(row["score"]) == pytest.approx(scores[columns[i], columns[j]], rel=1e-4)
        unresolved = {i + 1, j + 1} & set(UNRESOLVED)
        touch = str(int(np.linalg.norm(points[i] - points[j]) < 8))
        assert row["contact"] == ("" if unresolved else touch)
        best += [] if unresolved else [int(touch)]
    assert [float(r["score"]) for r in rows] == sorted((float(r["score"]) for r in rows), reverse=True)
    metrics = result.metrics()["contact_precision_at_l"]
    assert metrics["length"] == n - 2
    assert metrics["value"] == pytest.approx(np.mean(best[: n - 2]))
    assert metrics["at_l5"] == pytest.approx(np.mean(best[:4]))
    assert metrics["random"] == pytest.approx(np.mean(best))
    assert metrics["contacts"] == sum(best) > 0
    assert 0 <= metrics["untrained"] <= 1
    assert metrics["baseline"] == pytest.approx(baseline_precision(folder, columns, truth))
    assert 0 <= metrics["mean_field"] <= 1
    assert (result.folder / "map.png").stat().st_size > 10_000


def test_strand_map_of_one_sequence_is_its_corrected_attention(folder, tmp_path):
    run(config(folder, tmp_path / "out", "strand", "single.fa", contacts=folder / "pairs.tsv"))
    tokenizer = load_tokenizer(folder / "strand")
    model = StrandForMaskedLM.from_pretrained(folder / "strand", attn_implementation="eager").eval()
    with torch.no_grad():
        layers = model(**tokenizer(SEQUENCE, return_tensors="pt"), output_attentions=True).attentions
    maps = []
    for layer in layers:
        for head in layer[0, :, 1:-1, 1:-1].double().numpy():
            maps.append(average_product_correction(head + head.T))
    expected = np.mean(maps, 0)
    for row in read_table(tmp_path / "out"):
        i, j = int(row["i"]) - 1, int(row["j"]) - 1
        assert float(row["score"]) == pytest.approx(expected[i, j], rel=1e-4, abs=5e-8)
        assert row["contact"] == str(int((i, j) in {(0, 13), (2, 11)}))
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())["contact_precision_at_l"]
    assert metrics["contacts"] == 2
    assert metrics["baseline"] is None


def test_strand_map_of_an_alignment_without_truth(folder, tmp_path):
    result = run(config(folder, tmp_path / "out", "strand", query="row4", max_sequences=3))
    rows = read_table(result.folder)
    assert len(rows) == (n - 6) * (n - 5) // 2
    assert {row["contact"] for row in rows} == {""}
    assert set(result.metrics()["contact_precision_at_l"].values()) == {None, 6}


@pytest.mark.parametrize("data", ["single.fa", "family.fa"])
def test_a_jacobian_is_a_mean_over_rows_in_the_columns_of_the_query(folder, tmp_path, data):
    """Logits of every mutant, one by one; a pair of columns has the rows with residues in both."""
    name = "alone" if data == "single.fa" else "row4"
    result = run(
        config(folder, tmp_path / "out", "strand", data, query=name, jacobian=True, max_sequences=10)
    )
    rows = [SEQUENCE] if data == "single.fa" else [
        line for line in (folder / "family.fa").read_text().split() if line[0] != ">"
    ]  # fmt: skip
    columns = [c for c, letter in enumerate(SEQUENCE if data == "single.fa" else ROW) if letter != "-"]
    tokenizer, letters = load_tokenizer(folder / "strand"), sorted(RESIDUES)
    ids = tokenizer.convert_tokens_to_ids(letters)
    model = StrandForMaskedLM.from_pretrained(folder / "strand").eval()

    @torch.no_grad()
    def read(texts):
        return model(**tokenizer(texts, return_tensors="pt")).logits[:, 1:-1, ids].numpy()

    total, seen = np.zeros((n, n, 20, 20)), np.zeros((n, n))
    for row in rows:
        text = row.replace("-", "")
        place = {
            i: columns.index(c) for i, c in enumerate(np.flatnonzero([a != "-" for a in row])) if c in columns
        }
        here = list(place.values())
        seen[np.ix_(here, here)] += 1
        for i, p in place.items():
            change = read([text[:i] + a + text[i + 1 :] for a in letters]) - read([text])
            total[p, here] += change[:, list(place)].transpose(1, 0, 2)
    J = total / np.maximum(seen, 1)[..., None, None]
    J = (J + J.transpose(1, 0, 3, 2)) / 2
    J = J - J.mean(2, keepdims=True)
    norms = np.sqrt(np.square(J - J.mean(3, keepdims=True)).sum((2, 3)))
    np.fill_diagonal(norms, 0)
    expected = norms - norms.sum(0) * norms.sum(1)[:, None] / norms.sum()
    for row in read_table(result.folder):
        assert float(row["score"]) == pytest.approx(expected[int(row["i"]) - 1, int(row["j"]) - 1], abs=2e-5)
    assert "Jacobian" in result.manifest["counts"]["score"]


def test_a_corpus_reads_as_its_fasta(folder, tmp_path):
    records = [text.split("\n") for text in (folder / "family.fa").read_text().strip(">\n").split("\n>")]
    columns = {"id": [r[0] for r in records], "start": [0] * 10, "sequence": [r[1] for r in records]}
    whole = Dataset.from_dict(columns)
    splits = {"train": whole.select(range(7)), "validation": whole.select(range(7, 10))}
    DatasetDict(splits).save_to_disk(tmp_path / "corpus")
    structure = folder / "x.pdb.gz"
    run(config(folder, tmp_path / "a", data=tmp_path / "corpus", structure=structure))
    run(config(folder, tmp_path / "b", structure=structure))
    for name in ("contacts.tsv", "metrics.json"):
        assert (tmp_path / "a" / name).read_text() == (tmp_path / "b" / name).read_text()


def test_a_protein_beyond_the_context_is_refused_before_memory_is_taken(folder, tmp_path):
    (tmp_path / "long.fa").write_text(">titin\n" + "A" * 300_000 + "\n")
    told = r"long\.fa: record 'titin': 300000 residues, but the model reads \d+; give a shorter one"
    with pytest.raises(UserError, match=told):
        run(config(folder, tmp_path / "out", "strand", tmp_path / "long.fa"))


def test_dna_is_told(folder, tmp_path, capsys):
    (tmp_path / "dna.fa").write_text(">gene\n" + "ACGTTGCA" * 4 + "\n")
    run(config(folder, tmp_path / "out", "strand", tmp_path / "dna.fa"))
    assert "dna.fa: 'gene' looks like DNA (nothing but A C G T U N)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"query": "row99"}, "no record 'row99'"),
        ({"jacobian": True}, "jacobian: is for the strand architecture; factored attention has couplings"),
        ({"data": "single.fa"}, f"record 'alone' has {n} columns.*alignment of {C}"),
        ({"query": "row0", "structure": "x.pdb.gz"}, "does not match chain A"),
        ({"structure": "x.pdb.gz", "chain": "B"}, "no chain 'B'"),
        ({"structure": "x.pdb.gz", "contacts": "pairs.tsv"}, "both given"),
        ({"structure": "x.pdb.gz", "min_separation": 30}, "lower --min-separation"),
        ({"contacts": "family.fa"}, "line 1: columns >row0, but i and j are needed"),
        (
            {"query": "row4", "contacts": "letters.tsv"},
            "letters.tsv: line 2: residue 2 is M, but K in the query",
        ),
        ({"contacts": "bad.tsv"}, "bad.tsv: line 3: residue '0', but the query has residues 1 to"),
        ({"checkpoint": "dna"}, "a model of dna"),
        ({"checkpoint": "family.fa"}, "no config.json"),
    ],
)
def test_mistakes_are_told_in_one_line(folder, tmp_path, settings, message):
    (folder / "bad.tsv").write_text("i\tj\n1\t2\n0\t3\n")
    (folder / "letters.tsv").write_text("i\tj\taa_i\taa_j\n1\t2\tM\tM\n")
    files = {key: folder / settings[key] for key in ("structure", "contacts") if key in settings}
    with pytest.raises(UserError, match=message) as caught:
        run(config(folder, tmp_path / "out", **(settings | files)))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_weights_that_are_no_numbers_draw_no_map(folder, tmp_path):
    shutil.copytree(folder / "strand", tmp_path / "damaged")
    weights = load_file(tmp_path / "damaged" / "model.safetensors")
    weights["model.layers.0.mlp.up.weight"][0, 0] = float("nan")
    save_file(weights, tmp_path / "damaged" / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"layers.0.mlp.up.weight: 1 of \d+ weights are NaN"):
        run(config(folder, tmp_path / "out", tmp_path / "damaged", "single.fa"))
    assert not (tmp_path / "out").exists()


def test_every_file_speaks_in_its_own_numbers(folder, tmp_path):
    """Numbers below zero, insertion codes, unresolved residues and the row's gaps shift nothing."""
    text = gzip.decompress((folder / "x.pdb.gz").read_bytes()).decode()
    lines = [
        f"{line[:22]}  -3 {line[27:]}" if line[22:27] == " 100 " else line for line in text.splitlines(True)
    ]
    lines = [f"{line[:22]} 109B{line[27:]}" if line[22:27] == " 110 " else line for line in lines]
    path = tmp_path / "named.pdb"
    path.write_text("".join(lines))
    result = run(config(folder, tmp_path / "out", structure=path))
    number = {k: str(k + 99) for k in range(1, n + 1)} | {1: "-3", 11: "109B"} | dict.fromkeys(UNRESOLVED, "")
    rows = read_table(result.folder)
    for row in rows:
        for side in "ij":
            k = int(row[side])
            assert row[f"aa_{side}"] == SEQUENCE[k - 1]
            assert row[f"structure_{side}"] == (f"A:{number[k]}" if number[k] else "")
    arrays = np.load(result.folder / "map.npz")
    assert arrays["sequence"].tolist() == list(SEQUENCE)
    assert arrays["numbers"].tolist() == [number[k] for k in range(1, n + 1)]
    assert arrays["known"].sum() == (n - 2) ** 2
    for row in rows[:20]:
        i, j = int(row["i"]) - 1, int(row["j"]) - 1
        assert arrays["scores"][i, j] == pytest.approx(float(row["score"]), rel=1e-4)
    best = [row for row in rows if row["structure_i"] and row["structure_j"]][: n - 2]
    pairs = [(row["structure_i"], row["structure_j"], row["contact"]) for row in best]
    bonds = [
        line.split() for line in (result.folder / "contacts.pb").read_text().splitlines() if line[0] != ";"
    ]
    assert bonds == [
        [f"/{a}@CA", f"/{b}@CA", "dodgerblue" if touch == "1" else "orangered"] for a, b, touch in pairs
    ]
    assert any("-3@" in a or "109B@" in a + b for a, b, _ in bonds)
    script = (result.folder / "contacts.pml").read_text().splitlines()
    drawn = [line for line in script if line.startswith("distance")]
    for line, (a, b, touch) in zip(drawn, pairs, strict=True):
        one, other = (x.removeprefix("A:").replace("-3", "\\-3") for x in (a, b))
        kind = "right" if touch == "1" else "wrong"
        atoms = ", ".join(f"(chain A and resi {x} and name CA)" for x in (one, other))
        assert line == f"distance {kind}, {atoms}"


def test_rr_is_casps_format(folder, tmp_path):
    result = run(config(folder, tmp_path / "out", "strand", "single.fa"))
    lines = (result.folder / "contacts.rr").read_text().splitlines()
    assert lines[:2] == ["PFRMAT RR", "TARGET alone"]
    assert any(line.startswith("REMARK") and "not a probability" in line for line in lines)
    begin = lines.index("MODEL 1")
    assert lines[begin + 1] == SEQUENCE
    assert lines[-1] == "END"
    pairs = [line.split() for line in lines[begin + 2 : -1]]
    table = read_table(result.folder)
    assert [(i, j) for i, j, *_ in pairs] == [(row["i"], row["j"]) for row in table]
    assert {(low, high) for _, _, low, high, _ in pairs} == {("0", "8")}
    values = [float(value) for *_, value in pairs]
    assert values[0] == 1
    assert values[-1] == 0
    assert values == sorted(values, reverse=True)
    assert not (result.folder / "contacts.pb").exists()


def test_ranges_ceiling_and_areas_are_reported(folder, tmp_path, capsys):
    metrics = run(config(folder, tmp_path / "out", structure=folder / "x.pdb.gz")).metrics()
    metric = metrics["contact_precision_at_l"]
    assert set(metric["ranges"]) == {"value", "untrained", "baseline", "mean_field"}
    ranges = metric["ranges"]["value"]
    assert (
        ranges["all"]["pairs"]
        == metric["pairs"]
        == sum(ranges[k]["pairs"] for k in ("short", "medium", "long"))
    )
    assert ranges["all"]["at_l"] == metric["value"]
    assert metric["ceiling"] == pytest.approx(min(1, metric["contacts"] / (n - 2)))
    assert ranges["long"]["pairs"] == 0
    assert ranges["long"]["at_l"] is None
    told = capsys.readouterr().err
    assert f"chain A: {n} residues; 2 unresolved" in told
    assert (
        f"row4: {n} of {n} residues are in the chain, 0 as another letter; {n - 2} have coordinates" in told
    )
    assert "at most" in told
