"""The regression fitted on small made-up structures, stored, and used."""

import csv

import numpy as np
import pytest
import torch
from Bio.SeqUtils import seq3
from sklearn.linear_model import LogisticRegression
from transformers import AutoModelForMaskedLM

import pipeline.contact_head
import pipeline.contacts
from pipeline.artifacts import read_manifest
from pipeline.attention.contacts import average_product_correction, symmetrise
from pipeline.config import ContactHeadConfig, ContactsConfig
from pipeline.errors import UserError
from pipeline.model import StrandConfig, StrandForMaskedLM
from pipeline.tokens.vocabulary import RESIDUES, find_tokenizer, load_tokenizer, save_tokenizer

NAMES = ["1AAA_A", "1BBB_A", "1CCC_A", "1DDD_A"]
N = 40


def chain(seed, letter="A"):
    """A sequence and a compact walk of its C-alphas, and both as PDB lines."""
    rng = np.random.default_rng(seed)
    sequence = "".join(rng.choice(list(RESIDUES), N))
    points = np.cumsum(rng.normal(size=(N, 3)) * 2.2, 0) * 0.6
    atoms = [
        f"ATOM  {k:>5}  CA  {seq3(a).upper()} {letter}{k:>4}    {x:8.3f}{y:8.3f}{z:8.3f}{1:6.2f}{0:6.2f}\n"
        for k, (a, (x, y, z)) in enumerate(zip(sequence, points, strict=True), 1)
    ]
    return sequence, np.round(points, 3), "".join(atoms)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer_folder):
    folder = tmp_path_factory.mktemp("contact-head")
    structures = folder / "structures"
    structures.mkdir()
    for seed, name in enumerate(NAMES):
        text = chain(seed)[2] + (chain(99, "B")[2] if seed == 2 else "")
        (structures / f"{name}.pdb").write_text(text)
    (structures / "index.json").write_text("{}")
    torch.manual_seed(0)
    ids = {"framing_token_ids": None, "pad_token_id": 1, "mask_token_id": 32}
    config = StrandConfig(
        alphabet="protein", hidden_size=32, intermediate_size=32, num_hidden_layers=2, **ids
    )
    model = StrandForMaskedLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder / "lm")
    save_tokenizer(load_tokenizer(find_tokenizer("protein")), folder / "lm")
    save_tokenizer(load_tokenizer(tokenizer_folder("dna-1mer")), folder / "dna")
    StrandForMaskedLM(StrandConfig(vocab_size=11, hidden_size=32, num_hidden_layers=1)).save_pretrained(
        folder / "dna"
    )
    (folder / "query.fa").write_text(f">query\n{chain(1)[0]}\n")
    return folder


def config(folder, output, **settings):
    given = {"checkpoint": folder / "lm", "structures": folder / "structures", "strength": 3.0} | settings
    return ContactHeadConfig(output=output, **given)


@pytest.fixture(scope="module")
def fitted(folder):
    return pipeline.contact_head.run(config(folder, folder / "fitted"))


def slow_features(model, tokenizer, sequence):
    with torch.no_grad():
        maps = model(**tokenizer(sequence, return_tensors="pt"), output_attentions=True).attentions
    heads = torch.cat(maps, 1)[0, :, 1:-1, 1:-1].double().numpy()
    return np.stack([average_product_correction(symmetrise(head)) for head in heads], -1)


def test_what_is_stored_is_the_regression_of_the_definition(folder, fitted):
    """Attention of all heads by eager attention, pairs and contacts counted out, and scikit-learn."""
    lm = AutoModelForMaskedLM.from_pretrained(folder / "lm", attn_implementation="eager")
    tokenizer, seen, right = load_tokenizer(folder / "lm"), [], []
    for seed in range(len(NAMES)):
        sequence, points, _ = chain(seed)
        features = slow_features(lm, tokenizer, sequence)
        for i in range(N):
            for j in range(i + 6, N):
                seen.append(features[i, j])
                right.append(np.linalg.norm(points[i] - points[j]) < 8)
    model = LogisticRegression(l1_ratio=1, C=3.0, solver="liblinear", max_iter=1000).fit(seen, right)
    stored, report = AutoModelForMaskedLM.from_pretrained(fitted.folder, output_loading_info=True)
    assert not any(report.values()), report
    regression = stored.contact_head.regression
    np.testing.assert_allclose(regression.weight.numpy(), model.coef_, atol=0.05 * np.abs(model.coef_).max())
    assert np.abs(model.coef_).max() > 0
    sequence = chain(2)[0]
    told = stored.predict_contacts(**load_tokenizer(fitted.folder)(sequence, return_tensors="pt"))[0].numpy()
    expected = model.predict_proba(slow_features(lm, tokenizer, sequence).reshape(N * N, -1))[:, 1]
    np.testing.assert_allclose(told.ravel(), expected, atol=0.01)
    for name, value in lm.state_dict().items():
        assert torch.equal(stored.state_dict()[name], value), name
    counts = fitted.manifest["counts"]
    assert counts["pairs_fitted_on"] == len(right)
    assert counts["contacts_fitted_on"] == sum(right)
    assert counts["other_files"] == 1
    assert counts["heads"] == 8


