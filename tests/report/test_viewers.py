"""The page in a browser, on small stages made by hand: what it shows is what stands in the files."""

import base64
import hashlib
import json
import re
import time
from pathlib import Path

import numpy as np
import pytest

from pipeline.artifacts import write_json
from pipeline.config import ReportConfig
from pipeline.errors import UserError
from pipeline.report import run
from pipeline.report.downloads import LARGEST
from pipeline.report.figures import STRIP, stamp_svg
from pipeline.report.texts import rule_out
from pipeline.report.viewers import MOST_RESIDUES

EVIL = '</script><script>document.title = "broken"</script>'
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SVG = b'<svg width="30pt" height="20pt" viewBox="0 0 30 20" xmlns="http://www.w3.org/2000/svg"><g/></svg>'
HEADS = ["0.0", "0.2", "0.10", "1.0", "1.2", "1.10"]
TIMES = ["1.5", "-0.25", "12.25", "1.25", "", "1e-05"]
SEQUENCES = ["ACGTACGTACGT", "TTGACATATAAT", "GGGTATAATCC"]
LETTERS = "MKVLATTREQHG"
NUMBERS = ["-1", "0", "1", "2", "2A", "2B", "3", "", "", "7", "8", "9"]
CONTROLS = ("untrained", "shuffled_positives", "permuted_labels", "random_regions", "no_attention")


def finished(run_folder: Path, kind: str, metrics: dict, name: str = "", **config) -> Path:
    folder = run_folder / (name or kind)
    folder.mkdir(parents=True)
    manifest = {
        "stage": kind,
        "key": "0" * 64,
        "config": {"seed": 3, **config},
        "counts": {},
        "inputs": {},
        "versions": {},
    }
    write_json(folder / "manifest.json", manifest | {"content": "a" * 64})
    write_json(folder / "metrics.json", metrics)
    return folder


def motif(name: str, consensus: str, supported: bool, also: list[str]) -> dict:
    compared = {"difference": 0.25, "p_value": 0.0005}
    effect = {"effect": 0.5, "sites": 40, "p_value": 0.01, "q_value": 0.02}
    return {
        "name": name,
        "consensus": consensus,
        "p_value": 1.2e-30,
        "q_value": 4e-26,
        "best_hit": {"target": EVIL, "p_value": 3.1e-9, "offset": 1, "strand": "-"},
        "sites_in_positives": "77 of 80",
        "sites_in_others": "9 of 80",
        "site_odds_ratio": 12.5,
        "site_p_value": 1e-9,
        "modal_start": -12,
        "gathers_at": [-14, -10],
        "gathering_p_value": 2e-7,
        "mutagenesis": effect | {"within": compared, "at_position": compared},
        "supported": supported,
        "also_found_in": also,
    }


def examples(rng) -> dict[str, np.ndarray]:
    attention = np.full((len(HEADS), 3, 12), np.nan, np.float32)
    effect = np.full((3, 12), np.nan, np.float32)
    for row, text in enumerate(SEQUENCES):
        attention[:, row, : len(text)] = rng.random((len(HEADS), len(text)))
        effect[row, : len(text)] = rng.normal(size=len(text))
    attention[2, 1, 4] = np.nan
    return {
        "ids": np.array(["a", EVIL, "c"]),
        "sequences": np.array(SEQUENCES),
        "heads": np.array(HEADS),
        "effect": effect,
        "attention": attention,
        "motifs": np.array(["motif-1", "motif-2"]),
        "sites": np.array([[1, 0, 6, 12, 1], [1, 1, 0, 7, -1], [2, 0, 3, 9, 1]]),
    }


