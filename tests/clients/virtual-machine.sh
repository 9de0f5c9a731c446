#!/bin/bash
# virtual-machine.sh: QEMU's machines with an array as their virtio disk (vhost-user-blk): data, units, discards; a server that is
# killed under load; a machine that boots from its disk; one that comes too late.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/array.sh"
. "$root/scripts/vm/initrd.sh"
MEMORY=1G

disk() { # OPTION…: serves four members to a machine at $machine, and over NBD to this script
    for tool in qemu-system-x86_64 modprobe cpio; do command -v $tool >/dev/null || skip "$tool is not installed"; done
    kernel=$("$root/scripts/vm/fetch-kernel") || skip "there is no kernel for a machine"
    machine=$scratch/machine.sock
    make_members 4 "${MEMBER_SIZE:-64M}"
    "$TWILL" create --level 5 --chunk 64K --name disk --assume-clean "${members[@]}" >/dev/null
    serve_disk "$@"
}
serve_disk() { start_server machine_awaited --unix "$socket" --vhost-user "$machine" "$@" "${members[@]}"; }
machine_awaited() { [[ -S $machine ]] && nbd_answers; }
answers_machine() {
    "$TWILL" detail --json --control "$control" 2>/dev/null |
        jq -e '.exports[]? | select(.uri | startswith("vhost-user:")) | .connections == 1' >/dev/null 2>&1
}

shared_memory="-object memory-backend-memfd,id=shared,size=$MEMORY,share=on -machine memory-backend=shared"
drive() { echo "-chardev socket,id=disk,path=$machine,reconnect=1 -device vhost-user-blk-pci,chardev=disk,num-queues=2,bootindex=1"; }
in_machine() { # LINE: runs it in a machine that has the disk as /dev/vda
    timeout $((3 * PATIENCE)) "$root/scripts/vm/vm" --mem $MEMORY --mod virtio_blk --timeout $((2 * PATIENCE)) --console "$scratch/console" \
        --qemu "$shared_memory $(drive)" -- "for _ in {1..50}; do [[ -b /dev/vda ]] && break; sleep 0.2; done; set -eo pipefail; $1
            if dmesg | grep -E 'I/O error|vda.*(timeout|reset)'; then exit 9; fi" 2>&1
}
fio_vda() { # NAME OPTION…
    echo "fio --name=$1 --filename=/dev/vda --direct=1 --ioengine=libaio --verify=crc32c --verify_fatal=1 --verify_state_save=0 --output=/dev/null ${*:2}"
}

data_and_units() {
    disk
    in_machine "cat /sys/block/vda/queue/{logical_block_size,physical_block_size,minimum_io_size,optimal_io_size,write_cache} /sys/block/vda/serial
        $(fio_vda written --rw=randwrite --bsrange=4k-128k --blockalign=4k --size=32M --iodepth=16)
        $(fio_vda synced --rw=randwrite --bs=4k --size=1M --fsync=8)
        $(fio_vda large --rw=write --bs=4M --offset=64M --size=32M --iodepth=4)
        blkdiscard -z -l 8M /dev/vda; cmp -n 8388608 /dev/vda /dev/zero; blkdiscard /dev/vda
        mkfs.ext4 -q /dev/vda; mkdir -p /tmp/disk; mount /dev/vda /tmp/disk; cp -r $root/crates/engine /tmp/disk/; fstrim /tmp/disk
        umount /tmp/disk; mount /dev/vda /tmp/disk; diff -r $root/crates/engine /tmp/disk/engine; umount /tmp/disk" >"$scratch/guest" ||
        die "in the machine: $(tail -n 5 "$scratch/guest")"
    head -n 5 "$scratch/guest" | tr '\n' ' ' | grep -q '^512 4096 65536 196608 write back $' ||
        die "the machine sees other units: $(head -n 6 "$scratch/guest")"
    wait_for "the end of the connection" left
    agrees_everywhere
    stop_array
}
left() { ! answers_machine; }

killed_under_load() {
    disk
    local rounds=5 i guest
    in_machine "$(fio_vda load --rw=randrw --bsrange=4k-64k --blockalign=4k --size=64M --verify_backlog=64 --iodepth=32 --time_based --runtime=30)" \
        >"$scratch/guest" & guest=$!
    wait_for "the machine" answers_machine
    wait_for "its load" load_runs
    for ((i = 0; i < rounds; i++)); do
        ((i != 2)) || fail_member "${members[0]}" # from here on degraded, with the redo log
        kill_server
        serve_disk
        wait_for "the machine to come back" answers_machine
        sleep 2
    done
    wait "$guest" || die "in the machine: $(tail -n 5 "$scratch/guest")"
    grep -q 'carried out again' "$scratch/server.log" || die "no request was under way in $rounds kills"
    wait_for "the end of the connection" left
    stop_array
}

