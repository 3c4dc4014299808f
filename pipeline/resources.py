"""Where the files that come with strandlm are: in a clone, or inside the installed package."""

from pathlib import Path


def resource(name: str) -> Path:
    """Return the folder ``configs``, ``tokenizers`` or ``workflows``."""
    package = Path(__file__).parent
    installed = package / "resources" / name
    return installed if installed.is_dir() else package.parent / name