def motifs(run_folder: Path) -> None:
    ran = {"runs": 1, "runs_with_motifs": 0, "motifs": 0, "best_q_value": 0.5}
    controls = {name: dict(ran) for name in CONTROLS}
    controls["no_attention"] |= {"runs_with_motifs": 1, "motifs": 1}
    controls["permuted_labels"] |= {"runs": 10, "runs_with_motifs": 2, "motifs": 3}
    folder = finished(
        run_folder, "motifs", {"motifs_found": {"value": 2, "untrained": 0, "controls": controls}}
    )
    said = {name: one | {"about": f"about {name}", "consensus": []} for name, one in controls.items()}
    said["no_attention"]["consensus"] = ["TTGACA"]
    write_json(folder / "controls.json", said)
    found = [motif("motif-1", "TATAAT", True, []), motif("motif-2", "TTGACAN", False, ["no_attention"])]
    write_json(folder / "motifs.json", found)
    counts = {"first": -5, "counts": [0, 3]}
    write_json(folder / "positions.json", {"from": "the start site", "motifs": {"motif-1": counts}})
    rows = [f"{h}\tmotif-1\t7\t0.1\t0.1\t{t}\t0.5\t0.75" for h, t in zip(HEADS, TIMES, strict=True)]
    columns = "head motif sites share expected specialisation in_regions auroc"
    (folder / "heads.tsv").write_text("\n".join(["\t".join(columns.split()), *rows]) + "\n")
    rows = [f"{head}\t{0.1 * n}\t0.6\t40\t0.01\t0.5" for n, head in enumerate(HEADS)]
    columns = "head spearman auroc sequences spearman_elsewhere auroc_elsewhere"
    (folder / "agreement.tsv").write_text("\n".join(["\t".join(columns.split()), *rows]) + "\n")
    columns = (
        "first second orientation sequences odds_ratio together_p spacing at_spacing expected p_value q_value"
    )
    pair = "motif-2 motif-1 ++ 30 2.5 0.01 17 21 1.5 1e-9 1e-8"
    (folder / "pairs.tsv").write_text("".join("\t".join(line.split()) + "\n" for line in (columns, pair)))
    np.savez_compressed(folder / "examples.npz", **examples(np.random.default_rng(0)))
    for place in ("logos", "figures"):
        (folder / place).mkdir()
    (folder / "logos" / "motif-1.png").write_bytes(PNG)
    (folder / "figures" / "positions-motif-1.svg").write_bytes(SVG)
    (folder / "motifs.meme").write_text("MEME version 4\n")
    (folder / "words.tsv").write_bytes(b"x" * (LARGEST + 1))


def contacts(run_folder: Path) -> None:
    ranges = {"pairs": 21, "contacts": 5, "at_l": 0.4, "at_l2": 0.5, "at_l5": 1.0, "auc": 0.9}
    ranges |= {"ceiling_at_l": 0.45, "random": 0.24}
    metric = {"value": 0.4, "untrained": 0.1, "separation": 3, "length": 10}
    metric |= {"ranges": {"value": {"all": ranges}, "untrained": {"all": ranges | {"at_l": 0.1}}}}
    folder = finished(run_folder, "contacts", {"contact_precision_at_l": metric}, min_separation=3)
    rng, n = np.random.default_rng(1), len(LETTERS)
    scores, contacts = rng.normal(size=(n, n)), rng.random((n, n)) < 0.4
    known = np.array([bool(number) for number in NUMBERS])
    np.savez_compressed(
        folder / "map.npz",
        scores=scores + scores.T,
        sequence=np.array(list(LETTERS)),
        contacts=contacts | contacts.T,
        known=np.outer(known, known),
        numbers=np.array(NUMBERS),
        chain=np.array("B"),
    )
    (folder / "contacts.rr").write_text("PFRMAT RR\n")


def report(run_folder: Path, names: list[str], **settings) -> Path:
    run(ReportConfig(output=run_folder / "report", run=run_folder, stages=names, **settings))
    return run_folder / "report" / "report.html"


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    run_folder = tmp_path_factory.mktemp("run")
    motifs(run_folder)
    contacts(run_folder)
    return report(run_folder, ["motifs", "contacts"], title="Motifs and contacts")


@pytest.fixture
def opened(page, browser):
    return show(page, browser, 1280)


def show(page: Path, browser, width: int):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri())
    return browser


def element(browser, selector: str):
    return browser.find_element("css selector", selector)


def send(browser, place, key: str) -> None:
    from selenium.webdriver.common.keys import Keys

    place.send_keys(getattr(Keys, key))


def point(browser, place, x: float, y: float) -> None:
    """Move the mouse to a place in an element, given as shares of its width and height."""
    from selenium.webdriver import ActionChains

    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", place)
    size = place.rect
    offset = round((x - 0.5) * size["width"]), round((y - 0.5) * size["height"])
    ActionChains(browser, duration=0).move_to_element_with_offset(place, *offset).perform()


