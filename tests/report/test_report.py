import base64
import hashlib
import itertools
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from sklearn.metrics import average_precision_score, roc_auc_score

import pipeline.report
from pipeline.artifacts import write_json
from pipeline.cli import main
from pipeline.config import ReportConfig
from pipeline.errors import UserError
from pipeline.report import run
from pipeline.report.collect import finite
from pipeline.report.figures import STRIP, stamp
from pipeline.report.logos import draw_logo
from pipeline.report.markup import shown
from pipeline.report.texts import auroc_error, rule_out

EVIL = '<script>alert("x")</script>'
SPLITS = {
    "train": {"labels": {"background": 4800, "promoter": 4800}, "letters": 777600, "rows": 9600},
    "test": {"labels": {"background": 900, "promoter": 900}, "letters": 145800, "rows": 1800},
}
PREPARED = {
    "read": {"letters": 972081, "records": 12001},
    "kept": {"letters": 972000, "rows": 12000},
    "dropped": {"duplicate": 1},
    "changed": {},
    "splits": SPLITS,
}
BITS = {
    "value": 1.9412,
    "standard_error": 0.002,
    "untrained": 2.0003,
    "random": 1.9996,
    "baseline": 1.9388,
    "gap_closed": 0.96,
    "hidden_letters": 42300,
}
CONTACTS = {
    "value": 0.85,
    "untrained": 0.05,
    "baseline": 0.7667,
    "random": 0.0444,
    "at_l2": 0.967,
    "at_l5": 1.0,
    "length": 60,
    "separation": 6,
    "contacts": 66,
}
MOTIFS = {"value": 2, "untrained": 0, "of": 2, "found": ["minus35", "minus10"], "heads_read": 12}
GROUPS = ("plain", "minus10_only", "minus35_only", "wrong_order", "wrong_spacing")


def stage(run_folder: Path, name: str, kind: str, counts: dict, metrics: dict | None = None) -> Path:
    folder = run_folder / name
    folder.mkdir(parents=True)
    write_json(
        folder / "manifest.json",
        {
            "stage": kind,
            "key": "0" * 64,
            "config": {"seed": 3, "output": str(folder)},
            "counts": counts,
            "inputs": {},
            "versions": {"strandlm": "0.1.0", "torch": "2.13.0"},
            "content": (kind.encode().hex() * 8)[:64],
        },
    )
    if metrics is not None:
        write_json(folder / "metrics.json", metrics)
    return folder


def classifier(run_folder: Path, name: str = "promoters") -> dict:
    rng = np.random.default_rng(0)
    positive = np.repeat([True, False], 300)
    groups = np.where(positive, "promoter", np.array(GROUPS)[np.arange(600) % 5])
    reference = rng.normal(size=600) + 2.2 * positive - 0.5 * (groups == "minus10_only")
    scores = {"optimum": reference, "value": reference + rng.normal(size=600)}
    scores["untrained"] = reference + 2 * rng.normal(size=600)

    def areas(chosen: np.ndarray) -> dict:
        return {kind: float(roc_auc_score(positive[chosen], s[chosen])) for kind, s in scores.items()}

    metric = areas(np.ones(600, bool)) | {
        "n_positive": 300,
        "n_negative": 300,
        "positive": "promoter",
        "mcc": 0.6,
    }
    metric["auprc"] = float(average_precision_score(positive, scores["value"]))
    metric["by_group"] = {g: areas(positive | (groups == g)) | {"n": 60} for g in GROUPS}
    folder = stage(run_folder, name, "finetune", {"test": {"rows": 600}}, {"promoter_auroc": metric})
    lines = ["id\tlabel\tgroup\treference\tscore\tscore_untrained"]
    for n in range(600):
        label = "promoter" if positive[n] else "background"
        values = (f"{scores[kind][n]:.6g}" for kind in ("optimum", "value", "untrained"))
        lines.append("\t".join([f"{EVIL}{n}", label, groups[n], *values]))
    (folder / "scores.tsv").write_text("\n".join(lines) + "\n")
    return metric


