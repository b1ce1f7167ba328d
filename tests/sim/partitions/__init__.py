"""Partitions and their changes as a small program to be read and run: what sends, receives and metadata must do.

    PYTHONPATH=tests python -m sim.partitions --seconds 30                      fresh seeds, for so long
    PYTHONPATH=tests python -m sim.partitions --seconds 30 --bug child-first    with a planted bug, until it is seen
    PYTHONPATH=tests python -m sim.partitions --seed 17 --story                 one run, told event by event

```
        tables ◀── journal ◀── front_end (sends, receives, deletes, sinks)
                      ▲    ◀── metadata (changes of the row)
                      └─────── world (what happens next, and the judge)
```

One queue `Q` that is split, merged and moved all the time over three journals whose queue times are an hour apart, and
a queue `S` that does not change, with which it exchanges messages. Journals lose their leaders with what was not
committed, and start from fuzzy snapshots; answers are lost, requests arrive late; front ends have old tables; several
metadata nodes work at a time and stop anywhere; the store is restored from older copies; hours and weeks pass. There
is no product code in it, and replication is taken as given (`sim.protocol_model`). One seed is one run.
"""