def choose(browser, number: int, text: str) -> None:
    from selenium.webdriver.support.ui import Select

    Select(browser.find_elements("css selector", ".sequences select")[number]).select_by_visible_text(text)


def test_clicking_a_column_sorts_as_python_does(opened):
    table = '.sortable[class~="grid"]'
    (head,) = [h for h in opened.find_elements("css selector", f"{table} th") if "TATAAT: times" in h.text]
    button = head.find_element("css selector", "button")

    def order() -> list[str]:
        rows = opened.find_elements("css selector", f"{table} tbody th")
        return [row.text for row in rows if re.fullmatch(r"\d+\.\d+", row.text)]

    values = {h: float(t) for h, t in zip(HEADS, TIMES, strict=True) if t}
    missing = [head for head in HEADS if head not in values]
    assert order() == HEADS
    button.click()
    assert order() == sorted(values, key=lambda head: -values[head]) + missing
    assert head.get_attribute("aria-sort") == "descending"
    send(opened, button, "ENTER")
    assert order() == sorted(values, key=lambda head: values[head]) + missing
    assert head.get_attribute("aria-sort") == "ascending"
    first = element(opened, f"{table} th button")
    first.click()
    assert order() == sorted(HEADS, key=lambda name: tuple(map(int, name.split("."))))
    assert head.get_attribute("aria-sort") is None


