#!/bin/bash
# nbd.sh: libnbd's and QEMU's tools against the export.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/array.sh"

array() { # LEVEL: serves an array of six members
    make_members 6 24M
    local chunk=(--chunk 64K)
    [[ $1 != 1 ]] || chunk=() # RAID-1 has none
    "$TWILL" create --level "$1" "${chunk[@]}" --name clients --assume-clean "${members[@]}"
    serve "${members[@]}"
}

info() {
    array 5
    nbdinfo --json "$uri" >"$scratch/info"
    nbdinfo --list "$uri" >/dev/null
    jq -e '.exports[0] | .["export-size"] > 100000000 and .is_read_only == false and .can_flush and .can_fua and .can_zero
        and .can_trim and .can_multi_conn and (.contexts | index("base:allocation")) and .block_size_minimum <= 4096' \
        "$scratch/info" >/dev/null || die "nbdinfo: $(cat "$scratch/info")"
    nbdinfo --map "$uri" >/dev/null
    stop_array
}

copy() { # LEVEL: copies random bytes in and out, over one connection and many
    array "$1"
    local size; size=$(array_size)
    head -c "$size" /dev/urandom >"$scratch/in"
    nbdcopy --flush --connections=4 --requests=64 "$scratch/in" "$uri"
    nbdcopy --connections=4 --requests=64 "$uri" "$scratch/out"
    cmp "$scratch/in" "$scratch/out"
    nbdcopy --connections=1 --requests=1 --request-size=4096 "$uri" - | cmp - "$scratch/in"
    fail_member "${members[0]}"
    nbdcopy --connections=4 "$uri" - | cmp - "$scratch/in"
    stop_array
    # The array holds the same data after a restart without the failed member.
    serve "${members[@]}"
    nbdcopy "$uri" - | cmp - "$scratch/in"
    stop_array
}

qemu_convert() {
    command -v qemu-img >/dev/null || skip "qemu-img is not installed"
    array 5
    local size; size=$(array_size)
    # A qcow2 with holes between its data, so that qemu-img writes, zeroes and skips.
    qemu-img create -q -f qcow2 "$scratch/in.qcow2" "$size"
    qemu-io -f qcow2 -c 'write -P 17 0 1M' -c 'write -P 34 5M 64k' -c 'write -P 51 7340544 12k' -c 'write -z 20M 3M' \
        "$scratch/in.qcow2" >/dev/null
    qemu-img convert -n -f qcow2 -O raw "$scratch/in.qcow2" "$uri"
    qemu-img compare -f qcow2 -F raw "$scratch/in.qcow2" "$uri"
    fail_member "${members[3]}"
    qemu-img compare -f qcow2 -F raw "$scratch/in.qcow2" "$uri"
    qemu-img convert -f raw -O qcow2 "$uri" "$scratch/out.qcow2"
    qemu-img compare "$scratch/in.qcow2" "$scratch/out.qcow2"
    stop_array
}

qemu_io() { # LEVEL
    command -v qemu-io >/dev/null || skip "qemu-io is not installed"
    array "$1"
    qemu-io -f raw -c 'write -P 1 0 2M' -c 'write -f -P 2 64k 4k' -c 'flush' -c 'write -z 128k 64k' -c 'write -z -u 256k 512k' \
        -c 'discard 1M 512k' -c 'aio_write -P 3 2M 1M' -c 'aio_write -P 4 3M 1M' -c 'aio_flush' \
        -c 'read -P 1 0 64k' -c 'read -P 2 64k 4k' -c 'read -P 1 68k 60k' -c 'read -P 0 128k 64k' -c 'read -P 0 256k 512k' \
        -c 'read -P 3 2M 1M' -c 'read -P 4 3M 1M' "$uri" >"$scratch/log" 2>&1 || { cat "$scratch/log"; die "qemu-io"; }
    if grep -iE 'failed|error|verification' "$scratch/log"; then die "qemu-io: $(cat "$scratch/log")"; fi
    fail_member "${members[1]}"
    qemu-io -f raw -c 'read -P 1 0 64k' -c 'read -P 2 64k 4k' -c 'read -P 0 256k 512k' -c 'read -P 4 3M 1M' "$uri" \
        >"$scratch/log" 2>&1 || { cat "$scratch/log"; die "qemu-io, degraded"; }
    if grep -iE 'failed|error|verification' "$scratch/log"; then die "qemu-io, degraded"; fi
    stop_array
}

run_case "nbdinfo" info
for level in 0 1 4 5 6 10; do
    [[ $level == 0 ]] || run_case "nbdcopy raid$level" copy $level
done
run_case "qemu-img convert and compare" qemu_convert
run_case "qemu-io raid5" qemu_io 5
run_case "qemu-io raid6" qemu_io 6
summary
