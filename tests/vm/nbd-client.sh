#!/bin/bash
# vm: --mem 3G --mod nbd,raid456 --timeout 1800
# takes: 120 s
# nbd-client.sh: the kernel's NBD client uses the export over several connections, loses one of them under load, and sees a
# server that ends under load and comes back.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/md.sh"
. "$(dirname "${BASH_SOURCE[0]}")/device.sh"
device=/dev/nbd0
PORT=10809

served() { # LEVEL COUNT: serves an array of ram drives, over TCP and at $socket
    ram_members "$2"
    create "$1" "${members[@]}"
    serve_both
}
serve_both() { serve --tcp 127.0.0.1:$PORT --export-name vm "${members[@]}"; }

connect() { # CONNECTIONS OPTION…
    local count=$1; shift
    nbd-client 127.0.0.1 $PORT $device -N vm -C "$count" -b 4096 "$@" >"$scratch/nbd-client" 2>&1 ||
        die "nbd-client: $(cat "$scratch/nbd-client")"
    wait_for "the size of $device" has_a_size $device
}
connections() { ss -Htn state established "( dport = :$PORT )" | wc -l; }

disconnect() {
    nbd-client -d $device >/dev/null 2>&1 || die "nbd-client -d"
    wait_for "the end of $device" no_client
}
no_client() { [[ ! -e /sys/block/nbd0/pid ]]; }

agrees_with_md() {
    stop_array
    md_assemble "${members[@]}"
    md_check
    md_stop
}

verified() { # LEVEL MEMBERS CONNECTIONS
    served "$1" "$2"
    connect "$3"
    [[ $(connections) == "$3" ]] || die "$(connections) connections, not $3"
    device_fio written --numjobs=2 --rw=randwrite --bsrange=4k-128k --blockalign=4k --size=4M --offset_increment=8M
    device_fio synced --rw=randwrite --bs=4k --size=512k --fsync=16 --sync=dsync
    disconnect
    kernel_saw_no_errors
    agrees_with_md
}

zeroes() {
    served 5 4
    connect 2
    discards_and_zeroes 8 2 1
    disconnect
    kernel_saw_no_errors
    agrees_with_md
}

connection_lost() { # one of four is reset under load: the kernel uses the others, and fio sees no error
    served 5 4
    connect 4
    local load victim
    (until [[ -e $scratch/enough ]]; do device_fio load --numjobs=2 --rw=randwrite --bs=16k --size=2M --offset_increment=10M || exit 1; done) & load=$!
    wait_for_writes nbd0 40
    victim=$(ss -Htn state established "( dport = :$PORT )" | awk 'NR == 1 { sub(/.*:/, "", $3); print $3 }')
    ss -K "( sport = :$victim )" "( dport = :$PORT )" >/dev/null 2>&1 || true
    local left
    left=$(connections)
    wait_for_writes nbd0 40
    : >"$scratch/enough"
    wait $load || die "fio saw it"
    disconnect
    ((left == 3)) || skip "this kernel resets no connection from outside"
    agrees_with_md
}

server_ends() { # HOW: ends under load; the load sees an error, and the next client finds what was flushed
    served 5 4
    connect 2
    "$XTASK" blocks fill --device $device --state "$scratch/state" >/dev/null
    "$XTASK" blocks write --device $device --state "$scratch/state" --seconds 600 >"$scratch/writer" 2>&1 & writer=$!
    wait_for_writes nbd0 40
    kill -0 $writer || die "the load ended by itself: $(cat "$scratch/writer")"
    if [[ $1 == killed ]]; then kill_server; else stop_array --force; fi
    local code=0
    wait $writer || code=$?
    ((code == 1)) || die "the load ended with status $code: $(cat "$scratch/writer")"
    nbd-client -d $device >/dev/null 2>&1 || true
    wait_for "the end of $device" no_client
    serve_both
    connect 2
    "$XTASK" blocks check --device $device --state "$scratch/state" || die "wrong data"
    disconnect
    "$TWILL" status --wait --control "$control" >/dev/null
    agrees_with_md
}

mounted_through() { # a server ends under a mounted file system; the next one gets the requests that waited
    served 5 4
    nbd_device connect
    wait_for "the size of $device" has_a_size $device
    killed_under_a_file_system reconnected
    disconnect
    kernel_saw_no_errors
    "$TWILL" status --wait --control "$control" >/dev/null
    agrees_with_md
}
reconnected() {
    serve_both
    nbd_device reconnect
}
nbd_device() { "$XTASK" nbd-device "$1" --number 0 --socket "$socket" --export vm --connections 2 || die "nbd-device $1"; }

long_case "raid5 over one connection" verified 5 4 1
run_case "raid6 over four connections" verified 6 5 4
run_case "discards and zeroes" zeroes
long_case "one of four connections lost under load" connection_lost
long_case "the server killed under load" server_ends killed
long_case "the server stopped under load" server_ends stopped
run_case "a mounted file system, the server killed and started again" mounted_through
summary
