"""``python -m pipeline.report``."""

from pipeline.cli import main

main(stage="report")
