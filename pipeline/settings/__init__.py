"""The schemas of stages, by subject; `pipeline.config` gathers them."""