def language_model(run_folder: Path, name: str = "dna-model") -> None:
    folder = stage(run_folder, name, "pretrain", {"parameters": 1114250}, {"bits_per_hidden_base": BITS})
    lines = [{"step": 0, "validation_bits_per_hidden_base": 2.0003}] * 2
    for step in range(10, 301, 10):
        loss = 1.94 + 0.06 * np.exp(-step / 90)
        lines.append(
            {"step": step, "loss": 4 * loss, "learning_rate": 1e-3, "tokens_per_second": 4000.0 + step}
        )
        if step % 50 == 0:
            lines.append({"step": step, "validation_bits_per_hidden_base": loss})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def motifs(run_folder: Path, name: str = "motifs") -> None:
    folder = stage(run_folder, name, "motifs", {"sequences": 4000}, {"motifs_recovered": MOTIFS})
    (folder / "logos").mkdir()
    found = []
    for number, word in enumerate(("TTGACA", "TATAAT"), 1):
        matrix = [[0.85 if letter == base else 0.05 for letter in "ACGT"] for base in word]
        draw_logo(np.array(matrix), folder / "logos" / f"motif-{number}.png", f"motif-{number} {word}")
        hit = {"target": EVIL, "p_value": 3.1e-9, "offset": 0, "strand": "+"} if number == 1 else None
        motif = {
            "name": f"motif-{number}",
            "consensus": word,
            "seed_word": word,
            "n_sites": 812,
            "matrix": matrix,
        }
        found.append(motif | {"p_value": 1.2e-30, "q_value": 4e-26, "heads": ["1.0", "2.3"], "best_hit": hit})
    write_json(folder / "motifs.json", found)


def contacts(run_folder: Path, name: str = "contacts") -> None:
    from matplotlib.figure import Figure

    counts = {"query": EVIL, "rows": 2000, "score": "coupling norms"}
    folder = stage(run_folder, name, "contacts", counts, {"contact_precision_at_l": CONTACTS})
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    for axes in figure.subplots(1, 2):
        axes.imshow(np.eye(60) + np.eye(60)[::-1], cmap="Blues")
    figure.savefig(folder / "map.png", dpi=100)


def whole_run(run_folder: Path) -> list[str]:
    world = stage(run_folder, "world", "simulate", {"genes": 540, "genome_bases": 600000})
    truth = {
        "simulated": True,
        "seed": 3,
        "entropy_bits_per_base": 1.7812,
        "boxes": {"minus10": [[0.25] * 4]},
    }
    write_json(world / "truth.json", truth | {"consensus": {"minus10": "TATAAT", "minus35": "TTGACA"}})
    stage(run_folder, "windows", "prepare", PREPARED)
    stage(run_folder, "tokens", "tokenize", {"train": {"letters": 540000, "records": 108}})
    language_model(run_folder)
    classifier(run_folder)
    motifs(run_folder)
    stage(run_folder, "family-model", "pretrain", {"parameters": 9000}, {})
    contacts(run_folder)
    stage(run_folder, "vectors", "embed", {"records": 12})
    names = ["world", "windows", "tokens", "dna-model", "promoters", "motifs", "family-model", "contacts"]
    return [*names, "vectors"]


def report(run_folder: Path, names: list[str], where: str = "report", **settings) -> Path:
    run(ReportConfig(output=run_folder / where, run=run_folder, stages=names, **settings))
    return run_folder / where


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    run_folder = tmp_path_factory.mktemp("run")
    return report(run_folder, whole_run(run_folder), title=f"A run & {EVIL}", simulated=True)


class Page(HTMLParser):
    """Collects tags, and fails where they do not nest."""

    VOID = {"meta", "link", "img"}

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def inside(self, tag: str) -> str:
        return " ".join(text for where, text in self.texts if where == tag)

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(folder: Path) -> tuple[Page, dict]:
    text = (folder / "report.json").read_text()
    return Page((folder / "report.html").read_text()), json.loads(text, parse_constant=pytest.fail)


