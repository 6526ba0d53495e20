"""What each layer of optimization brings on this machine: one rung a layer, all measured in turns on the same requests.

rungs.py     the rungs, and what a plan must be to have a layer and none above it
workload.py  what every rung is asked
made_up.py   LoRA adapters with random weights, for plans that name none
worker.py    the process of a rung, with
  plain.py     transformers, without batching or with batches that end together
  engines.py   Conch's engine, one or several
ascent.py    builds what rungs need, then rounds in turns
rows.py      from rounds to the rows of the table: factors, intervals, cost
page.py      the rows as a table and as one HTML file with charts
"""
