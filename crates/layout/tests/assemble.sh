#!/bin/bash
# Shows arrays that Twill made to the kernel's md: assemble, compare the size, write, stop, assemble again.
#   cargo run -p twill-layout --example new_array DIR && assemble.sh DIR
# Run as root where make_data.py runs. It works on copies and prints a line for each array.
set -euo pipefail
work=$(mktemp -d)
status=0
for array in "$1"/*/; do
    name=$(basename "$array")
    cp --sparse=always -r "$array" "$work/$name"
    loops=()
    for member in "$work/$name"/member*; do loops+=("$(losetup --find --show "$member")"); done
    say=ok
    for pass in 1 2; do
        if ! mdadm --assemble /dev/md127 --run "${loops[@]}" >"$work/log" 2>&1; then say="not assembled: $(<"$work/log")"; break; fi
        size=$(($(</sys/block/md127/size) * 512))
        # RAID-0 with unequal members is larger than the first member says.
        if [[ $name != raid0-zones && $size != $(<"$array/bytes") ]]; then say="size $size, not $(<"$array/bytes")"; fi
        if [[ -e /sys/block/md127/md/degraded && $(</sys/block/md127/md/degraded) != 0 ]]; then say=degraded; fi
        if [[ $pass == 1 ]]; then dd if=/dev/urandom of=/dev/md127 bs=1M count=4 oflag=direct status=none; fi
        mdadm --wait /dev/md127 >/dev/null 2>&1 || true
        if [[ -e /sys/block/md127/md/sync_action ]]; then
            echo check >/sys/block/md127/md/sync_action 2>/dev/null || true
            mdadm --wait /dev/md127 >/dev/null 2>&1 || true
            mismatches=$(</sys/block/md127/md/mismatch_cnt)
            [[ $mismatches == 0 ]] || say="$mismatches mismatches"
        fi
        mdadm --stop /dev/md127 >/dev/null 2>&1
    done
    for loop in "${loops[@]}"; do losetup --detach "$loop"; done
    echo "$name: $say"
    [[ $say == ok ]] || status=1
done
rm -rf "$work"
exit $status
