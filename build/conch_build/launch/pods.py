"""Scripts that start a server whose engine spans several pods of a LeaderWorkerSet: MPI over ssh among them.

Every pod of a group has the same key pair: by it a worker knows its leader, and a leader its workers. Who runs the
pods, and what else is in them, is not known here.
"""

from __future__ import annotations

from conch_build.launch.arrangement import Arrangement
from conch_build.launch.ranks import rank_script
from conch_build.launch.server import ServerFlags

SSH_PORT = 2222
ADMIN_KEY = "${ADMIN_KEY}"
"""What the flags have as their key; the leader's environment knows it."""
_RANK = "${OMPI_COMM_WORLD_RANK}"

_WORKER = """#!/bin/sh
set -eu
umask 077
cp @keys@/key /tmp/key
export -p > /tmp/environment  # ssh would start the ranks without what the image sets
exec /usr/sbin/sshd -D -e -f /dev/null -h /tmp/key -p @port@ -o PidFile=none -o UsePAM=no -o StrictModes=no \\
  -o AuthorizedKeysFile=@keys@/key.pub -o PasswordAuthentication=no -o KbdInteractiveAuthentication=no \\
  -o 'ForceCommand=. /tmp/environment; eval "$SSH_ORIGINAL_COMMAND"'
"""
# The agent is named in the variables of Open MPI 4 and 5; addresses, as names would lose their domains.
_LEADER = """#!/bin/sh
set -eu
umask 077
cp @keys@/key /tmp/key
echo "* $(cat @keys@/key.pub)" > /tmp/known_hosts
agent="ssh -p @port@ -i /tmp/key -o UserKnownHostsFile=/tmp/known_hosts -o BatchMode=yes -o ConnectTimeout=5"
hosts=$(hostname):@gpus@ node=1
while [ "$node" -lt "$LWS_GROUP_SIZE" ]; do
  name=${LWS_LEADER_ADDRESS%%.*}-$node.${LWS_LEADER_ADDRESS#*.}
  until address=$(getent hosts "$name") && $agent "${address%% *}" true; do sleep 2; done
  hosts=$hosts,${address%% *}:@gpus@ node=$((node + 1))
done
export OMPI_MCA_plm_rsh_agent="$agent" PRTE_MCA_plm_ssh_agent="$agent"
exec mpirun --allow-run-as-root -n @ranks@ --host "$hosts" --map-by slot --bind-to none sh @scripts@/rank.sh
"""


def pod_scripts(flags: ServerFlags, arrangement: Arrangement, scripts: str, keys: str) -> dict[str, str]:
    """By their names. They lie in the folder `scripts`; `keys` has `key` and `key.pub`. They write into /tmp."""
    told = {
        "@keys@": keys,
        "@scripts@": scripts,
        "@port@": SSH_PORT,
        "@gpus@": arrangement.gpus_per_node,
        "@ranks@": arrangement.world_size,
    }
    filled = {"leader.sh": _LEADER, "worker.sh": _WORKER}
    for name in filled:
        for marker, value in told.items():
            filled[name] = filled[name].replace(marker, str(value))
    return {**filled, "rank.sh": rank_script(flags, arrangement, _RANK, ADMIN_KEY)}
