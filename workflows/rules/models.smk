# Tokens to models.


use rule stage as pretrain with:
    wildcard_constraints:
        name=names("pretrain"),
    threads: 2
    resources:
        mem_mb=16000,
        runtime=2880,
        gpu=1,


use rule stage as evaluate with:
    wildcard_constraints:
        name=names("evaluate"),
    threads: 2
    resources:
        mem_mb=16000,
        runtime=240,
        gpu=1,


use rule stage as finetune with:
    wildcard_constraints:
        name=names("finetune"),
    threads: 2
    resources:
        mem_mb=16000,
        runtime=720,
        gpu=1,


use rule stage as convert with:
    wildcard_constraints:
        name=names("convert"),
    resources:
        mem_mb=16000,
        runtime=60,