def test_equal_runs_give_equal_bytes_wherever_and_however_fast(folder, tmp_path):
    names = whole_run(tmp_path)
    log = tmp_path / "dna-model" / "metrics.jsonl"
    log.write_text(log.read_text().replace('tokens_per_second": 4', 'tokens_per_second": 7'))
    again = report(tmp_path, names, title=f"A run & {EVIL}", simulated=True)
    for name in ("report.html", "report.json"):
        content = (again / name).read_bytes()
        assert content == (folder / name).read_bytes()
        assert str(tmp_path).encode() not in content


def test_json_has_every_metric_beside_its_controls_and_the_counts(folder):
    _, content = read(folder)
    assert content["bits_per_hidden_base"] == BITS
    assert content["motifs_recovered"] == MOTIFS
    assert content["contact_precision_at_l"] == CONTACTS
    assert {"value", "untrained", "optimum", "by_group"} <= set(content["promoter_auroc"])
    stages = {entry["name"]: entry for entry in content["stages"]}
    assert stages["windows"]["counts"] == PREPARED
    assert stages["dna-model"]["history"][0] == {"step": 0, "validation_bits_per_hidden_base": 2.0003}
    assert [line["step"] for line in stages["dna-model"]["history"]] == list(range(0, 301, 10))
    expected = content["promoter_auroc"]["auprc"]
    assert stages["promoters"]["average_precision"]["value"] == pytest.approx(expected, abs=1e-5)


def test_the_page_refers_to_nothing_outside_and_runs_only_its_own_script(folder):
    page, _ = read(folder)
    text = (folder / "report.html").read_text()
    for _, attributes in page.tags:
        for name in ("src", "href", "srcset", "data", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:"))
        assert not [name for name in attributes if name.startswith("on")]
    assert page.all("script") == [{}]
    own = Path(pipeline.report.__file__).with_name("page.js").read_text()
    assert f"<script>{own}</script>" in text
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    (policy,) = [tag["content"] for tag in page.all("meta") if "http-equiv" in tag]
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}';" in policy
    assert "url(" not in text
    assert "@import" not in text
    for link in page.all("a"):
        inside = link["href"][1:] in {attributes.get("id") for _, attributes in page.tags}
        assert inside or link["download"]


def test_names_are_escaped_and_still_shown(folder):
    page, _ = read(folder)
    assert EVIL not in (folder / "report.html").read_text()
    assert EVIL in page.inside("h1")
    assert EVIL in page.inside("td")


def test_simulated_is_said_everywhere(folder):
    page, _ = read(folder)
    assert "simulated data" in page.inside("title")
    assert "SIMULATED DATA" in page.inside("strong")
    captions = re.findall(r"<figcaption><strong>(.*?)</strong>", (folder / "report.html").read_text())
    assert len(captions) == len(page.all("img")) == 8
    assert all(caption.startswith("Simulated data: ") for caption in captions)
    pictures = [base64.b64decode(image["src"].split(",")[1]) for image in page.all("img")]
    assert (folder.parent / "motifs" / "logos" / "motif-1.png").read_bytes() not in pictures
    assert (folder.parent / "contacts" / "map.png").read_bytes() not in pictures


def test_a_run_with_a_simulate_stage_is_simulated_even_if_it_does_not_say_so(tmp_path):
    stage(tmp_path, "world", "simulate", {})
    page, content = read(report(tmp_path, ["world"]))
    assert content["simulated"] is True
    assert "simulated" in page.inside("title")


def test_real_data_is_not_called_simulated(tmp_path):
    language_model(tmp_path)
    motifs(tmp_path)
    folder = report(tmp_path, ["dna-model", "motifs"])
    assert "imulated" not in (folder / "report.html").read_text()
    logo = (tmp_path / "motifs" / "logos" / "motif-1.png").read_bytes()
    assert base64.b64encode(logo).decode() in (folder / "report.html").read_text()


