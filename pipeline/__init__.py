"""StrandLM: masked language models of DNA and proteins, from sequence files to motifs and contact maps."""

__version__ = "0.1.0"
