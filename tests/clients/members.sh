#!/bin/bash
# members.sh: twill refuses damaged, foreign, duplicate and stale members with a reason, and a refusal changes nothing.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/array.sh"

array() { # makes a stopped RAID-5 that holds the data of $scratch/data
    make_members 4 24M
    "$TWILL" create --level 5 --chunk 64K --name members --assume-clean "${members[@]}"
    serve "${members[@]}"
    head -c 8M /dev/urandom >"$scratch/data"
    nbdcopy --flush "$scratch/data" "$uri"
    stop_array
}

holds_data() { nbdcopy "$uri" "$scratch/now"; cmp -n 8388608 "$scratch/data" "$scratch/now"; }

refused() { # COMMAND…: fails, prints a reason, and changes no member
    local before after code=0
    before=$(sha256sum "${members[@]}")
    timeout 20 "$@" >"$scratch/said" 2>&1 || code=$?
    ((code != 0)) || die "not refused: $*"
    ((code != 124 && code < 128)) || die "status $code: $*"
    [[ -s $scratch/said ]] || die "refused without a word: $*"
    after=$(sha256sum "${members[@]}")
    [[ $before == "$after" ]] || die "refused, but a member was changed: $*"
}

damage() { # FILE OFFSET: flips the bits of one byte
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "%b" "\\x$(printf %x $((byte ^ 255)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

create_keeps_what_is_there() {
    array
    refused "$TWILL" create --level 5 --chunk 64K --name again --assume-clean "${members[@]}"
    mke2fs -q -F -t ext4 "$scratch/fs" 24M
    local kept=$scratch/member9
    cp "$scratch/fs" "$kept"; members[3]=$kept
    refused "$TWILL" create --level 5 --chunk 64K --name again --assume-clean "${members[@]:1}"
}

flipped_bit() { # a device with a damaged superblock is no member; the array runs without it
    array
    local at
    for at in 4096 4104 4144 4200 4260; do
        cp --sparse=always "${members[1]}" "$scratch/kept"
        damage "${members[1]}" "$at"
        "$TWILL" examine "${members[1]}" >"$scratch/said" 2>&1 && die "examine took a superblock with byte $at flipped"
        [[ -s $scratch/said ]] || die "no word about byte $at"
        mv "$scratch/kept" "${members[1]}"
    done
}

cut_short() {
    array
    truncate -s 4100 "${members[2]}"
    "$TWILL" examine "${members[2]}" >"$scratch/said" 2>&1 && die "examine took a member of 4100 bytes"
    [[ -s $scratch/said ]] || die "no word about it"
}

same_member_twice() {
    array
    cp --sparse=always "${members[0]}" "$scratch/twin"
    refused "$TWILL" assemble "${members[0]}" "$scratch/twin" "${members[1]}" "${members[2]}" "${members[3]}"
}

too_few() {
    array
    refused "$TWILL" assemble "${members[0]}" "${members[1]}"
}

stale_member() {
    array
    serve "${members[@]}"
    fail_member "${members[2]}"
    new_data
    stop_array
    "$TWILL" assemble --explain "${members[@]}" >"$scratch/said" 2>&1 || true
    grep -q "$(basename "${members[2]}")" "$scratch/said" || die "assemble --explain does not name it: $(cat "$scratch/said")"
    serve "${members[@]}"
    holds_data
    stop_array
}

# New data where the stale member holds old data: a read of the stale member would differ.
new_data() {
    head -c 8M /dev/urandom >"$scratch/data"
    nbdcopy --flush "$scratch/data" "$uri"
}

json() {
    array
    "$TWILL" examine --json "${members[0]}" | jq -e . >/dev/null
    "$TWILL" assemble --explain --json "${members[@]}" | jq -e . >/dev/null
}

run_case "create keeps arrays and file systems" create_keeps_what_is_there
run_case "flipped bits in a superblock" flipped_bit
run_case "a member cut short" cut_short
run_case "the same member twice" same_member_twice
run_case "too few members" too_few
run_case "a stale member" stale_member
run_case "output as JSON" json
summary
