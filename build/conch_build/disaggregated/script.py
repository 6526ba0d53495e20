"""The script that starts, watches and ends a cluster, machine by machine: plain `sh`, no Conch and no MPI beside it.

A process is known by its number and the time it was born, so that what has the number after it is never ended. Each
server leads a session of its own: its ranks end with it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from conch_build.disaggregated.layout import Worker

READY_SECONDS = 1800
"""Loading weights and capturing CUDA graphs takes minutes."""
GRACE_SECONDS = 30

_TEMPLATE = """\
#!/bin/sh
# Disaggregated serving of @NAME@: workers, and a proxy that sends requests to them.
#
#   sh disagg.sh start [HOST]    start what runs on HOST, wait until it answers (here: @FIRST@)
#   sh disagg.sh run [HOST]      the same, and stay until one of it ends or this is told to: for containers
#   sh disagg.sh status [HOST]   what of it runs
#   sh disagg.sh stop [HOST]     end it
#
# On several machines start it on each, on @FIRST@ too: its proxy waits for them all.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
host=${2:-@FIRST@}
# Process numbers and logs lie beside no file of the cluster: those may be read-only, or shared by machines.
run=${CONCH_HOME:-$HOME/.conch}/run/@NAME@-$(printf %s "$here" | cksum | cut -d ' ' -f 1)/$host
seconds=${CONCH_READY_SECONDS:-@READY@}

# When a process was born, in the system's ticks; nothing for one that has ended.
born() { sed -n 's/.*) \\([^Z]\\)/\\1/p' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20; }

# Whether the server NAME that this script started still runs; sets pid.
runs() {
  [ -f "$run/$1.pid" ] || return 1
  read -r pid since < "$run/$1.pid"
  [ -n "$since" ] && [ "$(born "$pid")" = "$since" ]
}

# launch NAME COMMAND...: a session of its own, its output in a file.
launch() {
  name=$1
  shift
  if runs "$name"; then
    echo "$name runs already (process $pid)" >&2
    return 0
  fi
  setsid "$@" > "$run/$name.log" 2>&1 < /dev/null &
  echo "$! $(born "$!")" > "$run/$name.pid"
  echo "$name: process $!, log $run/$name.log"
}

healthy() {
  python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)' "http://$1/health" 2>/dev/null
}

# await_health URL [NAME]: until it answers; NAME is ours, and has failed when it ends before.
await_health() {
  waited=0
  until healthy "$1"; do
    if [ -n "${2:-}" ] && ! runs "$2"; then
      echo "$2 ended before it answered; the end of $run/$2.log:" >&2
      tail -n 20 "$run/$2.log" >&2
      return 1
    fi
    if [ "$waited" -ge "$seconds" ]; then
      echo "$1 did not answer within $seconds s" >&2
      return 1
    fi
    sleep 1
    waited=$((waited + 1))
  done
}

# Whether the number of NAME is not another process's by now; sets pid. What a dead server has started keeps its number.
ours() {
  [ -f "$run/$1.pid" ] || return 1
  read -r pid since < "$run/$1.pid"
  [ -z "$(born "$pid")" ] || runs "$1"
}

ask_to_end() {
  if ours "$1"; then kill -s TERM -- "-$pid" 2>/dev/null || true; fi
}

# end NAME: wait until it has ended, then insist; only what `launch` started, and what that started in turn.
end() {
  if ours "$1"; then
    waited=0
    while runs "$1" && [ "$waited" -lt @GRACE@ ]; do
      sleep 0.1
      waited=$((waited + 1))
    done
    kill -s KILL -- "-$pid" 2>/dev/null || true
    echo "$1: ended"
  fi
  rm -f "$run/$1.pid"
}

servers() {
  case $host in
@SERVERS@
  *) echo "$host is no machine of this cluster: @HOSTS@" >&2; return 2 ;;
  esac
}

begin() { # whatever ends this ends them all
  mkdir -p "$run"
  trap 'stop >&2' EXIT
  trap 'exit 130' INT TERM
  case $host in
@START@
  esac
}

start() {
  begin
  trap - EXIT INT TERM
  echo "ready"
}

run() {
  begin
  trap 'exit 0' INT TERM
  echo "ready"
  while all_run; do sleep 1; done
  exit 1
}

all_run() {
  for name in $(servers); do
    runs "$name" || { echo "$name has ended, see $run/$name.log" >&2; return 1; }
  done
}

stop() {
  for name in $(servers); do ask_to_end "$name"; done
  for name in $(servers); do end "$name"; done
}

status() {
  for name in $(servers); do
    if runs "$name"; then echo "$name: process $pid"; else echo "$name: not running"; fi
  done
}

servers > /dev/null
case ${1:-} in
start | run | stop | status) "$1" ;;
*) sed -n 's/^#   //p' "$0" >&2; exit 2 ;;
esac
"""


def script(
    name: str, workers: Sequence[Worker], commands: Sequence[Sequence[str]], proxy: Sequence[str], at: str
) -> str:
    """The script; `commands`: one for each worker, `proxy`: its command, which answers `at` host:port.

    Paths in commands may start with `$here`, the script's own directory.
    """
    hosts = list(dict.fromkeys(worker.host for worker in workers))
    first = at.rpartition(":")[0]
    if first not in hosts:
        hosts.insert(0, first)
    servers, start = [], []
    for host in hosts:
        own = [(worker, command) for worker, command in zip(workers, commands, strict=True) if worker.host == host]
        # In the order in which they end: nobody is asked for what has gone.
        names = (["proxy"] if host == first else []) + [worker.name for worker, _ in own]
        servers.append(f"  {host}) echo {' '.join(names)} ;;")
        start.append(f"  {host})")
        start += [f"    {_launch(worker, command)}" for worker, command in own]
        start += [f"    await_health {worker.url} {worker.name}" for worker, _ in own]
        if host == first:
            start += [f"    await_health {worker.url}" for worker in workers if worker.host != host]
            start += [f"    launch proxy {_words(proxy)}", f"    await_health {at} proxy"]
        start.append("    ;;")
    values = {
        "NAME": name,
        "FIRST": first,
        "HOSTS": " ".join(hosts),
        "SERVERS": "\n".join(servers),
        "START": "\n".join(start),
        "READY": str(READY_SECONDS),
        "GRACE": str(10 * GRACE_SECONDS),
    }
    text = _TEMPLATE
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def _launch(worker: Worker, command: Sequence[str]) -> str:
    gpus = ",".join(map(str, worker.gpus))
    return f"launch {worker.name} env CUDA_VISIBLE_DEVICES={gpus} {_words(command)}"


def _words(command: Sequence[str]) -> str:
    return " ".join(map(_word, command))


def _word(word: str) -> str:
    rest = word.removeprefix("$here")
    return shlex.quote(word) if rest == word else f'"$here"{shlex.quote(rest)}'
