#!/bin/bash
# vm: --mem 3G --mod nvmet-tcp,null_blk,veth,sch_netem,raid456 --timeout 2400
# takes: 250 s
# nvme-member.sh: members are namespaces of the kernel's nvmet: every digest, secrets, reservations, links that are cut or
# swallow everything, and namespaces that go, shrink or are replaced.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/nvmet.sh"

begun() { # LEVEL OPTION…: an array of four namespaces is served with these options
    local level=$1; shift
    as_host a
    drives 4
    kernel_targets 4
    create "$level"
    serve_members "$@"
}

verified() { # LEVEL OPTION…: what is written over the network is read back, here and by md on the drives
    local size
    begun "$@"
    [[ $(status | jq '[.members[].remote | select(.state == "connected" and .reserved)] | length') == 4 ]] || die "status: $(status)"
    small_writes
    size=$(array_size)
    head -c "$size" $RANDOM_DATA >"$scratch/data"
    nbdcopy --flush "$scratch/data" "$uri"
    small_writes
    agrees_everywhere
    nbdcopy --connections=2 "$uri" "$scratch/wanted"
    none_failed
    stop_array
    remove_exports
    local_members
    md_assemble "${members[@]}"
    same /dev/md0 "$size" md
    md_check
    md_stop
}
remove_exports() { local i; for ((i = 1; i <= 4; i++)); do close_port $i; remove_namespace $i; done; }


proven() { # right, wrong and missing secrets, of this host and of the target
    local host_secret target_secret other
    begun_without_an_array
    host_secret=$(nvme gen-dhchap-key --hmac=1 --nqn $HOST-a) target_secret=$(nvme gen-dhchap-key --hmac=2 --nqn "$(nqn 1)")
    other=$(nvme gen-dhchap-key --hmac=1 --nqn $HOST-a)
    (umask 077; echo "$host_secret" >"$scratch/secret"; echo "$target_secret" >"$scratch/target"; echo "$other" >"$scratch/other")
    mkdir "$NVMET/hosts/$HOST-a"
    echo "$host_secret" >"$NVMET/hosts/$HOST-a/dhchap_key"
    local i
    for i in 1 2 3 4; do
        echo 0 >"$(subsystem $i)/attr_allow_any_host"
        ln -s "$NVMET/hosts/$HOST-a" "$(subsystem $i)/allowed_hosts/"
    done
    is_refused "--dhchap-secret" create 5
    is_refused "not authenticated" create 5 --dhchap-secret "$scratch/other"
    local group
    for group in null ffdhe2048 ffdhe3072; do
        echo $group >"$NVMET/hosts/$HOST-a/dhchap_dhgroup"
        is_refused "has no md superblock" "$TWILL" examine "${identity[@]}" --dhchap-secret "$scratch/secret" "${members[0]}"
    done
    # The target proves itself, too: to a host that asks, with the secret that the host expects.
    is_refused "wants it to prove itself\|not authenticated" create 5 --dhchap-secret "$scratch/secret" --dhchap-ctrl-secret "$scratch/target"
    echo "$target_secret" >"$NVMET/hosts/$HOST-a/dhchap_ctrl_key"
    is_refused "not authenticated" create 5 --dhchap-secret "$scratch/secret" --dhchap-ctrl-secret "$scratch/other"
    create 5 --dhchap-secret "$scratch/secret" --dhchap-ctrl-secret "$scratch/target"
    serve_members --dhchap-secret "$scratch/secret" --dhchap-ctrl-secret "$scratch/target"
    small_writes
    none_failed
    stop_array
    # A host that the target does not know.
    identity=(--hostnqn "$HOST-b")
    is_refused "refused this host" create 5 --dhchap-secret "$scratch/secret"
}
begun_without_an_array() {
    as_host a
    drives 4
    kernel_targets 4 "${1:-1}"
}
is_refused() { # WORDS COMMAND…: it fails and says these words
    local words=$1; shift
    if "$@" >"$scratch/refused" 2>&1; then die "not refused: $*"; fi
    grep -q -e "$words" "$scratch/refused" || die "it does not say '$words' but: $(cat "$scratch/refused")"
}

reserved() { # one host at a time
    begun 5
    small_writes
    local first=$server
    as_host b
    is_refused "--take-over" serve_once
    is_refused "has reserved it" "$TWILL" examine "${identity[@]}" "${members[0]}"
    serve_members --take-over
    small_writes
    as_host a
    wait_for_event fenced "has taken the member over"
    [[ $(status | jq -c '[.members[].state] | unique') == '["in-sync"]' ]] || die "a member failed for a fence: $(status)"
    if nbdcopy "$scratch/block" "$uri" 2>/dev/null; then die "a fenced host writes"; fi
    kill $first
    wait $first || true
    as_host b
    small_writes
    agrees_everywhere
    stop_array
    # Given up in order: the next host needs no words.
    as_host a
    serve_members
    kill_server
    # A host that was killed gets its own back.
    serve_members
    small_writes
    stop_array
}
serve_once() { timeout 60 "$TWILL" serve --control "$control" --unix "$socket" "${identity[@]}" "${members[@]}"; }