load_runs() { "$TWILL" status --json --control "$control" 2>/dev/null | jq -e '.arrays[0].counters.writes > 200' >/dev/null; }

initrd() { # FILE: a machine of busybox, which writes to its disk, reads back, and says so
    busybox_initrd "$1" "$kernel" virtio_pci virtio_blk vfat nls_cp437 nls_iso8859-1 nls_ascii <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for m in $(cat /modules.order); do insmod /modules/$m; done
for _ in 1 2 3 4 5 6 7 8 9; do [ -b /dev/vda ] && break; sleep 1; done
if mount -t vfat /dev/vda /disk && dd if=/dev/urandom of=/disk/data bs=64k count=64 2>/dev/null; then
    before=$(md5sum </disk/data); umount /disk; mount -t vfat /dev/vda /disk
    [ "$before" = "$(md5sum </disk/data)" ] && echo "THE MACHINE HAS BOOTED" >/dev/ttyS0
    umount /disk
fi
echo o >/proc/sysrq-trigger; sleep 60
INIT
}

boots() {
    command -v syslinux >/dev/null && command -v mcopy >/dev/null && command -v mkfs.vfat >/dev/null ||
        skip "syslinux, mtools or dosfstools is not installed"
    disk
    local image=$scratch/boot.img
    truncate -s 64M "$image"
    mkfs.vfat -F 32 "$image" >/dev/null
    initrd "$scratch/initrd.gz"
    printf 'SERIAL 0\nDEFAULT disk\nLABEL disk\n  KERNEL vmlinuz\n  INITRD initrd.gz\n  APPEND console=ttyS0 loglevel=4 panic=-1 no_timer_check\n' >"$scratch/syslinux.cfg"
    mcopy -i "$image" "$kernel/lib/modules/${kernel##*/}/vmlinuz" "$scratch/initrd.gz" "$scratch/syslinux.cfg" ::
    syslinux --install "$image"
    nbdcopy "$image" "$uri"
    # shellcheck disable=SC2046,SC2086
    timeout $((2 * PATIENCE)) qemu-system-x86_64 -M q35 -accel tcg -cpu max -m $MEMORY -nodefaults -display none -no-reboot \
        -serial "file:$scratch/console" $shared_memory $(drive) >"$scratch/qemu" 2>&1 || die "QEMU: $(tail -n 3 "$scratch/qemu")"
    grep -q 'THE MACHINE HAS BOOTED' "$scratch/console" || die "the machine has not booted: $(tail -n 5 "$scratch/console")"
    wait_for "the end of the connection" left
    agrees_everywhere
    stop_array
}

in_use() {
    disk --unix-mode 660 --unix-group "$(id -gn)"
    [[ $(stat -c %a:%G "$machine") == "660:$(id -gn)" ]] || die "the socket is for $(stat -c %a:%G "$machine")"
    # shellcheck disable=SC2046,SC2086
    qemu-system-x86_64 -M q35 -accel tcg -m $MEMORY -nodefaults -display none -S $shared_memory $(drive) & local first=$!
    wait_for "the machine" answers_machine
    local code=0
    "$TWILL" stop --control "$control" >"$scratch/said" 2>&1 || code=$?
    ((code != 0)) && grep -q '1 client is connected' "$scratch/said" || die "a stop is not refused: $(cat "$scratch/said")"
    # Without reconnect, so that it ends.
    # shellcheck disable=SC2046,SC2086
    timeout 60 qemu-system-x86_64 -M q35 -accel tcg -m $MEMORY -nodefaults -display none -S $shared_memory \
        -chardev "socket,id=disk,path=$machine" -device vhost-user-blk-pci,chardev=disk >"$scratch/second" 2>&1 && die "a second machine got the disk"
    grep -q 'was turned away' "$scratch/server.log" || die "the log does not say that a machine was turned away"
    answers_machine || die "the first machine has lost its disk"
    stop_array --force
    kill "$first"; wait "$first" || true
}

run_case "data and units in a machine" data_and_units
run_case "the server is killed under a machine" killed_under_load
run_case "a machine boots from an array" boots
run_case "a machine that comes too late" in_use
summary
