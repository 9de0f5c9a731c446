# md.sh: what the kernel tests of this folder share: ram drives, md, data. They source it inside the machine.
#
# Members are the first N of /dev/ram0 …, all zero at the start of a case, and small, because every byte is emulated.

. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/array.sh"
export TWILL_SCRATCH=/run
# Another mdadm than this machine's, if one was asked for.
if [[ -n ${VM_MDADM:-} && -z ${BOTH_MDADM:-} ]]; then PATH=$VM_MDADM:$PATH; fi

: "${RAM_MIB:=12}"
modprobe -r brd 2>/dev/null || true
modprobe brd rd_nr="${RAM_DRIVES:-8}" rd_size=$((RAM_MIB << 10)) || skip "this kernel has no brd"

ram_members() { # N: zeroes the drives and sets ${members[@]}
    local i
    members=()
    for ((i = 0; i < $1; i++)); do
        dd if=/dev/zero of=/dev/ram$i bs=1M oflag=direct status=none 2>/dev/null || true
        members+=("/dev/ram$i")
    done
}

# After an array did not start, its node may exist for a moment longer than the device.
md_stop() { [[ ! -b /dev/md0 ]] || mdadm --quiet --stop /dev/md0 || [[ ! -b /dev/md0 ]]; }

md_assemble() { # MEMBER…
    mdadm --quiet --assemble --run /dev/md0 "$@" || { mdadm --examine "$@"; dmesg | tail -n 20; die "mdadm --assemble $*"; }
    mdadm --quiet --readwrite /dev/md0 2>/dev/null || true
    mdadm --quiet --wait /dev/md0 || true
}

md_check() { # md's own scrub finds that parity and mirrors agree
    local md=/sys/block/md0/md mismatches
    [[ -e $md/sync_action ]] || return 0 # RAID-0 has none
    mdadm --quiet --wait /dev/md0 || true
    echo check >$md/sync_action
    mdadm --quiet --wait /dev/md0 || true
    while [[ $(<$md/sync_action) != idle ]]; do sleep 0.1; done
    mismatches=$(<$md/mismatch_cnt)
    [[ $mismatches == 0 ]] || die "md finds mismatch_cnt $mismatches"
}

# Random bytes, as many as six small members hold; made once, because that is slow here.
RANDOM_DATA=/run/random
head -c $((6 * 12 << 20)) /dev/urandom >$RANDOM_DATA

# A copy in memory: the host's files are slow to read here.
TREE=/run/tree
cp -r "$root/docs" $TREE

same() { # FILE BYTES WHAT: FILE begins with what $scratch/wanted holds
    cmp -n "$2" "$scratch/wanted" "$1" || die "$3 reads other data"
}

wait_for_writes() { # DRIVE N: waits until N more writes reach the drive
    wait_for "$2 writes on $1" has_written "$1" $(($(writes "$1") + $2))
}
has_written() { (($(writes "$1") >= $2)); }
writes() { awk '{ print $5 }' "/sys/block/$1/stat"; }

# Small writes at random offsets, each verified by fio.
small_writes() { fio_verify small --numjobs=2 --rw=randwrite --bsrange=4k-96k --blockalign=4k --size=4M --offset_increment=8M; }
