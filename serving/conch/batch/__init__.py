"""`conch batch`: a table of documents in, the same table with answers out.

    rows.py         JSONL, CSV and Parquet in       output.py       the same out, in the order of the input
    prompt.py       a row to a prompt               split.py        a document that is too long, in parts
    asking.py       the gateway, and its patience   throttle.py     as many requests at once as it takes
    answers.py      a row to its answer             local.py        many rows at once, in this process
    checkpoint.py   answers as they come            run.py          from the first row to the last
    progress.py     how far, how fast, how dear

`run` knows of workers only that they turn rows into answers in any order (`Work`): `local` is one; others may run on
many machines. What is answered is in the checkpoint; a run that was ended goes on from it.
"""
