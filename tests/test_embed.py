import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModel

import pipeline.embed
import pipeline.model  # teaches the Auto classes
import pipeline.tokens.windows
import pipeline.training.shards
from pipeline.artifacts import read_manifest
from pipeline.config import EmbedConfig
from pipeline.errors import UserError
from pipeline.model import StrandModel
from pipeline.tokens.vocabulary import build_tokenizer, load_tokenizer, save_tokenizer
from pipeline.training import vectors
from pipeline.training.shards import read_index, read_pooled

ROOT = Path(__file__).parents[1]
RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
CONTEXT = 20
WAYS = {"protein": ("protein", 1, False), "overlapping": ("dna", 3, True), "apart": ("dna", 3, False)}


def text(length, seed, letters="ACGT"):
    return "".join(np.random.default_rng(seed).choice(list(letters), length))


RECORDS = [(f"r{n}", text(n, n)) for n in (17, 7, 20, 2, 11)]
RECORDS[2] = ("n", RECORDS[2][1][:9] + "NN" + RECORDS[2][1][11:])
LONG = [("short", text(9, 1)), ("long", text(50, 2)), ("fits", text(18, 3)), ("more", text(21, 4))]
# Windows of 18 overlapping 3-mers, 6 letters shared: [begin, end) in letters
WINDOWS = {"long": [(0, 20), (14, 34), (28, 48), (30, 50)], "more": [(0, 20), (1, 21)]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Checkpoints of two layers with a context of 20 tokens, by the kind of their tokens."""
    from pipeline.model import StrandConfig

    found = {}
    for name, (alphabet, k, overlapping) in WAYS.items():
        folder = tmp_path_factory.mktemp(name)
        tokenizer = build_tokenizer(alphabet, k, overlapping, CONTEXT)
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = StrandConfig(**sizes, vocab_size=len(tokenizer), max_position_embeddings=CONTEXT)
        model = StrandModel(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 1.0)
        model.save_pretrained(folder)
        save_tokenizer(tokenizer, folder)
        found[name] = folder
    return found


@pytest.fixture
def embed(folders, tmp_path):
    """Embed records; return the result."""

    def run(name="vectors", records=RECORDS, kind="overlapping", **changes):
        fasta = tmp_path / "records.fa"
        fasta.write_text("".join(f">{i}\n{s}\n" for i, s in records))
        settings = {"checkpoint": folders[kind], "input": [fasta]}
        return pipeline.embed.run(EmbedConfig(output=tmp_path / name, **settings | changes))

    return run


def table(result):
    files = [shard["file"] for shard in read_index(result.folder)["shards"]]
    assert sorted(path.name for path in result.folder.glob("vectors-*")) == files
    return [row for file in files for row in pq.read_table(result.folder / file).to_pylist()]


def states(folder, sequence, layer=-1, specials=False):
    """Return the vectors of a sequence's tokens alone, by the Hugging Face road."""
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), load_tokenizer(folder)
    with torch.no_grad():
        outputs = model(**tokenizer(sequence, return_tensors="pt"), output_hidden_states=True)
    found = outputs.hidden_states[layer][0].numpy()
    return found if specials else found[1:-1]


def of_letters(folder, sequence, layer=-1):
    """Return a vector for each letter: the mean over the tokens that it is in, one letter after another."""
    tokens, tokenizer = states(folder, sequence, layer), load_tokenizer(folder)
    names, vectors, at = tokenizer.tokenize(sequence), [[] for _ in sequence], 0
    overlapping = sum(map(len, names)) > len(sequence)
    for name, vector in zip(names, tokens, strict=True):
        for letter in range(at, at + len(name)):
            vectors[letter].append(vector)
        at += 1 if overlapping else len(name)
    return np.array([np.mean(each, 0) for each in vectors])


def stitched(folder, sequence, windows):
    """Return a vector for each letter: the mean over the windows that it is in."""
    vectors = [[] for _ in sequence]
    for begin, end in windows:
        for letter, vector in enumerate(of_letters(folder, sequence[begin:end]), begin):
            vectors[letter].append(vector)
    return np.array([np.mean(each, 0) for each in vectors])


def own_records(kind):
    letters = RESIDUES if kind == "protein" else "ACGT"
    return [(f"r{i}", text(n, n, letters)) for i, n in enumerate((17, 7, 18, 2, 11, 7))]


# -- what the vectors are


