# What the models found.


use rule stage as compare with:
    wildcard_constraints:
        name=names("compare"),
    resources:
        mem_mb=4000,
        runtime=60,


use rule stage as predict with:
    wildcard_constraints:
        name=names("predict"),
    threads: 2
    resources:
        mem_mb=8000,
        runtime=720,


use rule stage as score with:
    wildcard_constraints:
        name=names("score"),
    threads: 2
    resources:
        mem_mb=8000,
        runtime=720,


use rule stage as motifs with:
    wildcard_constraints:
        name=names("motifs"),
    threads: 2
    resources:
        mem_mb=16000,
        runtime=240,


use rule stage as contact_head with:
    wildcard_constraints:
        name=names("contact-head"),
    threads: 2
    resources:
        mem_mb=16000,
        runtime=240,


use rule stage as contacts with:
    wildcard_constraints:
        name=names("contacts"),
    threads: 2
    resources:
        mem_mb=16000,
        runtime=240,


use rule stage as embed with:
    wildcard_constraints:
        name=names("embed"),
    threads: 2
    resources:
        mem_mb=8000,
        runtime=720,


use rule stage as probe with:
    wildcard_constraints:
        name=names("probe"),
    resources:
        mem_mb=8000,
        runtime=240,


use rule stage as report with:
    wildcard_constraints:
        name=names("report"),
    threads: 1
    resources:
        mem_mb=4000,
        runtime=30,
