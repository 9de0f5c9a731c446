# nvmet.sh: what the kernel tests of members on other machines share; they source it. Each target is a network namespace,
# t1, t2 and so on, with a drive of its own: /dev/nullb1, served at 10.9.1.2 as nqn.2026-11.test:t1. The kernel's nvmet
# serves it, or `twill target`. A case begins with `drives`, and serves them with `kernel_targets` or `twill_targets`.

. "$(dirname "${BASH_SOURCE[0]}")/md.sh"
NVMET=/sys/kernel/config/nvmet
DRIVES=/sys/kernel/config/nullb
TARGETS=4
HOST=nqn.2026-11.test:host
: "${DRIVE_MIB:=16}"
modprobe null_blk nr_devices=0 || skip "this kernel has no null_blk"
modprobe nvmet-tcp || skip "this kernel has no nvmet-tcp"
command -v ip >/dev/null || skip "iproute2 is not installed"

for ((i = 1; i <= TARGETS; i++)); do
    ip netns add t$i
    ip link add h$i type veth peer name t$i netns t$i
    ip addr add 10.9.$i.1/24 dev h$i
    ip -n t$i addr add 10.9.$i.2/24 dev t$i
    ip link set h$i up
    ip -n t$i link set lo up
    ip -n t$i link set t$i up
done

nqn() { echo "nqn.2026-11.test:t$1"; } # TARGET
subsystem() { echo "$NVMET/subsystems/$(nqn "$1")"; } # TARGET
uuid() { echo "00000000-0000-0000-0000-00000000000$1"; } # TARGET

