"""The README's commands, run as they stand on small files (only the number of steps is lowered)."""

import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STAGES = ("prepare", "tokenize", "pretrain", "evaluate", "compare")
ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent
SMALL = ["--steps", "2", "--tokens-per-step", "1024", "--evaluation-bases", "2000"]
SMALL += ["--model.num-hidden-layers", "1", "--model.hidden-size", "32"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[list[str]]:
    """Every command of the README's shell blocks as words, continuation lines joined."""
    text = "\n".join(blocks("bash")).replace("\\\n", " ")
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    return [shlex.split(part) for line in lines if line for part in line.split("&&")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with the configs and the files that the README names."""
    path = tmp_path_factory.mktemp("readme")
    (path / "configs").symlink_to(ROOT / "configs")
    letters = random.Random(0).choices("ACGT", k=120_000)
    (path / "genome.fna").write_text(">chromosome\n" + "".join(letters) + "\n")
    subprocess.run(["gzip", str(path / "genome.fna")], check=True)
    genes = [f"chromosome\t.\tgene\t{2000 * i}\t{2000 * i + 900}\t.\t+\t.\tID=g{i}\n" for i in range(1, 41)]
    (path / "genes.gff").write_text("".join(genes))
    for name in ("positive.fa.gz", "negative.fa.gz", "family.a3m", "structure.pdb"):
        (path / name).write_text(">x\nACGT\n")
    return path


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def strandlm(words: list[str]) -> list[str]:
    return [sys.executable, "-m", "pipeline.cli", *words[1:]]


@pytest.mark.parametrize("words", [w for w in commands() if w[:2] == ["strandlm", "run"]], ids=" ".join)
def test_commands_that_run_a_workflow_resolve(words, folder):
    if "..." in words:
        pytest.skip("a pattern, not a command")
    printed = run([*strandlm(words), "--print-config"], folder).stdout
    assert "stages:" in printed


def test_one_stage_at_a_time_then_several_processes(folder):
    stages = [w for w in commands() if w[0] == "strandlm" and w[1] in STAGES]
    order = ["prepare", "tokenize", "pretrain", "evaluate", "prepare", "pretrain", "pretrain", "compare"]
    assert [words[1] for words in stages] == order
    for words in stages:
        for name in {"ecoli-tokens", "bacteria-tokens"} & set(words):
            shutil.copytree(folder / "tokens", folder / name)
        run([*strandlm(words), *(SMALL if words[1] == "pretrain" else [])], folder)
    assert (folder / "model" / "model.safetensors").is_file()
    assert "chromosome" in (folder / "bits" / "scores.tsv").read_text()
    rows = json.loads((folder / "gene-starts" / "manifest.json").read_text())["counts"]["kept"]
    assert rows == {"rows": 40, "letters": 40 * 81}
    shares = json.loads((folder / "mixed" / "manifest.json").read_text())["counts"]["shares"]
    assert shares == {"ecoli-tokens": 0.25, "bacteria-tokens": 0.75}
    assert (
        json.loads((folder / "longer" / "config.json").read_text())["rope_parameters"]["rope_theta"]
        == 160_000
    )
    assert (folder / "comparison" / "compare.json").is_file()

    launched = [words for words in commands() if "pipeline.pretrain" in words]
    assert {words[0] for words in launched} == {"accelerate", "torchrun"}
    for words in launched:
        if not {"--multi_gpu", "--num_machines"} & set(words):
            words = [str(BIN / words[0]), *words[1:], "--output", f"by-{words[0]}", *SMALL]
            place = words.index("--output")
            del words[place : place + 2]
            run(words, folder)
            assert (folder / f"by-{Path(words[0]).name}" / "model.safetensors").is_file()


def test_the_python_lines_load_checkpoints(folder, tiny_model, tokenizer_folder, tmp_path):
    from pipeline.model import StrandForSequenceClassification
    from pipeline.tokens.vocabulary import load_tokenizer, save_tokenizer

    (code,) = blocks("python")
    shape = {"vocab_size": 10, "alphabet": "dna", "k": 1}
    networks = {
        "promoter_model": tiny_model(StrandForSequenceClassification, **shape),
        "genome_model": tiny_model(**shape),
    }
    for name, network in networks.items():
        network.save_pretrained(tmp_path / "demo-run" / name)
        tokenizer = load_tokenizer(tokenizer_folder("dna-1mer"))
        save_tokenizer(tokenizer, tmp_path / "demo-run" / name)
    run([sys.executable, "-c", code], tmp_path)


def test_the_config_files_that_the_readme_names_exist():
    named = re.findall(r"configs/[\w./-]+\.yaml", README)
    assert named
    assert all((ROOT / name).is_file() for name in named)
