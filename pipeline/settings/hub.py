"""The schema of the command that uploads checkpoints."""

import re
from pathlib import Path

from pydantic import field_validator

from pipeline.settings.sections import Section


class PushConfig(Section):
    """Upload a checkpoint to the Hugging Face Hub: its own files, and nothing else of the folder."""

    checkpoint: Path
    """folder written by pretrain, finetune or convert, with a licence in the first lines of its README.md"""
    repo: str
    """owner/name on the Hub; made if it is not there"""
    private: bool = False
    """refuse to upload where others can read it, and make a new one so"""
    dry_run: bool = False
    """show what would be uploaded and what is in the way, without network, and stop"""

    @field_validator("repo")
    @classmethod
    def _has_owner(cls, repo: str) -> str:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
            raise ValueError("write it as owner/name")
        return repo