def test_every_image_has_words_and_every_table_headers(folder):
    page, _ = read(folder)
    assert all(len(image["alt"]) > 10 for image in page.all("img"))
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(header["scope"] in ("row", "col") for header in page.all("th"))
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_headlines_show_each_value_and_its_controls_in_place(folder):
    text = (folder / "report.html").read_text()
    cards = re.findall(r'<article class="card">.*?</article>', text)
    assert len(cards) == 4
    of_contacts = next(card for card in cards if "Contact precision" in card)
    for number, place in (("0.850", "85.0%"), ("0.767", "76.7%"), ("0.044", "4.4%"), ("0.050", "5.0%")):
        assert f">{number}</td>" in of_contacts
        assert f"left:{place}" in of_contacts
    assert "of 2" in next(card for card in cards if "Motifs" in card)


def test_numbers_that_are_not_known_beforehand_are_shown_too(folder):
    page, content = read(folder)
    assert content["motifs_recovered"]["heads_read"] == 12
    assert "heads read" in page.inside("th")
    assert "gap closed" in page.inside("th")


def test_counts_are_a_list_and_splits_a_grid(folder):
    text = (folder / "report.html").read_text()
    assert '<tr><th scope="row">read: records</th><td>12,001</td></tr>' in text
    assert '<th scope="col" class="number">labels: promoter</th>' in text
    row = '<tr><th scope="row">train</th><td class="number">4,800</td><td class="number">4,800</td>'
    assert row + '<td class="number">777,600</td><td class="number">9,600</td></tr>' in text


def test_the_command_line_writes_it_and_help_is_light(tmp_path):
    language_model(tmp_path)
    config = tmp_path / "report.yaml"
    config.write_text(f"run: {tmp_path}\nstages: [dna-model]\noutput: {tmp_path / 'out'}\n")
    main(["--config", str(config)], stage="report")
    assert (tmp_path / "out" / "report.html").is_file()
    heavy = "import sys, pipeline.report; sys.exit(bool({'matplotlib', 'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", heavy], check=False).returncode == 0


def test_provenance_names_hash_seed_and_versions(folder):
    page, _ = read(folder)
    cells = page.inside("td")
    assert (b"motifs".hex() * 8)[:12] in cells
    assert (b"motifs".hex() * 8)[:13] not in cells
    assert "2.13.0" in cells


@pytest.mark.parametrize("part", [language_model, classifier, motifs, contacts])
def test_a_run_of_one_part_is_a_whole_report(tmp_path, part):
    part(tmp_path, "only")
    page, content = read(report(tmp_path, ["only"]))
    assert len(set(content) - {"title", "simulated", "stages"}) == 1
    assert len(page.all("section")) == 3  # results, the part, provenance


def test_a_protein_model_has_residues_and_no_result_is_made_up(tmp_path):
    metric = {"value": 4.1, "untrained": 4.33, "random": 4.19, "standard_error": 0.01}
    stage(tmp_path, "lm", "pretrain", {}, {"bits_per_hidden_residue": metric})
    unknown = dict.fromkeys(("value", "untrained", "baseline", "random"))
    stage(tmp_path, "contacts", "contacts", {}, {"contact_precision_at_l": unknown | {"separation": 6}})
    page, _ = read(report(tmp_path, ["lm", "contacts"]))
    assert "residue composition" in page.inside("th")
    text = (tmp_path / "report" / "report.html").read_text()
    assert len(re.findall('class="card"', text)) == 1


def test_the_same_metric_of_a_second_stage_keeps_both(tmp_path):
    first, second = classifier(tmp_path, "first"), classifier(tmp_path, "second")
    page, content = read(report(tmp_path, ["first", "second"]))
    assert content["promoter_auroc"] == first
    assert content["promoter_auroc:second"] == second
    assert "Promoter AUROC (second)" in page.inside("h3")
    assert len(page.all("img")) == 6


