# Sequence files to tokens.


use rule stage as simulate with:
    wildcard_constraints:
        name=names("simulate"),
    threads: 1
    resources:
        mem_mb=4000,
        runtime=30,


use rule stage as prepare with:
    wildcard_constraints:
        name=names("prepare"),
    threads: 1
    resources:
        mem_mb=8000,
        runtime=240,


use rule stage as negatives with:
    wildcard_constraints:
        name=names("negatives"),
    threads: 1
    resources:
        mem_mb=16000,
        runtime=120,


use rule stage as tokenize with:
    wildcard_constraints:
        name=names("tokenize"),
    threads: 1
    resources:
        mem_mb=8000,
        runtime=240,


use rule stage as build_tokenizer with:
    wildcard_constraints:
        name=names("build-tokenizer"),
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