remove_targets() { # what an earlier case left
    local one
    for one in "$NVMET"/ports/*/subsystems/* "$NVMET"/subsystems/*/allowed_hosts/*; do [[ ! -L $one ]] || rm "$one"; done
    for one in "$NVMET"/subsystems/*/namespaces/*; do [[ ! -d $one ]] || { echo 0 >"$one/enable"; rmdir "$one"; }; done
    for one in "$NVMET"/ports/* "$NVMET"/subsystems/* "$NVMET"/hosts/* "$DRIVES"/*; do [[ ! -d $one ]] || rmdir "$one"; done
    for ((one = 1; one <= TARGETS; one++)); do
        ip link set h$one up
        ip -n t$one link set t$one up
        tc qdisc del dev h$one root 2>/dev/null || true
        ip netns exec t$one tc qdisc del dev t$one root 2>/dev/null || true
    done
}

drives() { # COUNT [CACHE_MIB]: new drives, all zero; with a volatile cache, which they lose when their power goes
    local i drive
    remove_targets
    members=()
    for ((i = 1; i <= $1; i++)); do
        drive=$DRIVES/nullb$i
        mkdir "$drive"
        echo 1 >"$drive/memory_backed"
        echo "$DRIVE_MIB" >"$drive/size"
        echo 1 >"$drive/discard"
        echo "${2:-0}" >"$drive/cache_size"
        echo 1 >"$drive/power"
        members+=("nvme://10.9.$i.2/$(nqn "$i")")
    done
    wait_for "the drives" test -b "/dev/nullb$1"
}
local_members() { # sets ${members[@]} to the drives themselves
    local i
    for i in "${!members[@]}"; do members[i]=/dev/nullb$((i + 1)); done
}
loses_power() { # TARGET: what its drive has not been told to keep is gone
    echo 0 >"$DRIVES/nullb$1/power"
    echo 1 >"$DRIVES/nullb$1/power"
    wait_for "the drive" test -b "/dev/nullb$1"
}

kernel_targets() { # COUNT [RESERVATIONS]: any host may connect
    local i
    for ((i = 1; i <= $1; i++)); do
        mkdir "$(subsystem $i)"
        echo 1 >"$(subsystem $i)/attr_allow_any_host"
        add_namespace $i "/dev/nullb$i" "$(uuid $i)" "${2:-1}"
        mkdir "$NVMET/ports/$i"
        echo ipv4 >"$NVMET/ports/$i/addr_adrfam"
        echo tcp >"$NVMET/ports/$i/addr_trtype"
        echo "10.9.$i.2" >"$NVMET/ports/$i/addr_traddr"
        echo 4420 >"$NVMET/ports/$i/addr_trsvcid"
        open_port $i
    done
}
add_namespace() { # TARGET DRIVE UUID [RESERVATIONS]
    local namespace
    namespace=$(subsystem "$1")/namespaces/1
    mkdir "$namespace"
    echo -n "$2" >"$namespace/device_path"
    echo -n "$3" >"$namespace/device_uuid"
    echo "${4:-1}" >"$namespace/resv_enable"
    echo 1 >"$namespace/enable"
}
remove_namespace() { # TARGET
    echo 0 >"$(subsystem "$1")/namespaces/1/enable"
    rmdir "$(subsystem "$1")/namespaces/1"
}
# nvmet listens in the network namespace of the process that makes the link; `ip netns exec` would hide configfs.
open_port() { nsenter --net="/run/netns/t$1" ln -s "$(subsystem "$1")" "$NVMET/ports/$1/subsystems/"; } # TARGET
close_port() { rm "$NVMET/ports/$1/subsystems/$(nqn "$1")"; } # TARGET

twill_target() { # TARGET: starts `twill target` there; ${target[TARGET]} is its process
    TWILL_STATE_DIR=$scratch/t$1 ip netns exec "t$1" "$TWILL" target --shards 1 --reservations-new --insecure --allow-any --listen "10.9.$1.2:4420" \
        "/dev/nullb$1=$(nqn "$1")" >"$scratch/target$1" 2>>"$scratch/target$1.log" </dev/null & target[$1]=$!
    wait_for "target $1" grep -qs listening "$scratch/target$1"
}
twill_targets() { local i; for ((i = 1; i <= $1; i++)); do twill_target $i; done; } # COUNT
kill_target() { # TARGET
    kill -9 "${target[$1]}"
    wait "${target[$1]}" 2>/dev/null || true
    : >"$scratch/target$1"
}
target=()

cut_link() { ip -n "t$1" link set "t$1" down; } # TARGET: both ends see that the link is gone
mend_link() { ip -n "t$1" link set "t$1" up; }
swallow() { # TARGET: every packet of either end is lost, and neither end learns of it
    tc qdisc add dev "h$1" root netem loss 100%
    ip netns exec "t$1" tc qdisc add dev "t$1" root netem loss 100%
}
let_through() {
    tc qdisc del dev "h$1" root
    ip netns exec "t$1" tc qdisc del dev "t$1" root
}

create() { # LEVEL OPTION…: an array of all members
    local level=$1; shift
    "$TWILL" create --level "$level" --chunk 64K --name vm --bitmap internal --assume-clean "${identity[@]}" "$@" "${members[@]}" >/dev/null
}
as_host() { # NAME: commands and servers from here on are that host's
    host=$1
    export TWILL_STATE_DIR=$scratch/$host TWILL_RUNTIME_DIR=$scratch/$host
    mkdir -p "$scratch/$host"
    head -c 1M $RANDOM_DATA >"$scratch/block"
    socket=$scratch/$host/nbd.sock control=$scratch/$host/control.sock uri="nbd+unix:///?socket=$socket"
    identity=(--hostnqn "$HOST-$host")
}
serve_members() { serve "${identity[@]}" "$@" "${members[@]}"; } # OPTION…

status() { "$TWILL" status --json --control "$control" | jq .arrays[0]; }
member() { status | jq -r ".members[$(($1 - 1))]$2"; } # TARGET FIELD
member_is() { [[ $(member "$1" "$2") == "$3" ]]; } # TARGET FIELD VALUE
events() { "$TWILL" events --json --control "$control" | jq -c --arg name "$1" --arg words "${2:-}" 'select(.event == $name and (tostring | contains($words)))'; } # NAME [WORDS]
has_event() { [[ -n $(events "$@") ]]; } # NAME [WORDS]
has_events() { local count=$1; shift; (($(events "$@" | wc -l) >= count)); } # COUNT NAME [WORDS]
wait_for_event() { wait_for "the event $*" has_event "$@"; }
all_in_sync() { [[ $(status | jq 'all(.members[]; .state == "in-sync")') == true ]]; }
none_failed() { ! has_event member-failed || die "a member failed: $("$TWILL" events --control "$control")"; }

figure() { say "$*" >>/run/figures; } # WORD…: a figure that the run shows, whether its case fails or not
figures() { [[ ! -e /run/figures ]] || cat /run/figures; }

begin_load() { # fio writes and verifies until end_load, behind the first 4 MiB
    rm -f "$scratch/enough"
    (until [[ -e $scratch/enough ]]; do fio_verify load --numjobs=2 --rw=randwrite --bsrange=4k-64k --blockalign=4k --offset=4M --size=2M --offset_increment=8M || exit 1; done) & load=$!
    sleep 1
}
end_load() {
    : >"$scratch/enough"
    wait "$load" || die "fio: $(tail -n 20 "$scratch/load.log")"
}
writes_go_on() { # SECONDS: a write that begins now is answered within them
    local start=$SECONDS
    timeout 120 nbdcopy --flush "$scratch/block" "$uri" || die "a write fails"
    figure "a write while a member does not answer: $((SECONDS - start)) s"
    ((SECONDS - start <= $1)) || die "a write took $((SECONDS - start)) s"
}