def test_numbers_that_are_not_finite_are_null(tmp_path):
    stage(
        tmp_path, "lm", "pretrain", {"ratio": float("inf")}, {"x": {"value": float("nan"), "n": 1}, "y": 0.5}
    )
    _, content = read(report(tmp_path, ["lm"]))
    assert content["x"] == {"value": None, "n": 1}
    assert content["y"] == {"value": 0.5}
    assert content["stages"][0]["counts"] == {"ratio": None}
    assert finite([1, [float("-inf")]]) == [1, [None]]


def test_scores_without_controls_groups_or_best_score(tmp_path):
    metric = classifier(tmp_path, "c")
    path = tmp_path / "c" / "scores.tsv"
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    path.write_text("".join("\t".join([row[0], row[1], row[4]]) + "\n" for row in rows))
    plain = {key: metric[key] for key in ("value", "n_positive", "n_negative")}
    write_json(tmp_path / "c" / "metrics.json", {"promoter_auroc": plain})
    page, content = read(report(tmp_path, ["c"]))
    assert set(content["stages"][0]["average_precision"]) == {"value"}
    assert len(page.all("img")) == 2


def test_a_classifier_stands_in_a_table_beside_its_controls(tmp_path):
    metric, folder = classifier(tmp_path, "c"), tmp_path / "c"
    measured = {"mcc": 0.6123, "auroc": 0.9, "auprc": 0.8, "accuracy": 0.75}
    measured |= {"intervals": {name: [0.51, 0.953] for name in measured}}
    ahead = {name: {"difference": 0.1, "interval": [-0.05, 0.25]} for name in ("mcc", "auroc")}
    bins = {"n": [300, 300], "confidence": [0.6, 0.9], "right": [0.5, 0.95]}
    calibration = {
        f"{name}{end}": value
        for end in ("", "_before")
        for name, value in (("expected_error", 0.05), ("reliability", bins))
    }
    other = {"n": 44, "auroc": 0.97, "mcc": None, "false_positive_rate": 0.125}
    other["intervals"] = {"auroc": [0.9, 0.99], "mcc": None, "false_positive_rate": [0.1, 0.2]}
    metric |= {"at_threshold": measured | {"threshold": 0.4, "sd": dict.fromkeys(measured, 0.0125)}}
    metric |= {"controls": {"untrained": measured | {"ours_minus_it": ahead}}, "calibration": calibration}
    metric |= {"other_negatives": {"shuffled": other | {"controls": {"untrained": other}}}}
    write_json(folder / "metrics.json", {"promoter_auroc": metric})
    path = folder / "scores.tsv"
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    names = ["score", "score_seed_0", "score_seed_1"]
    path.write_text(
        "".join(
            "\t".join([*row[:4], *(names if n == 0 else row[4:5] * 3), row[5]]) + "\n"
            for n, row in enumerate(rows)
        )
    )
    page, content = read(report(tmp_path, ["c"]))
    assert len(page.all("img")) == 5
    cells = page.inside("td")
    assert "0.612 \N{PLUS-MINUS SIGN} 0.013 (0.510 to 0.953)" in cells
    assert "0.100 (-0.050 to 0.250)" in cells
    assert "0.125 (0.100 to 0.200)" in cells
    assert "reliability" not in page.inside("th")
    assert "interval" not in page.inside("th")
    assert content["stages"][0]["average_precision"]["value"] == pytest.approx(metric["auprc"], abs=1e-5)