unreserved() { # a target without reservations
    begun_without_an_array 0
    is_refused "--unfenced" create 5
    create 5 --unfenced
    is_refused "--unfenced" serve_once
    serve_members --unfenced
    small_writes
    [[ $(status | jq '[.members[].remote | select(.reserved)] | length') == 0 ]] || die "reserved without reservations"
    stop_array
}

cut_within_the_limit() { # longer than the keep-alive time: no error, and no member fails
    begun 5 --member-time-limit 120 --keep-alive-tmo 2
    begin_load
    cut_link 2
    wait_for_event member-away
    mend_link 2
    wait_for_event member-back
    end_load
    none_failed
    agrees_everywhere
    stop_array
}

cut_beyond_the_limit() { # CUT MEND: writes go on within the limit, and the member comes back by the bitmap
    begun 6
    begin_load
    "$1" 3
    writes_go_on 25
    wait_for_event member-failed
    end_load
    small_writes
    "$2" 3
    wait_for_event member-re-added
    wait_for "the member" all_in_sync
    agrees_everywhere
    # Nothing stale: without two others the data comes from the one that was away.
    fail_member "$(local_name 1)"
    small_writes
    stop_array
}
local_name() { member "$1" .path; } # TARGET: the member as the array names it

port_closed() { # a target that does not listen for a while, or does not know its subsystem
    begun 5 --member-time-limit 120
    begin_load
    close_port 4
    wait_for_event member-away
    sleep 2
    open_port 4
    wait_for_event member-back
    end_load
    none_failed
    agrees_everywhere
    stop_array
}

inaccessible() { # for a while there is no path to a namespace, as its target says (ANA)
    begun 5 --member-time-limit 120
    begin_load
    echo inaccessible >"$NVMET/ports/2/ana_groups/1/ana_state"
    sleep 5
    echo optimized >"$NVMET/ports/2/ana_groups/1/ana_state"
    end_load
    none_failed
    agrees_everywhere
    stop_array
}

disabled() { # a namespace that its target does not serve any more; the target forgets its reservations
    begun 5 --member-time-limit 3
    begin_load
    echo 0 >"$(subsystem 2)/namespaces/1/enable"
    wait_for_event member-away
    wait_for_event member-failed
    echo 1 >"$(subsystem 2)/namespaces/1/enable"
    wait_for_event member-re-added
    wait_for "the member" all_in_sync
    end_load
    agrees_everywhere
    stop_array
}

seen_without_io() { # an event of the target tells of a namespace that has gone, and nothing was sent to it
    begun 5
    sleep 2
    local start=$SECONDS
    echo 0 >"$(subsystem 2)/namespaces/1/enable"
    wait_for_event member-away "namespace"
    # Without an event it would be seen after 30 s.
    ((SECONDS - start < 20)) || die "seen after $((SECONDS - start)) s"
    echo 1 >"$(subsystem 2)/namespaces/1/enable"
    wait_for_event member-back
    none_failed
    stop_array
}

resized() { # smaller: not used any more; larger: nothing happens
    truncate -s ${DRIVE_MIB}M "/run/resized"
    begun_without_an_array
    remove_namespace 2
    add_namespace 2 /run/resized "$(uuid 2)"
    create 5
    serve_members
    small_writes
    resize 2 $((DRIVE_MIB + 8))
    sleep 4
    ! has_event member-ended || die "a namespace that has grown is not used any more"
    resize 2 $((DRIVE_MIB - 8))
    wait_for_event member-ended "smaller"
    small_writes
    wait_for_event member-failed
    stop_array
    rm /run/resized
}
resize() { # TARGET MIB
    truncate -s "$2M" /run/resized
    echo 1 >"$(subsystem "$1")/namespaces/1/revalidate_size"
}

replaced() { # another namespace in the place of one
    begun 5
    small_writes
    remove_namespace 2
    add_namespace 2 /dev/nullb2 "$(uuid 9)"
    wait_for_event member-ended "another namespace has its place"
    small_writes
    wait_for_event member-failed
    stop_array
}

run_case "raid5" verified 5
run_case "raid6 with both digests" verified 6 --hdr-digest --data-digest
long_case "raid5 with digests of headers" verified 5 --hdr-digest
long_case "raid6 with digests of data" verified 6 --data-digest
run_case "DH-HMAC-CHAP" proven
run_case "reservations" reserved
run_case "no reservations" unreserved
long_case "a link that is cut for less than the limit" cut_within_the_limit
long_case "a link that is cut for longer" cut_beyond_the_limit cut_link mend_link
long_case "a link that swallows everything" cut_beyond_the_limit swallow let_through
long_case "a port that is closed for a while" port_closed
long_case "a namespace without a path for a while" inaccessible
run_case "a namespace that is disabled" disabled
long_case "a namespace that is disabled and not used meanwhile" seen_without_io
run_case "a namespace that is resized" resized
run_case "a namespace that is replaced" replaced
figures
summary
