#!/bin/bash
# vm: --mem 3G --mod raid0,raid1,raid10,raid456 --timeout 1500
# twill-then-md.sh: arrays that twill made and wrote run under md: the same data, and md's scrub finds no mismatch.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/md.sh"

written_by_twill() { # MEMBERS FAILURES OPTIONS OF twill create…
    local count=$1 failures=$2 size i; shift 2
    ram_members "$count"
    "$TWILL" create --name vm --assume-clean "$@" "${members[@]}"
    serve "${members[@]}"
    size=$(array_size)
    head -c "$((size / 2))" "$RANDOM_DATA" | nbdcopy --flush - "$uri"
    for ((i = 0; i < failures; i++)); do fail_member "${members[i * 2]}"; done
    small_writes
    nbdcopy --connections=2 "$uri" "$scratch/wanted"
    stop_array

    md_assemble "${members[@]}"
    [[ $(blockdev --getsize64 /dev/md0) == "$size" ]] || die "md sees $(blockdev --getsize64 /dev/md0) bytes, twill $size"
    same /dev/md0 "$size" md
    [[ ! -e /sys/block/md0/md/degraded || $(</sys/block/md0/md/degraded) == "$failures" ]] ||
        die "md has $(</sys/block/md0/md/degraded) members missing, twill failed $failures"
    ((failures)) || md_check
    md_stop
}

run_case "raid5, 64K" written_by_twill 6 0 --level 5 --chunk 64K
run_case "raid6, 64K" written_by_twill 6 0 --level 6 --chunk 64K
run_case "raid5, 512K, right-asymmetric, metadata 1.1" written_by_twill 4 0 --level 5 --chunk 512K --layout right-asymmetric --metadata 1.1
run_case "raid6, 4K, left-symmetric, metadata 1.0" written_by_twill 5 0 --level 6 --chunk 4K --metadata 1.0
run_case "raid4, 64K" written_by_twill 4 0 --level 4 --chunk 64K
run_case "raid0, 64K" written_by_twill 4 0 --level 0 --chunk 64K
run_case "raid1" written_by_twill 3 0 --level 1
run_case "raid10, near, 64K" written_by_twill 4 0 --level 10 --chunk 64K
run_case "raid10, far, 64K, odd members" written_by_twill 5 0 --level 10 --chunk 64K --layout f2
run_case "raid5, one failed" written_by_twill 6 1 --level 5 --chunk 64K
run_case "raid6, two failed" written_by_twill 6 2 --level 6 --chunk 64K
summary
