# nvme-host.sh: what the kernel tests with the kernel's NVMe/TCP host share; they source it after md.sh and device.sh. `twill target`
# serves /dev/ram0 and /dev/ram1 as $SUBSYSTEM, and $device is namespace 1 at the host.

PORT=4420
HOST=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555
HOST_ID=11111111-2222-3333-4444-555555555555
SUBSYSTEM=nqn.2026-11.test:drive
target=

start_target() { # ARGUMENT…: serves /dev/ram0 and /dev/ram1 as namespaces 1 and 2
    TWILL_STATE_DIR=$scratch/state "$TWILL" target --reservations-new --listen 127.0.0.1:$PORT "$@" /dev/ram0=$SUBSYSTEM /dev/ram1=$SUBSYSTEM \
        >"$scratch/target" 2>>"$scratch/target.log" & target=$!
    wait_for "the target" grep -qs listening "$scratch/target"
}
stop_target() {
    kill "$target"
    wait "$target" || die "the target: $(cat "$scratch/target.log")"
}

host() { # COMMAND OPTION…: nvme-cli as this host
    local command=$1; shift
    nvme "$command" -t tcp -a 127.0.0.1 -s $PORT --hostnqn $HOST --hostid $HOST_ID "$@"
}
connect() { # OPTION…: connects, and sets $device to namespace 1
    host connect -n $SUBSYSTEM --nr-io-queues 2 "$@" >"$scratch/connect" 2>&1 || die "connect: $(cat "$scratch/connect"; dmesg | tail -n 5)"
    wait_for "namespace 1" find_device
}
find_device() {
    local one
    for one in /sys/class/nvme-subsystem/*/subsysnqn; do
        [[ -e $one && $(<"$one") == "$SUBSYSTEM" ]] || continue
        # Linux numbers disks as it finds them: the one with a 1 may be namespace 2.
        for one in "${one%/*}"/nvme*n*; do
            device=/dev/${one##*/}
            [[ -b $device && $(<"$one/nsid") == 1 ]] && return 0
        done
    done
    return 1
}
disconnect() { nvme disconnect -n $SUBSYSTEM >/dev/null || die "nvme disconnect"; }

connects() { # OPTION…: tries once
    host connect -n $SUBSYSTEM --nr-io-queues 1 --ctrl-loss-tmo 0 "$@" >"$scratch/connect" 2>&1
}
array_answers() { [[ -S $control ]] && "$TWILL" status --control "$control" >"$scratch/status" 2>/dev/null; }
