"""Files that callers leave, and the batches of requests in them: /v1/files and /v1/batches.

    files.py        the endpoints of files          endpoints.py    the endpoints of batches
    upload.py       a form's file to the disk       store.py        batches and their states in the database
    file_store.py   files: rows and their bytes     lines.py        an input file's lines, checked
    tables.py       what the database holds         journal.py      answers as they come, in two files
    paging.py       lists, page by page             asking.py       a line through the live endpoints
    run.py          one batch from lines to files   runner.py       all of them, in one process at a time
    service.py      the pieces put together

A line is answered by the handler that answers live requests, in the flex tier, so that live requests go first. How far
a batch is, is in the files that it writes: after a kill they are read again, and what they lack is done.
"""
