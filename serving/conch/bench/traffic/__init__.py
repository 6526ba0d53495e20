"""Load on a server that tells what it is worth: what is asked, when, of whom, and the figures that come of it.

lengths.py prompts.py trace.py   what is asked: how long, which words, a recorded traffic
loads.py ramp.py                 when: so many at once, at given times, until nothing more comes
http.py openai.py triton.py      of whom: any OpenAI API, or a Triton
record.py                        one request and all that is kept of it
measures.py slo.py busy.py       the figures
counters.py energy.py            what the server and the machine say themselves
trial.py                         one load put together and measured over rounds
statistics.py compare.py         two sides and a verdict
saved.py page.py charts.py       JSON, CSV, and a report of one file
toy.py                           a server of known timing, to measure the load generator itself
"""