def test_mistakes_are_told_in_one_line(tmp_path):
    with pytest.raises(UserError, match="stages: none given"):
        report(tmp_path, [])
    with pytest.raises(UserError, match="no such folder"):
        report(tmp_path, ["absent"])
    classifier(tmp_path, "c")
    with pytest.raises(UserError, match="'c' is named twice"):
        report(tmp_path, ["c", "c"])
    path = tmp_path / "c" / "scores.tsv"
    path.write_text(path.read_text().replace("\tpromoter\t", "\tbackground\t"))
    with pytest.raises(UserError, match=r"scores.tsv: 0 of 600 rows have the label 'promoter'"):
        report(tmp_path, ["c"])
    path.write_text("id\tlabel\tscore\na\tpromoter\t0.3\nb\tbackground\t\n")
    with pytest.raises(UserError, match="not every row has a score"):
        report(tmp_path, ["c"])
    path.write_text("id\tlabel\tscore\na\tpromoter\t0.3\nb\tbackground\thigh\n")
    with pytest.raises(UserError, match="line 3: score 'high' is not a number"):
        report(tmp_path, ["c"])
    (tmp_path / "c" / "metrics.json").write_text("[")
    with pytest.raises(UserError, match=r"c/metrics.json: not JSON: .*; copy it once more, or run again"):
        report(tmp_path, ["c"])


def test_error_of_an_auroc_is_the_spread_of_many_samples():
    rng = np.random.default_rng(0)
    # Exponential scores, for which the formula is exact.
    pairs = ((rng.exponential(4.0, (80, 1)), rng.exponential(1.0, 120)) for _ in range(4000))
    areas = [(positive > negative).mean() for positive, negative in pairs]
    assert np.mean(areas) == pytest.approx(0.8, abs=0.003)
    assert auroc_error(0.8, 80, 120) == pytest.approx(np.std(areas), rel=0.04)


def test_controls_rule_out_only_what_the_numbers_do():
    found = {c["control"]: c for c in rule_out("bits_per_hidden_base", BITS)}
    assert found["untrained"]["difference"] == pytest.approx(2.0003 - 1.9412)
    assert found["untrained"]["standard_error"] == pytest.approx(2**0.5 * 0.002)
    assert {name: c["ruled_out"] for name, c in found.items()} == {
        "untrained": True,
        "random": True,
        "baseline": False,
    }
    near = rule_out(
        "promoter_auroc", {"value": 0.80, "untrained": 0.79, "n_positive": 100, "n_negative": 100}
    )
    far = rule_out("promoter_auroc", {"value": 0.99, "untrained": 0.79, "n_positive": 100, "n_negative": 100})
    assert [near[0]["ruled_out"], far[0]["ruled_out"]] == [False, True]
    assert not rule_out("motifs_recovered", {"value": 2, "untrained": 2, "of": 2})[0]["ruled_out"]
    group = {"by_group": {"minus10_only": {"value": 0.51, "n": 60}}, "value": 0.9, "n_positive": 60}
    assert not rule_out("promoter_auroc", group)[0]["ruled_out"]
    assert rule_out("contact_precision_at_l", {"value": None, "random": 0.1}) == []


def test_a_stamp_leaves_the_picture_as_it_was():
    from matplotlib.image import imsave

    pixels = np.random.default_rng(0).integers(0, 256, (200, 333, 3), dtype=np.uint8)
    buffer = BytesIO()
    imsave(buffer, pixels)
    stamped = imread(BytesIO(stamp(buffer.getvalue())))
    assert stamped.shape[:2] == (200 + STRIP, 333)
    assert np.abs(stamped[STRIP:, :, :3] * 255 - pixels).max() < 0.51
    assert stamped[:STRIP].min() < 0.6


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345, "12,345"),
        (0.12345, "0.123"),
        (3.14e-9, "3.1e-09"),
        (0.0, "0.000"),
        (True, "yes"),
        (None, "\N{EN DASH}"),
        ([], "none"),
        (["1.0", "2.3"], "1.0, 2.3"),
        ({"a_b": 1, "c": None}, "a b: 1; c: \N{EN DASH}"),
    ],
)
def test_values_are_short(value, text):
    assert shown(value) == text


@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page_at_the_width_of_a_phone_and_of_a_desk(folder, browser, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get((folder / "report.html").as_uri())
    assert browser.title == f"A run & {EVIL} (simulated data)"
    widths = browser.execute_script("return [...document.images].map(i => i.complete ? i.naturalWidth : 0)")
    assert len(widths) == 8
    assert min(widths) > 0
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.get_log("browser") == []
