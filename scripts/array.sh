# array.sh: functions that drive an array: scratch space, members, a server, a failure, a stop. scripts/demo.sh and the
# scripts of tests/ source it. The program is $TWILL.
#
#   begin                    makes the folder $scratch; the end of the script removes it and ends the server
#   make_members N SIZE      makes N sparse files in $scratch and sets ${members[@]}
#   serve MEMBER…            starts the server; $uri is the array's address, $socket its socket
#   serve_block MEMBER…      the same with $options as a block device: $BLOCK_DEVICE
#   fail_member MEMBER       marks it failed
#   settled                  waits until no resync or recovery is left; agrees_everywhere also runs `twill check`
#   stop_array               a clean stop; the server has ended when this returns
#   kill_server              SIGKILL; the server has ended when this returns
#   wait_for WHAT COMMAND…   waits until the command succeeds
#   copy_until_enough        copies $TREE to a mounted file system; copies_are_whole reads them back

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PATH=$PATH:/usr/sbin:/sbin
server='' scratch='' socket='' control='' uri=''
members=()
BLOCK_DEVICE=/dev/ublkb0
# Seconds that a wait lasts at most: enough for a slow machine with other work.
PATIENCE=120

say() { printf '%s\n' "$*"; }
die() { printf 'failed: %s\n' "$*" >&2; exit 1; }
skip() { printf '%s\n' "$*"; exit 77; }

