"""Uploading a checkpoint: what goes, what is refused, and that the access token is never said."""

import json
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants

import pipeline.push
from pipeline.cli import main
from pipeline.errors import UserError
from pipeline.model import StrandForMaskedLM
from pipeline.report.card import CARD, LICENSE
from pipeline.settings.hub import PushConfig
from pipeline.tokens.vocabulary import load_tokenizer, save_tokenizer

TOKEN = "hf_" + "aBcD" * 9
NETWORK = [f"{part}_strand.py" for part in ("attention", "configuration", "contacts", "modeling")]
TOKENIZER = ["tokenization_strand.py", "tokenizer_config.json", "vocab.json"]
FILES = sorted([CARD, "config.json", "model.safetensors", *NETWORK, *TOKENIZER])


@pytest.fixture(autouse=True)
def nobody(monkeypatch, tmp_path):
    """Nobody is logged in on this machine."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))


@pytest.fixture
def folder(tmp_path, tiny_model, tokenizer_folder):
    """A checkpoint with a filled-in card, and beside it everything that must stay here."""
    folder = tmp_path / "model"
    tokenizer = load_tokenizer(tokenizer_folder("dna-6mer-overlap"))
    tiny_model(StrandForMaskedLM, vocab_size=len(tokenizer)).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    (folder / CARD).write_text("---\nlicense: apache-2.0\n---\n\n# A model\n")
    for name in ("manifest.json", "metrics.json", "metrics.jsonl", "windows.tsv", "notes.py", ".stage"):
        (folder / name).write_text("{}")
    for name in ("optimizer.safetensors", "trainer.json", "training_args.bin", "model.safetensors.partial"):
        (folder / name).write_text(TOKEN)
    (folder / "checkpoints" / "step-000001").mkdir(parents=True)
    (folder / "checkpoints" / "step-000001" / "model.safetensors").write_text("")
    (folder / "tensorboard").mkdir()
    return folder


@pytest.fixture
def hub(monkeypatch):
    """An imitation of the Hub where somebody is logged in; it keeps what it is asked."""
    hub = SimpleNamespace(asked=[], sent={}, public=False, error=None)

    class Api:
        def create_repo(self, repo, **settings):
            hub.asked.append(("create_repo", repo, settings))
            if hub.error:
                raise hub.error

        def model_info(self, repo):
            return SimpleNamespace(private=not hub.public)

        def create_commit(self, repo, operations, commit_message):
            hub.asked.append(("create_commit", repo, commit_message))
            hub.sent |= {each.path_in_repo: each.path_or_fileobj for each in operations}
            return SimpleNamespace(commit_url=f"https://hub/{repo}/commit/1")

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return hub


def push(folder, **settings):
    return pipeline.push.run(PushConfig(checkpoint=folder, repo="lab/model", **settings))


def refused(folder, **settings):
    with pytest.raises(UserError) as caught:
        push(folder, **settings)
    assert "\n" not in str(caught.value)
    assert TOKEN not in str(caught.value)
    return str(caught.value)


# -- what goes


def test_the_files_of_the_checkpoint_go_and_no_others(folder, hub, capsys):
    assert push(folder) == "https://hub/lab/model/commit/1"
    assert {name: str(path) for name, path in hub.sent.items()} == {n: str(folder / n) for n in FILES}
    assert hub.asked == [
        ("create_repo", "lab/model", {"private": None, "exist_ok": True}),
        ("create_commit", "lab/model", "StrandLM 0.1.0"),
    ]
    said = capsys.readouterr().err
    for name in ("checkpoints/", "manifest.json", "metrics.jsonl", "optimizer.safetensors", "notes.py"):
        assert name in said
    assert TOKEN not in said


def test_weights_in_parts_go_whole(folder, hub):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "no model-00002-of-00002.safetensors, so it cannot be opened" in refused(folder)
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"0")
    push(folder)
    assert {*index["weight_map"].values(), "model.safetensors.index.json"} < hub.sent.keys()


def test_what_is_to_be_private_is_not_put_where_others_can_read_it(folder, hub):
    push(folder, private=True)
    assert hub.asked[0][2]["private"] is True
    hub.public, hub.sent = True, {}
    assert "lab/model is there and can be read by others" in refused(folder, private=True)
    assert not hub.sent
    push(folder)
    assert hub.sent


def test_a_dry_run_shows_everything_and_sends_nothing(folder, hub, capsys):
    (folder / CARD).write_text("---\nlicense: mit\n---\n\n# A model of much\n")
    assert push(folder, dry_run=True) is None
    said = capsys.readouterr().err
    for name in FILES:
        assert f"{name}: {(folder / name).stat().st_size:,} bytes\n" in said
    assert "# A model of much\n" in said
    size = sum((folder / name).stat().st_size for name in FILES)
    assert f"dry run: nothing was sent to lab/model; {len(FILES)} files, {size:,} bytes" in said
    assert not hub.asked


def with_token(folder):
    (folder / CARD).write_text(f"---\nlicense: mit\n---\n\ntoken='{TOKEN}'\n")


WRONG = {
    "licence": lambda folder: (folder / CARD).write_text(f"---\nlicense: {LICENSE}\n---\n"),
    "card": lambda folder: (folder / CARD).unlink(),
    "yaml": lambda folder: (folder / CARD).write_text("---\nlicense: [\n---\n"),
    "secret": with_token,
    "weights": lambda folder: (folder / "model.safetensors").unlink(),
    "source": lambda folder: (folder / "modeling_strand.py").unlink(),
    "sibling": lambda folder: (folder / "attention_strand.py").unlink(),
    "kind": lambda folder: (folder / "config.json").write_text('{"model_type": "bert"}'),
    "login": lambda _: None,
}


@pytest.mark.parametrize("what", WRONG)
def test_a_dry_run_is_refused_as_the_upload_is(folder, hub, capsys, monkeypatch, what):
    """The same line, the same exit code, and nothing asked of the Hub."""
    WRONG[what](folder)
    if what == "login":
        monkeypatch.delenv("HF_TOKEN")
    lines = []
    for dry in ("true", "false"):
        with pytest.raises(SystemExit) as stop:
            main(["push", "--checkpoint", str(folder), "--repo", "lab/model", "--dry-run", dry])
        assert stop.value.code == 2
        lines.append(capsys.readouterr().err.splitlines()[-1])
    assert lines[0] == lines[1] == lines[0].replace(TOKEN, "")
    assert lines[0].startswith("strandlm: error: ")
    assert not hub.asked


def test_all_that_is_in_the_way_is_told(folder, hub, capsys):
    (folder / CARD).unlink()
    (folder / "model.safetensors").unlink()
    assert "no model.safetensors, so it cannot be opened" in refused(folder, dry_run=True)
    assert f"also in the way: checkpoint: {folder}: no {CARD}; write one" in capsys.readouterr().err


# -- what is refused


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (f"---\ntags:\n- dna\nlicense: {LICENSE}  # fill in\n---\n", 4, f"license: {LICENSE}: not filled in"),
        ("---\nlicense:\n---\n", 2, "license: None: not filled in"),
        ("---\nlicense: ' '\n---\n", 2, "not filled in"),
        ("---\ntags: []\n---\n", 2, "license: None: not filled in"),
        ("# A model\n\nlicense: mit\n", 1, "no YAML between --- and ---"),
    ],
)
def test_a_card_without_a_licence_is_refused(folder, hub, text, line, why):
    (folder / CARD).write_text(text)
    assert f"{CARD}: line {line}: " in (told := refused(folder))
    assert why in told
    assert not hub.asked


def test_other_folders_are_refused(folder, hub, tmp_path):
    assert "no config.json, so no checkpoint" in refused(tmp_path)
    (folder / CARD).write_text("---\nlicense: [\n---\n")
    assert "README.md: not YAML between --- and ---" in refused(folder)
    (folder / CARD).unlink()
    assert f"no {CARD}; write one" in refused(folder)
    (folder / CARD).write_bytes(b"---\nlicense: mit\n---\n\n\xe9\n")
    assert "README.md: not text in UTF-8: byte 22; correct it" in refused(folder, dry_run=True)
    (folder / "model.safetensors.index.json").write_text("{}")
    assert "index.json: no weight_map with the files of the tensors; copy it" in refused(folder)
    (folder / "model.safetensors.index.json").unlink()
    (folder / CARD).unlink()
    (folder / "tokenization_strand.py").rename(folder / "t.py")
    assert "no tokenization_strand.py, so it cannot be opened" in refused(folder)
    (folder / "modeling_strand.py").unlink()
    assert "no modeling_strand.py, so it cannot be opened" in refused(folder)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    assert "a bert model; only strand, strand-factored, esm are uploaded" in refused(folder)
    assert not hub.asked


def test_a_file_with_an_access_token_is_refused(folder, hub):
    (folder / CARD).write_text(f"---\nlicense: mit\n---\n\nLoad it with token='{TOKEN}'.\n")
    assert "README.md: line 5: an access token (hf_...); take it out, and revoke it" in refused(folder)
    assert not hub.asked


# -- who may


def test_without_a_login_it_is_one_line(folder, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["push", "--checkpoint", str(folder), "--repo", "lab/model"])
    assert stop.value.code == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line == (
        "strandlm: error: push: not logged in to the Hugging Face Hub; run hf auth login, or set HF_TOKEN"
    )


def test_without_network_it_is_one_line(folder, monkeypatch):
    """The library's own class, which the tests keep off the network."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert refused(folder).startswith("push: lab/model: ")


def test_an_error_of_the_hub_is_one_line_without_the_token(folder, hub):
    hub.error = ConnectionError(f"401 for url https://hub\n\nAuthorization: Bearer {TOKEN}\n")
    assert refused(folder) == "push: lab/model: 401 for url https://hub Authorization: Bearer ..."


@pytest.mark.parametrize("given", [["--token", TOKEN], [f"--token={TOKEN}"], ["--config", "c.yaml"]])
def test_a_token_is_no_setting_and_is_not_repeated(folder, hub, given, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(f"token: {TOKEN}\n")
    with pytest.raises(SystemExit):
        main(["push", "--checkpoint", str(folder), "--repo", "lab/model", *given])
    told = capsys.readouterr()
    assert "unknown" in told.err
    assert TOKEN not in told.err + told.out
    assert not hub.asked


def test_nothing_written_holds_the_token(folder, hub, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    push(folder)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("repo", ["model", "lab/model/x", "lab /model", "https://huggingface.co/lab/model"])
def test_a_name_without_owner_is_refused(folder, repo, capsys):
    with pytest.raises(SystemExit):
        main(["push", "--checkpoint", str(folder), "--repo", repo])
    assert f"command line: repo: {repo!r}: write it as owner/name" in capsys.readouterr().err
