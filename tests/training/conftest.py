"""What the tests of training share."""

import os
import subprocess

import numpy as np
import pytest


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 800 kB, which root alone can make."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=800k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="session")
def tokenized():
    """Make a split of records of DNA, as overlapping 3-mers are encoded."""
    from pipeline.tokens.kmers import KmerCodec
    from pipeline.tokens.store import split_of

    codec = KmerCodec("dna", 3, True)
    return lambda records: split_of([codec.track(codec.codes(letters)) for letters in records])


@pytest.fixture(scope="session")
def split(tokenized):
    """A split of 12 records of 10 to 119 bases."""
    rng = np.random.default_rng(0)
    return tokenized(["".join(rng.choice(list("ACGT"), n)) for n in rng.integers(10, 120, 12)])


@pytest.fixture(scope="session")
def random_tokens():
    """Make a token folder of 60 records of random letters."""
    import pipeline.encode
    import pipeline.prepare
    from pipeline.config import PrepareConfig, TokenizeConfig

    def make(folder, alphabet, letters, tokenizer, lengths):
        rng = np.random.default_rng(1)
        folder.mkdir()
        records = ["".join(rng.choice(list(letters), n)) for n in rng.integers(*lengths, 60)]
        (folder / "r.fa").write_text("".join(f">r{i}\n{record}\n" for i, record in enumerate(records)))
        inputs = {"input": [folder / "r.fa"], "alphabet": alphabet, "validation": 0.1, "test": 0.1}
        pipeline.prepare.run(PrepareConfig(output=folder / "corpus", **inputs))
        encoded = TokenizeConfig(output=folder / "tokens", corpus=folder / "corpus", tokenizer=tokenizer)
        return pipeline.encode.run(encoded).folder

    return make
