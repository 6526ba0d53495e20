"""Load on servers, and what came back.

traffic/     `conch bench`: any load on any server, figures, report, comparison
__main__.py  `scripts/bench`: our stack against its peers, with
  contests.py match.py sides.py ours.py peers.py driver.py tuning.py workloads.py report.py
http.py load.py figures.py   the contests' own requests: one over a plain socket, a closed loop, percentiles and rates
split.py     long prompts beside running streams: replicas against engines of their own for prompts
roofline.py  how fast memory lets a model decode
"""
