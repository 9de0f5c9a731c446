# sides.sh: md and twill run an array by turns; functions for the states in which one leaves it to the other. Scripts source
# it after md.sh, inside the machine.
#
# $level $count $layout $chunk $metadata $bitmap $spares describe the array; its members are ${members[@]}. md runs it as
# /dev/md0, twill as /dev/nbd0 of the kernel's NBD client; $device is the current one. `$XTASK blocks` knows what every block
# must hold, also after cuts.

modprobe -a nbd dm-mod dm-delay 2>/dev/null || skip "this kernel has no NBD client or device mapper"
# Programs start much faster from memory than from the host's file system.
cp "$TWILL" /run/twill && TWILL=/run/twill
cp "$XTASK" /run/xtask && XTASK=/run/xtask
device='' writer=''
SLOW_MS=500 # time of a write, so that twill can be stopped in mid-resync
COPIES=8 # the copy of /dev/ramI is /dev/ram(I+8)

clean_slate() { # removes what a failed case left behind
    nbd-client -d /dev/nbd0 >/dev/null 2>&1 || true
    md_stop 2>/dev/null || true
    dmsetup remove_all --force >/dev/null 2>&1 || true
    losetup --detach-all 2>/dev/null || true
}

# --- members

map_members() { # [DELAY_MS]: puts members behind device mapper, which can freeze them or delay their writes
    local i name
    for ((i = 0; i < ${#members[@]}; i++)); do
        name=${members[i]##*/}
        map_table "${members[i]}" "${1:-0}" | dmsetup create "$name"
        members[i]=/dev/mapper/$name
    done
}

map_table() { # DEVICE DELAY_MS
    if (($2)); then echo "0 $(blockdev --getsz "$1") delay $1 0 0 $1 0 $2"; else echo "0 $(blockdev --getsz "$1") linear $1 0"; fi
}

unmap_members() {
    local i
    for ((i = 0; i < ${#members[@]}; i++)); do
        if [[ ${members[i]} == /dev/mapper/* ]]; then
            wait_for "dmsetup remove ${members[i]}" dmsetup remove "${members[i]}" 2>/dev/null
            members[i]=/dev/${members[i]##*/}
        fi
    done
}

garbage() { # DEVICE…: fills it with contents whose parity does not agree
    local i=1 one
    for one; do
        dd if=$RANDOM_DATA of="$one" bs=1M skip=$((i++)) count=$RAM_MIB oflag=direct status=none 2>/dev/null || true
    done
}

# --- the load

fill() { "$XTASK" blocks fill --device $device --state "$scratch/state" --seed "$seed" || die "fill $device"; }

load() { # SECONDS
    "$XTASK" blocks write --device $device --state "$scratch/state" --seed "$seed" --seconds "$1" || die "the load on $device: status $?"
}

load_start() { # until the device fails
    "$XTASK" blocks write --device $device --state "$scratch/state" --seed "$seed" >"$scratch/writer" 2>&1 & writer=$!
    sleep 1
    kill -0 $writer || die "the load ended too early: $(cat "$scratch/writer")"
}

load_cut() { # ends the writer of a device that was cut
    local code=0
    kill $writer 2>/dev/null || true
    wait $writer || code=$?
    ((code != 3)) || die "read wrong data: $(cat "$scratch/writer")"
    writer=
}

check_data() { # PROGRAM that runs the array
    "$XTASK" blocks check --device $device --state "$scratch/state" --seed "$seed" || die "$1: wrong data"
}

# --- md's side

md_make() { # assumes clean; with `resync` leaves the array before its first resync
    local -a options=(--level="$level" --raid-devices="$count" --metadata="$metadata")
    # Without --force mdadm makes a degraded RAID-5 and a recovery instead of the resync.
    if [[ $1 == resync ]]; then options+=(--readonly --force); else options+=(--assume-clean); fi
    [[ $chunk == - ]] || options+=(--chunk="$chunk")
    [[ $layout == - ]] || options+=(--layout="$layout")
    [[ $level == 0 ]] || options+=(--bitmap="$bitmap")
    ((spares == 0)) || options+=(--spare-devices="$spares")
    [[ $metadata == 1.0 ]] || options+=(--data-offset=1M)
    mdadm --quiet --create /dev/md0 --run "${options[@]}" "${members[@]}" 2>"$scratch/mdadm" </dev/null ||
        { cat "$scratch/mdadm"; die "mdadm --create"; }
    device=/dev/md0
}

half_way() { # COMMAND…: begins a resync or recovery, which stops at the middle of the members
    local half=$(($(<$md/component_size) / 1024 * 1024)) # sectors: a whole number of chunks of any size here
    echo "$half" >$md/sync_max
    "$@" || die "$*"
    wait_for "the resync or recovery of md in its middle" sync_reached "$half"
}

sync_reached() { local done; read -r done _ <$md/sync_completed; [[ $done != none && $done != delayed ]] && ((done >= $1)); }

md_replace_half_way() { # member 1 fails, and one with other contents takes its slot
    md_fail "${members[1]}"
    mdadm --zero-superblock "${members[1]}"
    garbage "${members[1]}"
    half_way mdadm --quiet /dev/md0 --add "${members[1]}"
}

md_fail() { # MEMBER
    mdadm --quiet /dev/md0 --fail "$1"
    wait_for "mdadm --remove" mdadm --quiet /dev/md0 --remove "$1" 2>/dev/null
}

md_cut() { # copies every member at one moment under load; from now on the copies are the members
    local i ram
    for ((i = 0; i < ${#members[@]}; i++)); do dmsetup suspend --noflush --nolockfs "${members[i]}"; done
    cp "$scratch/state" "$scratch/state.cut"
    for ((i = 0; i < ${#members[@]}; i++)); do
        ram=${members[i]##*/ram}
        dd if=/dev/ram"$ram" of=/dev/ram$((ram + COPIES)) bs=1M iflag=direct oflag=direct status=none
    done
    for ((i = 0; i < ${#members[@]}; i++)); do dmsetup resume "${members[i]}"; done
    load_cut
    md_stop
    unmap_members
    for ((i = 0; i < ${#members[@]}; i++)); do members[i]=/dev/ram$((${members[i]##*/ram} + COPIES)); done
    mv "$scratch/state.cut" "$scratch/state"
}

md_leave() { # STATE: brings the array into that state and leaves it
    case $1 in
        *resync*) ;; # md_make began it
        *recovery*) md_replace_half_way ;;
        2-degraded*) load 0.5; md_fail "${members[1]}"; md_fail "${members[3]}" ;;
        degraded*) load 0.5; md_fail "${members[1]}" ;;
    esac
    if [[ $1 == *cut ]]; then load_start; md_cut; else load 1; md_stop; fi
}

md_run() { # assembles the members, or prints why it cannot and returns 1
    mdadm --assemble --run /dev/md0 "${members[@]}" >"$scratch/mdadm" 2>&1 || { tail -n 2 "$scratch/mdadm"; return 1; }
    if [[ $(</sys/block/md0/md/array_state) == inactive ]]; then cat "$scratch/mdadm"; return 1; fi
    mdadm --quiet --readwrite /dev/md0 2>/dev/null || true
    device=/dev/md0
}

# --- twill's side

twill_make() {
    local -a options=(--level "$level" --metadata "$metadata" --name vm --force)
    [[ $1 == resync ]] || options+=(--assume-clean)
    [[ $chunk == - ]] || options+=(--chunk "${chunk}K")
    [[ $layout == - ]] || options+=(--layout "$layout")
    [[ $bitmap == none ]] || options+=(--bitmap "$bitmap")
    ((spares == 0)) || options+=(--spare-devices "$spares")
    "$TWILL" create "${options[@]}" "${members[@]}" 2>&1 || { code=$?; return $code; }
}

twill_run() { # serves the array to the kernel's NBD client
    serve --export-name vm "${members[@]}"
    nbd-client -unix "$socket" /dev/nbd0 -N vm -C 2 -b 4096 >"$scratch/nbd-client" 2>&1 || { cat "$scratch/nbd-client"; die "nbd-client"; }
    device=/dev/nbd0
    wait_for "/dev/nbd0 has a size" nbd_is_there
}

nbd_is_there() { (($(</sys/block/nbd0/size) > 0)); }

twill_stop() { nbd-client -d /dev/nbd0 >/dev/null; stop_array; }

twill_cut() { # the daemon dies under load
    load_start
    twill_kill
    load_cut
}

twill_kill() {
    kill_server
    nbd-client -d /dev/nbd0 >/dev/null 2>&1 || true
}

twill_status() { "$TWILL" status --json --control "$control"; }

twill_rebuilds() { # KIND: a resync or recovery of that kind is under way
    twill_status | jq -e --arg kind "$1" '.arrays[].rebuild // empty | select(.kind == $kind and .done_bytes > 0)' >/dev/null
}

twill_fail() { # MEMBER
    fail_member "$1"
    "$TWILL" remove --control "$control" "$1" || die "twill remove"
}

twill_slow_members() { # runs the same members with slow writes, so that a resync takes a while
    map_members $SLOW_MS
    twill_run
}

twill_leave() { # STATE
    case $1 in
        *resync*) twill_cut; twill_slow_members; wait_for "a resync of twill" twill_rebuilds resync ;;
        *recovery*)
            twill_fail "${members[1]}"
            load 0.5
            twill_stop
            garbage "${members[1]}"
            twill_slow_members_without_1
            wait_for "a recovery of twill" twill_rebuilds recovery ;;
        2-degraded*) load 0.5; twill_fail "${members[1]}"; twill_fail "${members[3]}" ;;
        degraded*) load 0.5; twill_fail "${members[1]}" ;;
    esac
    case $1 in
        *resync*cut | *recovery*cut) twill_kill ;;
        *cut) twill_cut ;;
        *resync* | *recovery*) twill_stop ;;
        *) load 1; twill_stop ;;
    esac
    unmap_members
}

twill_slow_members_without_1() {
    map_members $SLOW_MS
    local all=("${members[@]}")
    unset 'members[1]'
    twill_run
    members=("${all[@]}")
    "$TWILL" add --force --control "$control" "${members[1]}" || die "twill add"
}