def test_bars_and_words_of_a_chosen_sequence_are_those_of_the_file(opened, page):
    with np.load(page.parents[1] / "motifs" / "examples.npz") as file:
        attention, effect = file["attention"][2, 1], file["effect"][1]
    choose(opened, 0, EVIL)
    choose(opened, 1, "0.10")

    def heights(kind: str) -> np.ndarray:
        script = "return [...document.querySelectorAll(arguments[0])].map(b => [b.x.baseVal.value, "
        script += "b.y.baseVal.value, b.height.baseVal.value])"
        return np.array(opened.execute_script(script, f".bars .{kind}"))

    bars = heights("attention")
    seen = np.flatnonzero(np.isfinite(attention))
    assert (bars[:, 0] // 10).tolist() == seen.tolist() == [k for k in range(12) if k != 4]
    np.testing.assert_allclose(bars[:, 2] / 80, attention[seen] / attention[seen].max(), rtol=1e-5)
    np.testing.assert_allclose(bars[:, 1] + bars[:, 2], 80, rtol=1e-5)
    bars = heights("effect")
    np.testing.assert_allclose(bars[:, 2] / 80, np.abs(effect) / np.ptp(effect), rtol=1e-5)
    zero = (bars[:, 1] + np.where(effect > 0, bars[:, 2], 0)).round(3)
    assert len(set(zero.tolist())) == 1
    svg, words = element(opened, ".bars svg"), element(opened, ".sequences output")
    point(opened, svg, 8.5 / 12, 0.5)
    numbers = [float(text) for text in re.findall(r"(?:attention|effect) (-?[\d.e-]+)", words.text)]
    np.testing.assert_allclose(numbers, [attention[8], effect[8]], rtol=1e-3)
    assert words.text.startswith("T at 3 from the start site: ")
    assert words.text.endswith("; site of motif-1")
    send(opened, svg, "ARROW_LEFT")
    assert words.text.endswith("; site of motif-1")  # the other one ends before this base
    send(opened, svg, "ARROW_LEFT")
    assert words.text.endswith("; site of motif-1, motif-2")
    send(opened, svg, "HOME")
    for _ in range(4):
        send(opened, svg, "ARROW_RIGHT")
    assert "attention not known" in words.text
    names = [text.text for text in opened.find_elements("css selector", ".bars .name")]
    assert names == ["motif-1 \N{RIGHTWARDS ARROW}", "\N{LEFTWARDS ARROW} motif-2"]
    choose(opened, 0, "c")
    assert len(heights("effect")) == 11


@pytest.mark.parametrize(("i", "j"), [(0, 11), (3, 5), (10, 4), (2, 8), (6, 6)])
def test_the_map_says_what_stands_in_its_file_under_the_mouse(opened, page, i, j):
    with np.load(page.parents[1] / "contacts" / "map.npz") as file:
        score, touch, known = (file[name][i, j] for name in ("scores", "contacts", "known"))
    n = len(LETTERS)
    point(opened, element(opened, "canvas"), (j + 0.75) / n, (i + 0.75) / n)
    words = element(opened, ".map output").text
    one, other = sorted((i, j))
    names = [
        f"{LETTERS[k]} " + (f"B:{NUMBERS[k]}" if NUMBERS[k] else "(not in the structure)")
        for k in (one, other)
    ]
    if i == j:
        assert words == f"{names[0]}: the diagonal"
        return
    assert words.startswith(f"{' and '.join(names)} (residues {one + 1} and {other + 1} of the query): ")
    assert float(re.search(r"score (\S+),", words)[1]) == pytest.approx(score, rel=1e-3)
    truth = ("true contact" if touch else "no true contact") if known else "truth not known"
    assert words.endswith(f", {truth}")


def test_the_map_is_drawn_with_scores_above_and_the_truth_below(opened, page):
    with np.load(page.parents[1] / "contacts" / "map.npz") as file:
        scores, contacts, known = (file[name] for name in ("scores", "contacts", "known"))
    n = len(LETTERS)
    script = """const c = document.querySelector('canvas'), s = c.width / arguments[0], found = [];
        for (let i = 0; i < arguments[0]; i++) for (let j = 0; j < arguments[0]; j++)
            found.push(c.getContext('2d').getImageData((j + .5) * s, (i + .5) * s, 1, 1).data[0]);
        return found"""
    red = np.array(opened.execute_script(script, n)).reshape(n, n)
    free = np.ones((n, n), bool)
    free[0], free[:, n - 1] = False, False  # under the marked row and column
    i, j = np.nonzero(np.tril(free, -1))
    expected = np.where(known[i, j], np.where(contacts[i, j], 26, 255), 222)
    assert red[i, j].tolist() == expected.tolist()
    i, j = np.nonzero(np.triu(free, 1))
    far = scores[np.triu_indices(n, 3)]
    low, high = np.percentile(far, [5, 99.5])
    share = np.clip((scores[i, j] - low) / (high - low), 0, 1)
    assert np.abs(red[i, j] - (255 - 247 * share)).max() < 2


def test_the_keyboard_moves_over_the_map(opened):
    canvas, words = element(opened, "canvas"), element(opened, ".map output")
    assert words.text.startswith("M B:-1 and G B:9 (residues 1 and 12")
    for key in ("ARROW_DOWN", "ARROW_LEFT", "ARROW_LEFT", "ARROW_RIGHT"):
        send(opened, canvas, key)
    assert words.text.startswith("K B:0 and H B:8 (residues 2 and 11")


def test_no_request_leaves_the_page(page, browser):
    browser.get_log("performance")
    browser.get_log("browser")
    opened = show(page, browser, 1280)
    element(opened, ".sortable button").click()
    point(opened, element(opened, "canvas"), 0.5, 0.5)
    events = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith("data:")] == [page.as_uri()]
    assert opened.get_log("browser") == []  # a breach of the policy would be told here
    assert opened.title == "Motifs and contacts"


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_window(page, browser, width):
    opened = show(page, browser, width)
    assert opened.execute_script("return document.documentElement.scrollWidth") <= width
    frame = opened.execute_script("return document.querySelector('canvas').getBoundingClientRect().toJSON()")
    assert 200 < frame["width"] == pytest.approx(frame["height"], abs=1)


def test_a_map_of_a_thousand_residues_is_drawn_at_once(tmp_path, browser):
    n = 1000
    folder = finished(tmp_path, "contacts", {})
    near = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    np.savez(folder / "map.npz", scores=1.0 / (1 + near), sequence=np.array(["A"] * n))
    opened = show(report(tmp_path, ["contacts"]), browser, 360)
    took = "return performance.getEntriesByName('contact map')[0].duration"
    assert opened.execute_script(took) < 1000
    point(opened, element(opened, "canvas"), 0.9, 0.1)
    words = element(opened, ".map output").text
    one, other, score = re.fullmatch(r"A(\d+) and A(\d+): score (\S+)", words).groups()
    assert (int(one), int(other)) == (pytest.approx(100, abs=4), pytest.approx(900, abs=4))
    assert float(score) == pytest.approx(1 / (1 + int(other) - int(one)), rel=1e-3)


