#!/bin/bash
# Starts a run, or goes on with it where an earlier job was cut off, or does nothing when it is done:
#   run-or-resume.sh RUN_DIRECTORY RUN_FILE [--set KEY=VALUE ...]
# RUN_DIRECTORY is <runs_dir>/<name> of the run. What is given after RUN_FILE holds for the start; a resumed run goes on
# with what it was started with.
set -euo pipefail

run=${1:?the directory of the run}
file=${2:?the TOML file of the run}
shift 2

if [[ ! -f $run/config.json ]]; then
    exec agentrl train "$file" "$@"
elif [[ -f $run/summary.json ]] && grep -q '"ended": *"done"' "$run/summary.json"; then
    echo "the run in $run is done"
else
    exec agentrl train --resume "$run"
fi
