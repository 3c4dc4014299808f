"""The stage that writes a tokenizer folder."""

from pipeline.artifacts import Result, Workspace, produce
from pipeline.config import BuildTokenizerConfig
from pipeline.log import say


def run(config: BuildTokenizerConfig) -> Result:
    """Write a tokenizer that AutoTokenizer loads."""

    def build(workspace: Workspace) -> None:
        from pipeline.tokens.vocabulary import build_tokenizer, save_tokenizer

        tokenizer = build_tokenizer(config.alphabet, config.k, config.overlapping, config.max_length)
        save_tokenizer(tokenizer, workspace.path, config.alphabet, config.k, config.overlapping)
        for source in workspace.path.glob("*.py"):  # a tokenizer folder is JSON only; checkpoints carry code
            source.unlink()
        workspace.counts["tokens"] = len(tokenizer)
        say(f"{config.output}: {len(tokenizer)} tokens")

    return produce("build-tokenizer", config, {}, build)


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="build-tokenizer")