def links(page: Path) -> dict[str, bytes]:
    found = re.findall(r'<a download="([^"]+)" href="data:[^;]+;base64,([^"]*)"', page.read_text())
    return {name: base64.b64decode(data) for name, data in found}


def test_downloads_are_the_files(page):
    names = ["agreement.tsv", "examples.npz", "heads.tsv", "motifs.meme", "pairs.tsv"]
    names += ["logos/motif-1.png", "figures/positions-motif-1.svg"]
    expected = {f"motifs-{name.replace('/', '-')}": page.parents[1] / "motifs" / name for name in names}
    expected |= {
        f"contacts-{name}": page.parents[1] / "contacts" / name for name in ("contacts.rr", "map.npz")
    }
    found = links(page)
    assert found == {name: path.read_bytes() for name, path in expected.items()}
    assert "too large for this page; it is motifs/words.tsv in" in page.read_text()


def test_a_download_is_saved_under_its_name(opened, page, tmp_path):
    where = {"behavior": "allow", "downloadPath": str(tmp_path)}
    opened.execute_cdp_cmd("Browser.setDownloadBehavior", where)
    opened.execute_script("document.querySelectorAll('details').forEach(part => part.open = true)")
    element(opened, 'a[download="motifs-examples.npz"]').click()
    saved, end = tmp_path / "motifs-examples.npz", time.monotonic() + 10
    while not saved.exists() and time.monotonic() < end:
        time.sleep(0.05)
    content = (page.parents[1] / "motifs" / "examples.npz").read_bytes()
    assert hashlib.sha256(saved.read_bytes()).digest() == hashlib.sha256(content).digest()


def test_a_motif_stands_beside_what_speaks_for_it_and_against_it(page):
    text = page.read_text()
    first, second = re.findall(r'<article class="motif.*?</article>', text, re.DOTALL)
    assert first.startswith('<article class="motif"><h4>motif-1')
    assert '<span class="out">supported by mutagenesis</span>' in first
    assert second.startswith('<article class="motif unsupported">')
    assert '<span class="open">not supported by mutagenesis</span>' in second
    assert (first.count("found there too"), second.count("found there too")) == (0, 1)
    assert first.count('<span class="out">not found</span>') == len(CONTROLS)
    assert "-12 from the start site" in first
    assert base64.b64encode(PNG).decode() in first
    assert base64.b64encode(SVG).decode() in first
    said = "Attention added 1 of 2 motifs to plain enrichment in whole sequences: TATAAT."
    assert f"{said} Plain enrichment gives TTGACA. Mutagenesis does not support TTGACAN." in text
    assert EVIL not in text


def test_equal_runs_give_equal_bytes(page, tmp_path):
    motifs(tmp_path)
    contacts(tmp_path)
    again = report(tmp_path, ["motifs", "contacts"], title="Motifs and contacts")
    assert again.read_bytes() == page.read_bytes()
    assert str(tmp_path).encode() not in again.read_bytes()


def test_simulated_files_are_called_so(tmp_path):
    motifs(tmp_path)
    page = report(tmp_path, ["motifs"], simulated=True)
    assert all(name.startswith("simulated-motifs-") for name in links(page))
    assert base64.b64encode(SVG).decode() not in re.sub(r'href="data[^"]*"', "", page.read_text())


def test_a_stamped_drawing_is_higher_by_a_line(page):
    text = stamp_svg(SVG).decode()
    head = f'<svg width="30pt" height="{20 + STRIP}pt" viewBox="0 {-STRIP} 30 {20 + STRIP}" xmlns='
    assert text.startswith(head)
    assert text.endswith(">SIMULATED DATA</text><g/></svg>")


