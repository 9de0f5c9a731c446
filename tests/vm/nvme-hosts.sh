#!/bin/bash
# vm: --mem 3G --mod nvmet-tcp,null_blk,veth,sch_netem,raid456 --timeout 10800
# takes: 120 s
# nvme-hosts.sh: an array on other machines and two hosts, of which one sleeps while the other takes over; and targets that come
# back without what was not flushed. The targets are the kernel's, and `twill target`.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/nvmet.sh"

# Rounds of a short run and of a long one.
ROUNDS=3
[[ -z ${TWILL_ALL_CASES:-} ]] || ROUNDS=100 CASE_SECONDS=5000
SLEEPERS_WORDS=WRITTENBYTHESLEEPER

fenced() { # TARGETS: as often as there are rounds
    local round sleeper= start=$SECONDS
    as_host a
    drives 3
    "$1" 3
    create 5
    # A process that sleeps does not end; the status that `finish` sees is the case's.
    trap 'code=$?; set +e; kill -CONT $sleeper 2>/dev/null; (exit $code); finish' EXIT
    for ((round = 1; round <= ROUNDS; round++)); do sleeps_and_wakes; done
    figure "$1: $ROUNDS hosts slept and woke in $((SECONDS - start)) s, and none changed a byte"
}

sleeps_and_wakes() { # one host sleeps with writes on their way, another takes over, the first wakes
    as_host a
    serve_members
    sleeper=$server
    begin_sleepers_writes
    wait_for "the sleeper's writes" sleepers_words_are_there
    kill -STOP "$sleeper"
    wait_for "the sleeper's sleep" is_asleep "$sleeper"
    as_host b
    serve_members --take-over
    nbdcopy --flush "$scratch/block" "$uri"
    if sleepers_words_are_there; then die "round $round: not everything was written over"; fi
    # Every fifth time the new host has left when the old one wakes: no reservation is there any more.
    ((round % 5 != 2)) || stop_array
    kill -CONT "$sleeper"
    as_host a
    code=0
    wait "$writes" || code=$?
    ((code != 0)) || die "round $round: the fenced host's client saw no error"
    if nbdcopy "$scratch/block" "$uri" 2>/dev/null; then die "round $round: the sleeper writes"; fi
    if sleepers_words_are_there; then die "round $round: the sleeper's writes are on a drive"; fi
    if ((round % 5 != 2)); then
        wait_for_event fenced "has taken the member over"
        [[ $(status | jq -c '[.members[].state] | unique') == '["in-sync"]' ]] || die "round $round: a member failed for a fence: $(status)"
    fi
    kill -9 "$sleeper"
    wait "$sleeper" 2>/dev/null || true
    as_host b
    ((round % 5 != 2)) || serve_members
    same_block
    agrees_everywhere
    stop_array
}
begin_sleepers_writes() { # until they fail
    (cd "$scratch" && fio --name=sleeper --ioengine=nbd --uri="$uri" --rw=randwrite --bsrange=4k-32k --blockalign=4k --size=1M --iodepth=16 --time_based --runtime=600 \
        --buffer_pattern="\"$SLEEPERS_WORDS\"" --thread >"$scratch/sleeper.log" 2>&1 </dev/null) & writes=$!
}
is_asleep() { ! grep -hq "^State:.[RSD]" /proc/"$1"/task/*/status; }
sleepers_words_are_there() { # on any drive, as it is and not as it was cached
    local i
    for ((i = 1; i <= 3; i++)); do
        (($(held_by_drive $i | grep -ac "$SLEEPERS_WORDS") == 0)) || return 0
    done
    return 1
}
same_block() {
    nbdcopy "$uri" "$scratch/read"
    cmp -n $((1 << 20)) "$scratch/block" "$scratch/read" || die "other data than was written"
}

loses_what_was_not_flushed() { # TARGETS: a machine loses power under load and comes back within the limit
    as_host a
    drives 3 8
    "$1" 3
    create 5
    serve_members --member-time-limit 120
    nbdcopy --flush "$scratch/block" "$uri"
    begin_load
    local time has_lost=
    for ((time = 1; time <= 10; time++)); do # whatever was flushed just before is not lost
        wait_for_writes nullb2 40
        "$1_go" 2
        held_by_drive 2 >"$scratch/before"
        loses_power 2
        held_by_drive 2 >"$scratch/after"
        "$1_come_back" 2
        wait_for "the member's end, for the ${time}th time" has_events "$time" member-ended "may be lost"
        wait_for "the member's return, for the ${time}th time" has_events "$time" member-re-added
        wait_for "the member" all_in_sync
        cmp -s "$scratch/before" "$scratch/after" || { has_lost=1; break; }
    done
    [[ $has_lost ]] || die "the drive has lost nothing, $((time - 1)) times"
    end_load # which reads what it wrote
    agrees_everywhere
    # Without another member the data comes from the one that had lost it.
    fail_member "$(member 1 .path)"
    same_block
    small_writes
    stop_array
}
held_by_drive() { dd if=/dev/nullb"$1" iflag=direct bs=1M status=none; } # DRIVE
kernel_targets_go() {
    close_port "$1"
    echo 0 >"$(subsystem "$1")/namespaces/1/enable"
}
kernel_targets_come_back() {
    echo 1 >"$(subsystem "$1")/namespaces/1/enable"
    open_port "$1"
}
twill_targets_go() { kill_target "$1"; }
twill_targets_come_back() { twill_target "$1"; }

survives() { # TARGETS WHAT: 20 times under load something happens to one of the targets; no write fails, and no member
    local round=0 start
    as_host a
    drives 3
    "$1" 3
    create 5
    serve_members --member-time-limit 120 --keep-alive-tmo 2
    begin_load
    start=$SECONDS
    for ((round = 0; round < 20; round++)); do
        "$2" $((round % 3 + 1))
        kill -0 "$load" 2>/dev/null || die "fio after $round rounds: $(tail -n 20 "$scratch/load.log")"
    done
    end_load
    none_failed
    agrees_everywhere
    figure "$1: 20 times $2 in $((SECONDS - start)) s, connected again $(status | jq '[.members[].remote.reconnects] | add') times, no error above"
    stop_array
}
killed() { # TARGET
    local before
    before=$(member "$1" .remote.reconnects)
    kill_target "$1"
    sleep 1
    twill_target "$1"
    wait_for "target $1" reconnected "$1" "$before"
}
cut_off() { # TARGET: for longer than the keep-alive time
    local before
    before=$(member "$1" .remote.reconnects)
    cut_link "$1"
    wait_for "the loss" member_is "$1" .remote.state away
    mend_link "$1"
    wait_for "target $1" reconnected "$1" "$before"
}
reconnected() { (($(member "$1" .remote.reconnects) > $2)) && member_is "$1" .remote.state connected; } # TARGET TIMES

run_case "a host that sleeps, nvmet" fenced kernel_targets
long_case "lost caches, nvmet" loses_what_was_not_flushed kernel_targets
long_case "lost caches, twill target" loses_what_was_not_flushed twill_targets
long_case "a target that is killed 20 times" survives twill_targets killed
long_case "a link that is cut 20 times" survives kernel_targets cut_off
# The last one: its targets outlive it.
long_case "a host that sleeps, twill target" fenced twill_targets
figures
summary
