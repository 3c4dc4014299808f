"""What the tests of training share."""

import os
import subprocess

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