def test_more_numbers_than_a_page_should_hold_are_cut_and_counted(tmp_path):
    folder = finished(tmp_path, "motifs", {})
    write_json(folder / "motifs.json", [])
    n, size = 5, 30_000
    arrays = {"ids": np.arange(n).astype("U"), "sequences": np.array(["A" * size] * n)}
    attention = np.arange(2 * n * size, dtype=np.float32).reshape(2, n, size)
    arrays |= {"heads": np.array(["0.0", "0.1"]), "attention": attention, "effect": -attention[0]}
    arrays |= {"motifs": np.array(["m"]), "sites": np.array([[1, 0, 1, 2, 1], [2, 0, 1, 2, 1]])}
    np.savez_compressed(folder / "examples.npz", **arrays)
    text = report(tmp_path, ["motifs"]).read_text()
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', text)[1])
    assert data["ids"] == ["0", "1"]
    assert data["sites"] == [[1, 0, 1, 2, 1]]
    assert base64.b64decode(data["attention"]) == attention[:, :2].astype("<f4").tobytes()
    assert base64.b64decode(data["effect"]) == (-attention[0, :2]).astype("<f4").tobytes()
    assert "The page holds the first 2 of 5; all are in examples.npz." in text


def test_a_map_too_large_for_the_page_is_named(tmp_path):
    folder, n = finished(tmp_path, "contacts", {}), MOST_RESIDUES + 1
    scores = np.broadcast_to(np.zeros(n, np.float32), (n, n))
    np.savez_compressed(folder / "map.npz", scores=scores, sequence=np.array(["A"] * n))
    text = report(tmp_path, ["contacts"]).read_text()
    assert f"{n} residues are too many for this page; the scores are in map.npz." in text


def test_an_array_that_is_missing_is_told_in_one_line(tmp_path):
    folder = finished(tmp_path, "contacts", {})
    np.savez(folder / "map.npz", scores=np.zeros((3, 3)))
    with pytest.raises(UserError, match=r"map.npz: no array 'sequence' in it; run the stage that wrote it"):
        report(tmp_path, ["contacts"])


def test_controls_of_motifs_rule_out_what_they_do_not_find():
    ran = {"runs": 1, "runs_with_motifs": 0, "motifs": 0, "recovered": 0}
    many = {"runs": 10, "runs_with_motifs": 1, "motifs": 2, "recovered": 0}
    controls = {
        "untrained": ran,
        "permuted_labels": many,
        "random_regions": many | {"runs_with_motifs": 2},
        "shuffled_positives": ran | {"runs_with_motifs": 1, "motifs": 3},
        "no_attention": ran | {"runs_with_motifs": 1, "motifs": 2},
    }
    verdicts = {
        c["control"]: c for c in rule_out("motifs_found", {"value": 3, "untrained": 0, "controls": controls})
    }
    assert {name: verdict["ruled_out"] for name, verdict in verdicts.items()} == {
        "untrained": True,
        "permuted_labels": True,
        "random_regions": False,
        "shuffled_positives": False,
        "no_attention": True,
    }
    assert verdicts["permuted_labels"]["difference"] == pytest.approx(3 - 0.2)
    assert verdicts["permuted_labels"]["about"].endswith("Motifs in 1 of 10 runs.")
    expected = {"value": 2, "of": 2, "untrained": 0, "controls": {"no_attention": ran | {"recovered": 2}}}
    (plain,) = rule_out("motifs_recovered", expected)
    assert not plain["ruled_out"]


def test_controls_of_a_fitted_regression_are_judged_over_the_same_proteins(tmp_path):
    above = {"difference": 0.2, "interval": [0.1, 0.3]}
    near = {"difference": 0.1, "interval": [-0.05, 0.25]}
    route = {"all": {"pairs": 9, "contacts": 3, "at_l": 0.5, "intervals": {"at_l": [0.4, 0.6]}}}
    metric = {"value": 0.5, "untrained": 0.3, "label_free": 0.4, "separation": 0.2, "random": 0.1}
    metric |= {"above": {"untrained": above, "label_free": near, "separation": above | {"interval": None}}}
    metric |= {"ranges": {"regression": route, "separation": route}}
    found = {c["control"]: c["ruled_out"] for c in rule_out("contact_precision_at_l", metric)}
    assert found == {"untrained": True, "label_free": False, "separation": False, "random": True}
    finished(tmp_path, "contact-head", {"contact_precision_at_l": metric})
    text = report(tmp_path, ["contact-head"]).read_text()
    assert "95 % of resampled means lie between 0.100 and 0.300" in text
    assert "<td>0.500 (0.400 to 0.600)</td>" in text
    assert '<section id="contacts">' in text
