#!/bin/bash
# vm: --mem 3G --mod raid0,raid1,raid10,raid456 --timeout 1500
# md-then-twill.sh: arrays that md made and wrote are served by twill, degraded too, and run under md again after twill
# wrote them: the same data each time, and md's scrub finds no mismatch.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/md.sh"

made_by_md() { # MEMBERS ABSENT OPTIONS OF mdadm --create…
    local count=$1 absent=$2 size i; shift 2
    local -a present offset=(--data-offset=1M)
    [[ "$*" != *metadata=1.0* ]] || offset=() # its data is at the start
    ram_members "$count"
    mdadm --quiet --create /dev/md0 --run --assume-clean --raid-devices="$count" "${offset[@]}" "$@" "${members[@]}" \
        2>"$scratch/mdadm" || { cat "$scratch/mdadm"; die "mdadm --create"; }
    size=$(blockdev --getsize64 /dev/md0)
    head -c "$size" "$RANDOM_DATA" >"$scratch/wanted"
    dd if="$scratch/wanted" of=/dev/md0 bs=1M oflag=direct status=none
    md_stop

    present=()
    for ((i = 0; i < count; i++)); do
        if ((i % 2 == 1 && i / 2 < absent)); then continue; fi
        present+=("${members[i]}")
    done
    serve "${present[@]}"
    [[ $(array_size) == "$size" ]] || die "twill sees $(array_size) bytes, md $size"
    nbdcopy --connections=2 "$uri" "$scratch/back"
    same "$scratch/back" "$size" twill
    small_writes
    nbdcopy --connections=2 "$uri" "$scratch/wanted"
    stop_array

    md_assemble "${present[@]}"
    same /dev/md0 "$size" "md, after twill wrote,"
    ((absent)) || md_check
    md_stop
}

run_case "raid0, 64K" made_by_md 4 0 --level=0 --chunk=64
run_case "raid1" made_by_md 3 0 --level=1 --bitmap=none
run_case "raid4, 64K" made_by_md 4 0 --level=4 --chunk=64 --bitmap=none
for layout in left-symmetric left-asymmetric right-symmetric right-asymmetric; do
    run_case "raid5, 64K, $layout" made_by_md 5 0 --level=5 --chunk=64 --layout=$layout --bitmap=none
done
run_case "raid5, 512K, internal bitmap" made_by_md 4 0 --level=5 --chunk=512 --bitmap=internal
run_case "raid5, 4K, metadata 1.0" made_by_md 3 0 --level=5 --chunk=4 --metadata=1.0 --bitmap=none
run_case "raid5, 128K, metadata 1.1" made_by_md 6 0 --level=5 --chunk=128 --metadata=1.1 --bitmap=none
run_case "raid6, 64K" made_by_md 6 0 --level=6 --chunk=64 --bitmap=none
run_case "raid6, 64K, right-asymmetric" made_by_md 5 0 --level=6 --chunk=64 --layout=right-asymmetric --bitmap=none
run_case "raid10, near 2" made_by_md 4 0 --level=10 --chunk=64 --layout=n2 --bitmap=none
run_case "raid10, far 2" made_by_md 4 0 --level=10 --chunk=64 --layout=f2 --bitmap=none
run_case "raid10, offset 2, odd members" made_by_md 5 0 --level=10 --chunk=64 --layout=o2 --bitmap=none
run_case "raid5, one absent" made_by_md 5 1 --level=5 --chunk=64 --bitmap=none
run_case "raid6, two absent" made_by_md 6 2 --level=6 --chunk=64 --bitmap=none
run_case "raid10, one absent" made_by_md 4 1 --level=10 --chunk=64 --layout=n2 --bitmap=none
summary
