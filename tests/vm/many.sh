#!/bin/bash
# vm: --mem 3G --nvme 4:48M --mod ublk_drv,raid1 --timeout 900
# takes: 98 s
# many.sh: `serve --all` over block devices: arrays as block devices of one process, a file system on one while others come and go,
# the process killed under load, an array that md runs left alone.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/array.sh"
begin
export TWILL_RUNTIME_DIR=$scratch/run TWILL_STATE_DIR=$scratch/state
mkdir "$scratch/mnt" "$scratch/state"

device_of() { "$TWILL" status --json "$1" | jq -r '.arrays[0].block_device.path'; }
serve_all() {
    "$TWILL" serve --all --ublk --shards 2 >>"$scratch/server.log" 2>&1 </dev/null &
    server=$!
    wait_for "the arrays" all_answer
}
all_answer() { [[ -S $TWILL_RUNTIME_DIR/daemon.control ]] && "$TWILL" start --all >/dev/null 2>&1; }
verified() { # NAME DEVICE OPTION…
    local name=$1 device=$2; shift 2
    fio --name="$name" --filename="$device" --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=16 --verify=crc32c \
        --verify_fatal=1 --randrepeat=0 --size=16M "$@" >"$scratch/$name.log" 2>&1 || { tail -n 5 "$scratch/$name.log"; die "fio $name"; }
}

"$TWILL" create --level 1 --name a --assume-clean --bitmap internal /dev/nvme0n1 /dev/nvme1n1 >/dev/null
"$TWILL" create --level 1 --name b --assume-clean --bitmap internal /dev/nvme2n1 /dev/nvme3n1 >/dev/null
serve_all
[[ $("$TWILL" list --json | jq -r '[.served[].name] | join(" ")') == "a b" ]] || die "served: $("$TWILL" list)"
[[ $(cat /proc/"$server"/task/*/comm | grep -c '^twill-') == 2 ]] || die "more shards than two"
a=$(device_of a) b=$(device_of b)
mkfs.ext4 -q "$b" && mount "$b" "$scratch/mnt"
cp -r "$root/docs" "$scratch/mnt/0" && sync -f "$scratch/mnt"

# An array comes and goes, and another one too, while a is written; b is mounted, and stays.
verified beside "$a" --time_based --runtime=15 &
fio=$!
make_members 3 48M
"$TWILL" create --level 5 --name c "${members[@]}" >/dev/null
for _ in 1 2 3; do
    "$TWILL" serve --join --ublk "${members[@]}" >/dev/null
    verified c "$(device_of c)" --size=4M
    "$TWILL" stop c >/dev/null
    code=0; "$TWILL" stop b >/dev/null 2>&1 || code=$?
    ((code == 18)) || die "the stop of an array whose device is mounted ended with $code"
done
wait "$fio" || die "fio on a: $(tail -n 3 "$scratch/beside.log")"
say "arrays come and go beside one that is written and one that is mounted"

# Killed under load: the next process takes over the devices, and no program sees an error.
"$TWILL" serve --join --ublk "${members[@]}" >/dev/null
c=$(device_of c)
verified killed "$a" --time_based --runtime=20 &
fio=$!
sleep 3
kill_server
serve_all
"$TWILL" serve --join --ublk "${members[@]}" >/dev/null
[[ $(device_of a) == "$a" && $(device_of b) == "$b" && $(device_of c) == "$c" ]] || die "other devices than before"
wait "$fio" || die "fio on a: $(tail -n 3 "$scratch/killed.log")"
umount "$scratch/mnt"
e2fsck -fn "$b" >/dev/null || die "the file system of b is damaged"
mount "$b" "$scratch/mnt" && diff -r "$root/docs" "$scratch/mnt/0" || die "the files of b differ"
umount "$scratch/mnt"
say "after a kill under load all devices go on"

# A signal is refused while a device is mounted, and stops everything else.
mount "$b" "$scratch/mnt"
kill -TERM "$server"
wait_for "the stop of a" eval '! "$TWILL" status a >/dev/null 2>&1'
kill -0 "$server" || die "the process has left a mounted device"
"$TWILL" status b >/dev/null || die "b is not served any more"
umount "$scratch/mnt"
sleep 31 # the next signal is a first one again
kill -TERM "$server"
wait_for "the end of the process" ended "$server"
wait "$server" || die "the process ended with $?"
server=
[[ ! -e $a && ! -e $b && ! -e $c ]] || die "devices are left: $(ls /dev/ublkb*)"

mdadm --quiet --assemble /dev/md0 /dev/nvme0n1 /dev/nvme1n1
serve_all
[[ $("$TWILL" list --json | jq -r '[.served[].name] | join(" ")') == b ]] || die "served: $("$TWILL" list)"
grep -q 'a is left alone: /dev/nvme0n1 is in use by md0' "$scratch/server.log" || die "nothing is said of a"
mdadm --quiet --stop /dev/md0
"$TWILL" start a >/dev/null
kill -TERM "$server"
wait_for "the end of the process" ended "$server"
wait "$server" || die "the process ended with $?"
server=
say "an array that md runs is left alone, and served when md has stopped it"
