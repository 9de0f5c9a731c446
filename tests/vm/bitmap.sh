#!/bin/bash
# vm: --mem 3G --mod raid1,raid10,raid456 --timeout 1800
# takes: 115 s
# bitmap.sh: after a crash md resyncs by twill's bitmap and twill by md's, and only where the bitmap marks stripes. Parity
# damaged on purpose shows which stripes were resynced: marked ones are repaired, others are not.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/md.sh"

CHUNK=65536

# The member and the byte of the parity of stripe S, left-symmetric over ${#members[@]} members.
parity_of() { # S
    local count=${#members[@]} offset
    offset=$("$TWILL" examine --json "${members[0]}" | jq .members[0].superblock.data_offset_bytes)
    echo "${members[count - 1 - $1 % count]} $((offset + $1 * CHUNK))"
}

damage() { # S: fills 4 KiB of the parity of stripe S with noise
    local member at
    read -r member at < <(parity_of "$1")
    dd if=/dev/urandom of="$member" bs=4096 seek=$((at / 4096)) count=1 oflag=direct status=none
}

dirty_bits() { # MEMBER: the number of dirty bits, as mdadm counts them
    mdadm --examine-bitmap "$1" 2>/dev/null | sed -n 's/.*bits (chunks), \([0-9]*\) dirty.*/\1/p'
}

has_bits() { [[ $(dirty_bits "$1") == "$2" ]]; } # MEMBER N

md_mismatches() { # sectors that disagree, by md's own scrub
    mdadm --quiet --wait /dev/md0 || true
    echo check >/sys/block/md0/md/sync_action
    mdadm --quiet --wait /dev/md0 || true
    while [[ $(</sys/block/md0/md/sync_action) != idle ]]; do sleep 0.1; done
    cat /sys/block/md0/md/mismatch_cnt
}

# Stripe 150 was not written and keeps its 8 damaged sectors; all other stripes agree.
only_unmarked_is_wrong() {
    local wrong
    wrong=$(md_mismatches)
    [[ $wrong == 8 ]] || die "md finds mismatch_cnt $wrong, not the 8 sectors of the stripe that nobody wrote"
}

md_is_cut_twill_goes_on() { # OPTIONS OF mdadm --create…
    local i
    ram_members 4
    mdadm --quiet --create /dev/md0 --run --assume-clean --raid-devices=4 --level=5 --chunk=64 --data-offset=1M \
        --bitmap=internal --bitmap-chunk=64K "$@" "${members[@]}" 2>"$scratch/mdadm" || { cat "$scratch/mdadm"; die "mdadm --create"; }
    echo 1 >/sys/block/md0/md/bitmap/time_base
    echo 1000 >/sys/block/md0/md/safe_mode_delay
    wait_for "md's bitmap without bits" has_bits "${members[0]}" 0
    echo 600 >/sys/block/md0/md/bitmap/time_base # from here on bits stay set, however long the rest takes
    dd if=$RANDOM_DATA of=/dev/md0 bs=64K count=3 oflag=direct status=none
    dd if=$RANDOM_DATA of=/dev/md0 bs=4K seek=4000 count=1 oflag=direct status=none
    # Copies what a power cut would leave: md keeps running while its members are copied.
    for ((i = 0; i < 4; i++)); do dd if=/dev/ram$i of="$scratch/cut$i" bs=1M iflag=direct status=none; done
    dd if=/dev/md0 of="$scratch/wanted" bs=1M iflag=direct status=none
    md_stop
    for ((i = 0; i < 4; i++)); do dd if="$scratch/cut$i" of=/dev/ram$i bs=1M oflag=direct status=none; done
    i=$(dirty_bits "${members[0]}")
    ((i > 0 && i < 8)) || die "md left $i bits, it wrote to two places"
    damage 0
    damage 150
    serve "${members[@]}"
    "$TWILL" status --wait --control "$control" >/dev/null
    same_through_nbd
    stop_array
    md_assemble "${members[@]}"
    same /dev/md0 "$(blockdev --getsize64 /dev/md0)" md
    only_unmarked_is_wrong
    md_stop
}

same_through_nbd() {
    nbdcopy "$uri" "$scratch/back"
    same "$scratch/back" "$(array_size)" twill
}

twill_is_killed_md_goes_on() { # OPTIONS OF twill create…
    ram_members 4
    "$TWILL" create --name vm --level 5 --chunk 64K --assume-clean --bitmap internal --bitmap-chunk 64K "$@" "${members[@]}"
    serve "${members[@]}"
    head -c 24M "$RANDOM_DATA" | nbdcopy --flush - "$uri"
    stop_array
    [[ $(dirty_bits "${members[0]}") == 0 ]] || die "a clean stop leaves bits: $(mdadm --examine-bitmap "${members[0]}")"
    serve "${members[@]}"
    # The load writes only stripe 0.
    (cd "$scratch" && fio --name=load --ioengine=nbd --uri="$uri" --rw=randwrite --bs=4k --size=192k --iodepth=16 \
        --time_based --runtime=600 --thread >"$scratch/load.log" 2>&1 </dev/null) & load=$!
    wait_for "a bit of twill's" has_bits "${members[2]}" 1
    sleep 1 # more load
    kill -0 $load || { cat "$scratch/load.log"; die "the load ended before the server was killed"; }
    kill_server
    wait $load 2>/dev/null || true
    local bits
    bits=$(dirty_bits "${members[2]}")
    [[ $bits == 1 ]] || die "twill left $bits bits, it wrote to one stripe: $(mdadm --examine-bitmap "${members[2]}")"
    damage 0
    damage 150
    md_assemble "${members[@]}"
    only_unmarked_is_wrong
    md_stop
}

md_leaves_spread_bits_alone() {
    ram_members 4
    "$TWILL" create --name vm --level 5 --chunk 64K --assume-clean --bitmap internal --bitmap-mapping dblock "${members[@]}" >/dev/null
    ! mdadm --quiet --assemble --run /dev/md0 "${members[@]}" 2>"$scratch/mdadm" || die "md starts an array whose bits it would misread"
    md_stop
    serve "${members[@]}"
    head -c 4M "$RANDOM_DATA" | nbdcopy --flush - "$uri"
    stop_array
}

run_case "md is cut, twill goes on, metadata 1.1" md_is_cut_twill_goes_on --metadata=1.1
run_case "twill is killed under load, md goes on" twill_is_killed_md_goes_on
run_case "md does not start an array whose bits are spread" md_leaves_spread_bits_alone
long_case "twill is killed under load, md goes on, metadata 1.0" twill_is_killed_md_goes_on --metadata 1.0
summary
