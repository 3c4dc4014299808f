"""Writing small files, and reading them as users' files are read."""

from pathlib import Path

import pytest

from pipeline.sequences.readers import read_files


@pytest.fixture
def write(tmp_path):
    """Write a file and return its path."""

    def write(content: bytes | str, name: str = "in.fa") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture(scope="session")
def read():
    """Return id and letters of every record in a file."""

    def read(path: Path, **options) -> list[tuple[str, str]]:
        return [(record.id, record.sequence.decode()) for record in read_files([path], **options)]

    return read
