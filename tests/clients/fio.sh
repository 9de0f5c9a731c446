#!/bin/bash
# fio.sh: fio reads what it wrote: 4 KiB to 1 MiB, random and sequential, four jobs of depth 32, over RAID-5 and RAID-6,
# while no, one or two members fail in the middle of the writes.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/array.sh"

verify() { # LEVEL FAILURES RW BS
    local level=$1 failures=$2 rw=$3 bs=$4 load i
    make_members 6 80M
    "$TWILL" create --level "$level" --chunk 64K --name fio --assume-clean "${members[@]}"
    serve "${members[@]}"
    # At this rate the writes take two seconds or more, so that the members fail in their middle.
    fio_verify load --rw="$rw" --bs="$bs" --size=24M --offset_increment=24M --rate=,12m & load=$!
    for ((i = 0; i < failures; i++)); do
        sleep 0.7
        kill -0 $load || die "the load ended before member $i failed"
        fail_member "${members[2 * i + 1]}"
    done
    wait $load || die "fio: $(cat "$scratch/load.log")"
    stop_array
}

for setup in "5 0" "5 1" "6 0" "6 1" "6 2"; do
    read -r level failures <<<"$setup"
    for rw in randwrite write; do
        for bs in 4k 64k 1m; do
            run_case "fio raid$level, $failures failed, $rw $bs" verify "$level" "$failures" $rw $bs
        done
    done
    run_case "fio raid$level, $failures failed, randwrite 4k to 1m" verify "$level" "$failures" randwrite 4k-1m
done
summary