begin() {
    scratch=$(mktemp -d "${TWILL_SCRATCH:-${TMPDIR:-/var/tmp}}/twill.XXXXXX")
    socket=$scratch/nbd.sock control=$scratch/control.sock
    uri="nbd+unix:///?socket=$socket"
    trap finish EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

finish() {
    local code=$?
    trap - EXIT
    trap '' INT TERM
    local -a left
    mapfile -t left < <(jobs -p)
    ((${#left[@]} == 0)) || kill "${left[@]}" 2>/dev/null || true
    # A server does not stop under a mounted file system, and `wait` below would wait for programs that use its device.
    if mountpoint -q "$scratch/mnt" 2>/dev/null; then timeout 20 umount "$scratch/mnt" 2>/dev/null || umount -l "$scratch/mnt" || true; fi
    if [[ -n $server ]]; then
        for _ in {1..50}; do kill -0 "$server" 2>/dev/null || break; sleep 0.1; done
        kill -9 "$server" 2>/dev/null || true
    fi
    wait 2>/dev/null || true
    if ((code != 0 && code != 77)) && [[ -s $scratch/server.log ]]; then
        echo "the last lines of the server's log:" >&2
        tail -n 20 "$scratch/server.log" >&2
    fi
    rm -rf --one-file-system "$scratch" # --one-file-system: a mount there may hang without its server
    exit "$code"
}

make_members() { # N SIZE
    local i
    members=()
    for ((i = 0; i < $1; i++)); do
        rm -f "$scratch/member$i"
        truncate -s "$2" "$scratch/member$i"
        members+=("$scratch/member$i")
    done
}

wait_for() { # WHAT COMMAND…
    local end=$((SECONDS + PATIENCE)) what=$1; shift
    until "$@"; do
        ((SECONDS < end)) || die "waited $PATIENCE s for this: $what"
        sleep 0.1
    done
}

serve() { start_server nbd_answers --unix "$socket" "$@"; }
nbd_answers() { [[ -S $socket ]] && nbdinfo --size "$uri" >/dev/null 2>&1; }

# shellcheck disable=SC2086
serve_block() { start_server block_answers "--ublk=${BLOCK_DEVICE#/dev/ublkb}" ${options:-} "$@"; }
block_answers() {
    [[ -S $control && -b $BLOCK_DEVICE ]] && has_a_size "$BLOCK_DEVICE" &&
        "$TWILL" status --control "$control" >/dev/null 2>&1
}

# The kernel makes the node in /dev before the one in /sys; $(<…) on a missing file would end the script.
has_a_size() { # DEVICE
    local sectors
    read -r sectors 2>/dev/null <"/sys/block/${1#/dev/}/size" && ((sectors > 0))
}

start_server() { # ANSWERS WORD…: starts `twill serve WORD…` and waits until the command ANSWERS succeeds
    local answers=$1; shift
    rm -f "$socket" "$control" # left by the previous server, they would look like the new one's
    "$TWILL" serve --control "$control" "$@" >>"$scratch/server.log" 2>&1 </dev/null &
    server=$!
    wait_for "an answer of the server" answered_or_ended "$answers"
    kill -0 "$server" 2>/dev/null || { wait "$server" || true; server=; die "the server did not start"; }
}
answered_or_ended() { "$1" || ! kill -0 "$server" 2>/dev/null; }

# The time limit turns a server that hangs into a failure with a name.
fail_member() { timeout $PATIENCE "$TWILL" fail --control "$control" "$1" || die "twill fail $1: status $?"; }

settled() { timeout 600 "$TWILL" status --wait --control "$control" >/dev/null || die "the resync or recovery does not end"; }

agrees_everywhere() {
    settled
    timeout 600 "$TWILL" check --control "$control" >"$scratch/check" 2>&1 || die "twill check: $(tail -n 3 "$scratch/check")"
}

stop_array() { # OPTION…
    timeout $PATIENCE "$TWILL" stop "$@" --control "$control" || die "twill stop: status $?"
    wait_for "the end of the server after twill stop" ended "$server"
    local code=0
    wait "$server" || code=$?
    server=
    ((code == 0)) || die "the server ended with status $code"
}
ended() { ! kill -0 "$1" 2>/dev/null; }

kill_server() {
    kill -9 "$server"
    wait "$server" 2>/dev/null || true
    server=
}

copy_until_enough() { # copies $TREE to $scratch/mnt again and again, flushes each copy, ends when $scratch/enough exists
    local i
    for ((i = 0; i < 40; i++)); do
        [[ ! -e $scratch/enough ]] || return 0
        cp -r "$TREE" "$scratch/mnt/$i" && sync -f "$scratch/mnt" || return 1
    done
}

copies_are_whole() { # DEVICE: mounts it again and compares what copy_until_enough wrote
    local i count
    count=$(find "$scratch/mnt" -maxdepth 1 -name '[0-9]*' | wc -l)
    umount "$scratch/mnt"
    mount "$1" "$scratch/mnt"
    for ((i = 0; i < count; i++)); do diff -r "$TREE" "$scratch/mnt/$i" || die "the files of copy $i differ from $TREE"; done
}

array_size() { nbdinfo --size "$uri"; }

fio_verify() { # NAME OPTIONS…: fio writes and verifies; the result is JSON in $scratch/NAME.json
    local name=$1; shift
    (cd "$scratch" && fio --name="$name" --ioengine=nbd --uri="$uri" --verify=crc32c --verify_fatal=1 --verify_state_save=0 --iodepth=32 --numjobs=4 \
        --group_reporting --thread --randrepeat=0 --output-format=json --output="$scratch/$name.json" "$@" >"$scratch/$name.log" 2>&1 </dev/null) ||
        { tail -n 5 "$scratch/$name.log"; grep -v '^[ {}]' "$scratch/$name.json" | head -n 5; return 1; }
    [[ $(jq '[.jobs[].error] | add' <(sed -n '/^{/,$p' "$scratch/$name.json")) == 0 ]]
}

# A table of cases: each `run_case NAME FUNCTION ARGUMENT…` runs in a shell of its own, between begin and finish, for at most
# CASE_SECONDS. A case that hangs fails by itself, and the log says where it hangs.
CASE_SECONDS=600
passed=0 failed=0 skipped=0
run_case() {
    local name=$1 code=0 log start=$SECONDS shell watch; shift
    log=$(mktemp)
    (set -euo pipefail; begin; "$@") >>"$log" 2>&1 & shell=$!
    end_when_late $shell >>"$log" 2>&1 & watch=$!
    wait $shell || code=$?
    kill $watch 2>/dev/null || true
    wait $watch 2>/dev/null || true
    case $code in
        0) passed=$((passed + 1)); say "ok      $name ($((SECONDS - start)) s)" ;;
        77) skipped=$((skipped + 1)); say "skipped $name: $(tail -n 1 "$log")" ;;
        *) failed=$((failed + 1)); say "FAILED  $name (status $code, $((SECONDS - start)) s)"; sed 's/^/    /' "$log" ;;
    esac
    rm -f "$log"
}

end_when_late() { # PROCESS: after CASE_SECONDS sends SIGTERM to it and its children, then SIGKILL
    local signal end
    local -a children
    sleep $CASE_SECONDS & end=$!
    trap "kill $end; exit" TERM
    wait $end
    trap - TERM
    echo "still running after $CASE_SECONDS s; its processes:"
    where_processes_are "$1"
    for signal in TERM KILL; do
        mapfile -t children < <(descendants "$1")
        kill -s $signal "$1" "${children[@]}" 2>/dev/null || true
        for ((end = SECONDS + 30; SECONDS < end; )); do ! ended "$1" || return 0; sleep 1; done
    done
}

descendants() { # PROCESS
    ps -e -o pid=,ppid= | awk -v root="$1" '{ parent[$1] = $2 } END { for (p in parent) { for (q = p; q in parent && q != root; q = parent[q]); if (q == root && p != root) print p } }'
}

where_processes_are() { # PROCESS: it and its children, thread by thread, with each thread's kernel stack
    local process thread
    for process in "$1" $(descendants "$1"); do
        ps -o pid,ppid,stat,etime,time,args --no-headers -p "$process" || continue
        for thread in /proc/"$process"/task/*; do
            echo "  thread $(<"$thread/comm"): $(awk '{ print $3 }' "$thread/stat"), in $(tr '\n' ' ' <"$thread/stack" 2>/dev/null || cat "$thread/wchan")"
        done 2>/dev/null
    done
}

# A long case whose subject shorter cases mostly cover: only TWILL_ALL_CASES=1 runs it (cargo xtask kernel-tests --all).
long_case() {
    if [[ -n ${TWILL_ALL_CASES:-} ]]; then run_case "$@"; else skipped=$((skipped + 1)) && say "skipped $1: long; --all runs it"; fi
}

summary() { # prints the last line of a table of cases; its status is the script's
    say "$passed passed, $failed failed, $skipped skipped"
    ((failed == 0))
}
