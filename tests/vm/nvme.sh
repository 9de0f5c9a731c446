#!/bin/bash
# vm: --mem 3G --nvme 4:32M:logical_block_size=4096 --nvme 2:32M --mod raid456 --timeout 1800
# takes: 77 s
# nvme.sh: members are NVMe drives, with 4 KiB and 512 byte sectors; one is pulled out under load.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/md.sh"

drives() { # SECTOR…: prints the namespaces with these sector sizes
    local drive sector
    members=()
    for drive in /sys/block/nvme*; do
        for sector; do
            [[ $(<"$drive/queue/logical_block_size") != "$sector" ]] || members+=("/dev/${drive##*/}")
        done
    done
    for drive in "${members[@]}"; do dd if=/dev/zero of="$drive" bs=1M oflag=direct status=none 2>/dev/null || true; done
}

written() { # LEVEL SECTOR…
    local level=$1 size; shift
    drives "$@"
    "$TWILL" create --level "$level" --chunk 64K --name nvme --assume-clean "${members[@]}"
    serve "${members[@]}"
    size=$(array_size)
    nbdcopy --flush "$RANDOM_DATA" "$uri"
    small_writes
    nbdcopy --connections=2 "$uri" "$scratch/wanted"
    stop_array
    md_assemble "${members[@]}"
    same /dev/md0 "$size" md
    md_check
    md_stop
}

pulled() { # a drive is removed from the machine while fio writes
    drives 4096
    "$TWILL" create --level 5 --chunk 64K --name nvme --assume-clean "${members[@]}"
    serve "${members[@]}"
    local victim=${members[1]##*/} load
    (until [[ -e $scratch/enough ]]; do fio_verify load --numjobs=2 --rw=randwrite --bs=16k --size=4M --offset_increment=24M || exit 1; done) & load=$!
    wait_for_writes "$victim" 40
    echo 1 >"/sys/block/$victim/device/device/remove"
    wait_for_writes "${members[2]##*/}" 40
    : >"$scratch/enough"
    wait $load || die "fio: $(cat "$scratch/load.log")"
    stop_array
    echo 1 >/sys/bus/pci/rescan
}

long_case "raid5 on four drives of 4 KiB sectors" written 5 4096
run_case "raid6 on six drives of mixed sectors" written 6 512 4096
run_case "a drive pulled out under load" pulled
summary