@pytest.mark.parametrize("kind", WAYS)
def test_letters_have_the_vectors_of_their_tokens(embed, folders, kind):
    rows = table(embed(records=own_records(kind), kind=kind, pooling="per_letter", layers=[-1, 1, 0]))
    assert list(rows[0]) == ["id", "layer_-1", "layer_1", "layer_0"]
    for row, (name, sequence) in zip(rows, own_records(kind), strict=True):
        assert row["id"] == name
        for layer in (-1, 1, 0):
            expected = of_letters(folders[kind], sequence, layer)
            assert len(expected) == len(sequence)
            assert np.array(row[f"layer_{layer}"]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", WAYS)
def test_a_records_vector_is_the_mean_of_its_letters(embed, folders, kind):
    result = embed(records=own_records(kind), kind=kind)
    for row, (name, sequence) in zip(table(result), own_records(kind), strict=True):
        assert row["id"] == name
        expected = of_letters(folders[kind], sequence).mean(0)
        assert row["layer_-1"] == pytest.approx(expected.tolist(), abs=1e-5)
    assert result.manifest["counts"] == {"read": 6, "vectors": 6, "shards": 1}


def test_letters_that_are_no_part_of_a_word_count_too(embed, folders):
    row = table(embed())[2]
    assert row["layer_-1"] == pytest.approx(
        of_letters(folders["overlapping"], RECORDS[2][1]).mean(0).tolist(), abs=1e-5
    )


def test_the_first_token_may_stand_for_the_record(embed, folders):
    for row, (_, sequence) in zip(table(embed(pooling="cls")), RECORDS, strict=True):
        expected = states(folders["overlapping"], sequence, specials=True)[0]
        assert row["layer_-1"] == pytest.approx(expected.tolist(), abs=1e-5)


def test_half_precision_computes_about_the_same(embed):
    usual, half = table(embed()), table(embed("half", precision="bf16"))
    ours, theirs = (np.array([row["layer_-1"] for row in rows]) for rows in (usual, half))
    assert 1e-5 < np.abs(ours - theirs).max() < 0.1


def test_float16_is_the_nearest_to_float32(embed):
    usual, half = embed(), embed("half", dtype="float16")
    column = pq.read_table(half.folder / "vectors-000000.parquet")["layer_-1"]
    assert str(column.type.value_type) == "halffloat"
    for one, other in zip(table(usual), table(half), strict=True):
        assert np.array_equal(np.float32(one["layer_-1"]).astype(np.float16), other["layer_-1"])


def test_numbers_too_large_for_float16_are_refused(embed, folders, monkeypatch):
    """The weights of one record are blown up."""

    def huge(piece, _):
        return np.full(2 + len(piece.tokens.ids), 1e6 if piece.record == 3 else 0, np.float32)

    monkeypatch.setattr(vectors.Piece, "weights", huge)
    with pytest.raises(UserError, match=r"^record 'r2': numbers too large for float16; pass --dtype float32"):
        embed(dtype="float16")


def test_weights_that_are_missing_or_no_numbers_or_too_large_give_no_vectors(embed, folders, tmp_path):
    """Parts of a layer are in no file; or a weight is not a number; or vectors are beyond all numbers."""
    tensors = load_file(folders["overlapping"] / "model.safetensors")
    changed = {
        "part": {name: value for name, value in tensors.items() if "layers.1.mlp" not in name},
        "nan": tensors | {"norm.weight": torch.full((16,), float("nan"))},
        "huge": tensors | {"norm.weight": torch.full((16,), 3e38)},
    }
    messages = {
        "part": r"tensor layers.1.mlp\S+, of which config.json tells, is in no file",
        "nan": r"tensor norm.weight: 16 of 16 weights are NaN or infinite",
        "huge": r"^record 'r17': its vector is no number: the checkpoint's weights",
    }
    for name, weights in changed.items():
        shutil.copytree(folders["overlapping"], tmp_path / name)
        save_file(weights, tmp_path / name / "model.safetensors", {"format": "pt"})
        with pytest.raises(UserError, match=messages[name]):
            embed(checkpoint=tmp_path / name)


@pytest.mark.parametrize("size", [1, 2])
def test_the_batch_does_not_matter(embed, size):
    for one, other in zip(table(embed()), table(embed("other", batch_size=size)), strict=True):
        assert one["id"] == other["id"]
        assert one["layer_-1"] == pytest.approx(other["layer_-1"], abs=1e-5)


# -- long records


def test_windows_are_stitched_in_coordinates_of_the_record(embed, folders):
    folder, settings = folders["overlapping"], {"records": LONG, "long_sequences": "window", "overlap": 6}
    letters = embed("letters", pooling="per_letter", **settings)
    means, firsts = (table(embed(how, pooling=how, **settings)) for how in ("mean", "cls"))
    for i, (name, sequence) in enumerate(LONG):
        windows = WINDOWS.get(name, [(0, len(sequence))])
        expected = stitched(folder, sequence, windows)
        assert np.array(table(letters)[i]["layer_-1"]) == pytest.approx(expected, abs=1e-5)
        assert means[i]["layer_-1"] == pytest.approx(expected.mean(0).tolist(), abs=1e-5)
        times = [sum(b <= letter < e for b, e in windows) for letter in range(len(sequence))]
        share = [sum(1 / times[letter] for letter in range(b, e)) / len(sequence) for b, e in windows]
        first = [states(folder, sequence[b:e], specials=True)[0] for b, e in windows]
        assert firsts[i]["layer_-1"] == pytest.approx(np.average(first, 0, share).tolist(), abs=1e-5)
    assert [row["note"] for row in means] == [
        "", "windowed: 50 letters in 4 windows", "", "windowed: 21 letters in 2 windows",
    ]  # fmt: skip
    counts = {"read": 4, "windowed": 2, "vectors": 98, "shards": 1}
    assert letters.manifest["counts"] == counts


@pytest.mark.parametrize("form", ["parquet", "safetensors"])
@pytest.mark.parametrize("pooling", ["mean", "per_letter"])
def test_skipped_records_are_there_without_vectors(embed, form, pooling):
    settings = {"records": LONG, "long_sequences": "skip", "format": form, "pooling": pooling}
    result = embed(**settings)
    assert result.manifest["counts"]["skipped"] == 2
    note = "skipped: only 20 of 50 letters fit"
    if form == "parquet":
        rows = table(result)
        assert [(row["id"], row["layer_-1"] is None) for row in rows] == [
            ("short", False), ("long", True), ("fits", False), ("more", True),
        ]  # fmt: skip
        assert rows[1]["note"] == note
        return
    with safe_open(result.folder / "vectors-000000.safetensors", "numpy") as file:
        assert json.loads(file.metadata()["ids"]) == [name for name, _ in LONG]
        assert json.loads(file.metadata()["notes"])[1] == note
        vectors = file.get_tensor("layer_-1")
        if pooling == "mean":
            assert list(np.isnan(vectors).any(1)) == [False, True, False, True]
        else:
            assert file.get_tensor("offsets").tolist() == [0, 9, 9, 27, 27]
            assert vectors.shape == (27, 16)


# -- files


@pytest.mark.parametrize("pooling", ["mean", "per_letter"])
def test_safetensors_hold_what_parquet_does(embed, pooling):
    settings = {"shard_records": 2, "pooling": pooling, "layers": [-1, 0], "dtype": "float16"}
    rows, other = table(embed(**settings)), embed("other", format="safetensors", **settings)
    at = 0
    for shard in read_index(other.folder)["shards"]:
        with safe_open(other.folder / shard["file"], "numpy") as file:
            ids = json.loads(file.metadata()["ids"])
            offsets = file.get_tensor("offsets") if pooling == "per_letter" else range(len(ids) + 1)
            for i, name in enumerate(ids):
                own = slice(offsets[i], offsets[i + 1])
                for layer in ("layer_-1", "layer_0"):
                    expected = np.array(rows[at][layer], np.float16).reshape(-1, 16)
                    assert np.array_equal(file.get_tensor(layer)[own], expected)
                assert rows[at]["id"] == name
                at += 1
    assert at == len(RECORDS)


def test_the_index_says_what_there_is(embed):
    result = embed(shard_records=2, layers=[-1, 1], dtype="float16")
    index = read_index(result.folder)
    facts = {"pooling": "mean", "format": "parquet", "dtype": "float16", "layers": [-1, 1], "width": 16}
    assert facts.items() <= index.items()
    assert [shard["records"] for shard in index["shards"]] == [2, 2, 1]
    assert [len(pq.read_table(result.folder / s["file"])) for s in index["shards"]] == [2, 2, 1]
    assert [row["id"] for row in table(result)] == [name for name, _ in RECORDS]


def test_a_shard_ends_where_it_grows_too_large(embed, monkeypatch):
    """17 + 7 letters of 16 numbers fit, then 20, then 2 + 11; by letters read, 15 + 5 + 18 tokens do not."""
    monkeypatch.setattr(pipeline.embed, "SHARD_BYTES", 24 * 16 * 4)
    index = read_index(embed(pooling="per_letter").folder)
    assert [shard["records"] for shard in index["shards"]] == [2, 2, 1]
    monkeypatch.setattr(pipeline.embed, "SHARD_BYTES", 1 << 20)
    monkeypatch.setattr(pipeline.embed, "SHARD_LETTERS", 36)
    index = read_index(embed("other").folder)
    assert [shard["records"] for shard in index["shards"]] == [2, 3]


@pytest.mark.parametrize("form", ["parquet", "safetensors"])
def test_vectors_are_read_again(embed, form):
    result = embed(records=LONG, long_sequences="skip", format=form, shard_records=3, layers=[0, -1])
    index = read_index(result.folder)
    parts = list(read_pooled(result.folder, index, -1))
    assert [name for ids, _ in parts for name in ids] == [name for name, _ in LONG]
    found = np.concatenate([vectors for _, vectors in parts])
    assert list(np.isnan(found).any(1)) == [False, True, False, True]
    alone = table(embed("alone", records=[LONG[2]]))
    assert found[2] == pytest.approx(np.array(alone[0]["layer_-1"]), abs=1e-5)
    damaged = result.folder / index["shards"][1]["file"]
    damaged.write_bytes(damaged.read_bytes()[:-20])
    for _ in range(2):
        with pytest.raises(UserError, match=rf"^vectors: {damaged}: cannot be read: .*; run embed again$"):
            list(read_pooled(result.folder, index, -1))
        damaged.unlink(missing_ok=True)


def test_no_more_records_are_held_than_a_shard_has(embed, monkeypatch):
    """When a shard is written, at most the next one's first record has been read: memory does not grow."""
    read, written, add = [], [], pipeline.training.shards.Index.add
    of_record = pipeline.tokens.windows.Context.read
    monkeypatch.setattr(pipeline.tokens.windows.Context, "read", lambda *a: read.append(a) or of_record(*a))

    def count(index, shard, counts):
        written.append(len(shard.ids))
        assert len(read) - sum(written) in (0, 1)
        add(index, shard, counts)

    monkeypatch.setattr(pipeline.training.shards.Index, "add", count)
    embed(records=[(f"m{i}", text(12, i)) for i in range(23)], shard_records=4)
    assert written == [4] * 5 + [3]


def test_letters_changed_are_counted(embed, capsys):
    result = embed(records=[("a", "acgtACGUR")])
    assert result.manifest["counts"]["letters_changed"] == {
        "lower_case_folded": 4, "u_to_t": 1, "ambiguous_to_n": 1,
    }  # fmt: skip
    assert "letters changed: 4 lower case folded, 1 u to t, 1 ambiguous to n" in capsys.readouterr().err


# -- stopped, and started again

MANY = [(f"m{i}", text(4 + i % 15, i)) for i in range(40)] + [("long", text(70, 5))]
MANY_SETTINGS = {"records": MANY, "shard_records": 4, "long_sequences": "window", "overlap": 4}


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_that_was_killed_goes_on_to_the_same_bytes(embed, folders, tmp_path):
    """SIGKILL between and within shards: at most the one that is being made is lost."""
    whole = embed("whole", **MANY_SETTINGS)
    settings = {k: v for k, v in MANY_SETTINGS.items() if k != "records"}
    argv = [f"--{key.replace('_', '-')}={value}" for key, value in settings.items()]
    argv += [f"--checkpoint={folders['overlapping']}", f"--input={tmp_path / 'records.fa'}"]
    script = (
        "import sys, time, pipeline.training.shards as s; write = s.Shard.write\n"
        "def slow(*a):\n    write(*a); time.sleep(0.15)\n"
        "s.Shard.write = slow\n"
        "from pipeline.cli import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", script, "embed", *argv, f"--output={tmp_path / 'again'}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    partial = tmp_path / ".again.partial"
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    limit = time.monotonic() + 120
    while len(list(partial.glob("vectors-*.parquet"))) < 3 and time.monotonic() < limit:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    index = json.loads((partial / "index.json").read_text())
    assert len(list(partial.glob("vectors-*.parquet"))) - len(index["shards"]) in (0, 1)
    assert 2 <= len(index["shards"]) < 10
    kept = {s["file"]: (partial / s["file"]).stat().st_mtime_ns for s in index["shards"]}
    again = embed("again", **MANY_SETTINGS)
    assert all((again.folder / name).stat().st_mtime_ns == when for name, when in kept.items())
    assert read_manifest(again.folder)["content"] == whole.manifest["content"]
    assert again.manifest["counts"] == whole.manifest["counts"]
    theirs, ours = content(whole.folder), content(again.folder)
    assert theirs.keys() == ours.keys()
    assert all(theirs[name] == ours[name] for name in theirs if name != "manifest.json")


def stop_after_two(embed, monkeypatch):
    """Have the stage stop while it writes its third shard."""
    write, done = pipeline.training.shards.Shard._write_parquet, []

    def stop(shard, path):
        if len(done) == 2:
            path.write_bytes(b"half")
            raise KeyboardInterrupt
        done.append(path)
        write(shard, path)

    with monkeypatch.context() as patch:
        patch.setattr(pipeline.training.shards.Shard, "_write_parquet", stop)
        with pytest.raises(KeyboardInterrupt):
            embed("again", **MANY_SETTINGS)


def test_half_a_shard_is_made_again(embed, tmp_path, monkeypatch, capsys):
    whole = embed("whole", **MANY_SETTINGS)
    stop_after_two(embed, monkeypatch)
    assert (tmp_path / ".again.partial" / "vectors-000002.parquet.partial").is_file()
    again = embed("again", **MANY_SETTINGS)
    assert "going on after 8 of 41 records" in capsys.readouterr().err
    assert content(again.folder).keys() == content(whole.folder).keys()
    assert [row["id"] for row in table(again)] == [name for name, _ in MANY]
    assert again.manifest["content"] == whole.manifest["content"]


@pytest.mark.parametrize("change", [{"pooling": "cls"}, {"records": MANY[1:]}])
def test_work_of_other_settings_is_not_taken_up(embed, monkeypatch, change):
    stop_after_two(embed, monkeypatch)
    again, alone = embed("again", **MANY_SETTINGS | change), embed("alone", **MANY_SETTINGS | change)
    assert again.manifest["content"] == alone.manifest["content"]


def test_a_mistake_leaves_earlier_work_alone(embed, tmp_path, monkeypatch):
    stop_after_two(embed, monkeypatch)
    before = content(tmp_path / ".again.partial").keys()
    with pytest.raises(UserError, match="layers: 9"):
        embed("again", **MANY_SETTINGS, layers=[9])
    assert content(tmp_path / ".again.partial").keys() == before


# -- what is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint": "corpus"}, r"corpus: no config.json, so no checkpoint; pass pretrain's folder"),
        ({"checkpoint": "nowhere"}, "nowhere: no such file or folder"),
        ({"layers": [3]}, r"^layers: 3: the model has 0 \(embedding\) to 2, or -1 \(last\)$"),
        ({"layers": [-1, -4]}, r"^layers: -4: the model has 0 "),
        ({"layers": [-1, 0, -1]}, "^layers: -1: given twice"),
        (
            {"records": [("a", "ACG"), ("long", "A" * 50)]},
            r"^record 'long': 50 letters are 48 tokens, more than the model's 18 \(the first 20 letters",
        ),
        ({"records": []}, "records.fa: no records in it; nothing to read"),
        ({"records": [("a", "ACG"), ("b", "ACXG")]}, "record 'b', line 3: letter 'X' at position 3"),
        ({"records": [("a", "ACG"), ("a", "ACG")]}, "record 'a', line 3: the same id as line 1"),
        ({"records": LONG[1:2], "long_sequences": "skip"}, r"^every record \(1\) is longer than"),
        ({"long_sequences": "window"}, "^overlap: 64: windows may have as few as 18 letters"),
    ],
)
def test_mistakes_are_told_in_a_line_and_leave_nothing(embed, tmp_path, changes, message):
    (tmp_path / "corpus").mkdir()
    if "checkpoint" in changes:
        changes = {"checkpoint": tmp_path / changes["checkpoint"]}
    with pytest.raises(UserError, match=message) as error:
        embed(**changes)
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "records.fa"]