def test_every_route_and_range_is_reported_for_every_protein(fitted):
    metric = fitted.metrics()["contact_precision_at_l"]
    with (fitted.folder / "precision.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    routes = ("regression", "untrained", "separation", "label_free")
    assert len(rows) == len(NAMES) * len(routes) * 4
    for route in routes:
        values = [float(r["at_l"]) for r in rows if r["route"] == route and r["range"] == "all"]
        named = metric["value" if route == "regression" else route]
        assert named == pytest.approx(np.mean(values), abs=1e-5)
        assert metric["ranges"][route]["long"]["proteins"] == len(NAMES)
    assert metric["interval"][0] <= metric["value"] <= metric["interval"][1]
    assert metric["proteins"] == metric["families"] == len(NAMES)
    assert 0 < metric["random"] < metric["ceiling"] <= 1
    assert (fitted.folder / "fitted_on.fa").read_text().count(">") == len(NAMES)
    assert (fitted.folder / "README.md").is_file()


def test_the_stage_contacts_uses_it_and_says_so(folder, fitted, tmp_path, capsys):
    given = {"data": folder / "query.fa", "structure": folder / "structures" / "1BBB_A.pdb"}
    result = pipeline.contacts.run(ContactsConfig(output=tmp_path / "a", checkpoint=fitted.folder, **given))
    assert "probability by the regression" in result.manifest["counts"]["score"]
    assert result.manifest["counts"]["fitted_on_relatives"] == ["1BBB_A"]
    assert "fitted on relatives of the query" in capsys.readouterr().err
    stored = AutoModelForMaskedLM.from_pretrained(fitted.folder)
    expected = stored.predict_contacts(**load_tokenizer(fitted.folder)(chain(1)[0], return_tensors="pt"))[0]
    scores = np.load(result.folder / "map.npz")["scores"]
    np.testing.assert_allclose(scores, expected.numpy(), atol=1e-6)
    assert "REMARK" not in (result.folder / "contacts.rr").read_text()
    plain = pipeline.contacts.run(ContactsConfig(output=tmp_path / "b", checkpoint=folder / "lm", **given))
    metrics = result.metrics()["contact_precision_at_l"]
    assert metrics["label_free"] == plain.metrics()["contact_precision_at_l"]["value"]
    assert "fitted_on_relatives" not in plain.manifest["counts"]


def test_families_and_fewer_structures(folder, tmp_path):
    table = tmp_path / "families.tsv"
    table.write_text(
        "structure\tfamily\n" + "".join(f"{name}\t{'xxyz'[k]}\n" for k, name in enumerate(NAMES))
    )
    result = pipeline.contact_head.run(config(folder, tmp_path / "out", families=table, fit_on=2, seed=3))
    assert result.metrics()["contact_precision_at_l"]["families"] == 3
    chosen = read_manifest(result.folder)["counts"]["proteins_fitted_on"]
    assert len(chosen) == 2
    assert set(chosen) < set(NAMES)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"structures": ["lm"]}, "no PDB or mmCIF file in it"),
        ({"structures": ["structures", "structures/1AAA_A.pdb"]}, "two files are called 1AAA_A"),
        ({"structures": ["structures/1AAA_A.pdb"]}, "all are of one family"),
        ({"structures": ["one.pdb", "structures/1AAA_A.pdb"]}, "holds the chains A, B; choose one"),
        ({"fit_on": 5}, "fit_on=5: only 4 structures; add others"),
        ({"families": "few.tsv"}, "few.tsv: no family of structure 1BBB_A; add a row"),
        ({"families": "query.fa"}, "the columns structure and family are needed"),
        ({"checkpoint": "dna"}, "a model of dna"),
        ({"min_separation": 60}, "1AAA_A: no residue pair with .* >= 60"),
        ({"distance": 0.01}, "structures: 0 of 1785 residue pairs are contacts"),
    ],
)
def test_mistakes_are_told_in_one_line(folder, tmp_path, settings, message):
    (folder / "one.pdb").write_text((folder / "structures" / "1CCC_A.pdb").read_text())
    (folder / "few.tsv").write_text("structure\tfamily\n1AAA_A\tx\n")
    for key in ("checkpoint", "families"):
        settings = settings | ({key: folder / settings[key]} if key in settings else {})
    if "structures" in settings:
        settings = settings | {"structures": [folder / name for name in settings["structures"]]}
    with pytest.raises(UserError, match=message) as caught:
        pipeline.contact_head.run(config(folder, tmp_path / "out", **settings))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
