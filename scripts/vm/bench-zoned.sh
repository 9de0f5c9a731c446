# bench-zoned.sh: what the parts of `cargo xtask vm bench-zoned` share; they source it.
#
#   drives NAME COUNT SETTING…   makes null_blk devices /dev/NAME0… in memory with these settings; ${made[@]} has them
#   drives_gone NAME             takes them away
#   moved DEVICE…                bytes read and written there so far
#   job DEVICE OPTION…           a run of fio; its answer as JSON
#   fill DEVICE                  writes all of it once, in order
#   record KEY VALUE…            says a result, with the setting that ${said[@]} has
#   not_run WHAT WHY             says what cannot run here
#   zoned_array NUMBER CREATE-OPTION… -- MEMBER…
#                                makes a zoned array and serves it as /dev/ublkbNUMBER; serve_zoned serves one that exists
#   stop_zoned NUMBER
#
# Nothing is parsed here: programs that would do it take longer to start in this machine than a run.

export PATH=$PATH:/usr/sbin:/sbin
NULLB=/sys/kernel/config/nullb
declare -A server
said=()
cp "$TWILL" /run/twill; TWILL=/run/twill # the host's file system is slow
fail() { echo "bench-zoned: $*" >&2; tail -qn 5 /run/z*.log 2>/dev/null >&2 || true; exit 1; }

drives() { # NAME COUNT SETTING…
    local name=$1 count=$2 i setting folder; shift 2
    made=()
    for ((i = 0; i < count; i++)); do
        folder=$NULLB/$name$i
        mkdir "$folder"
        for setting in memory_backed=1 blocksize=4096 irqmode=0 submit_queues=2 "$@" power=1; do
            echo "${setting#*=}" >"$folder/${setting%%=*}" || fail "null_blk does not take $setting"
        done
        made+=("/dev/$name$i")
    done
}

drives_gone() { local folder; for folder in "$NULLB/$1"[0-9]*; do rmdir "$folder"; done; } # NAME

moved() { # DEVICE…: from /sys/block, in sectors of 512 bytes
    local device fields read=0 written=0
    for device; do
        read -ra fields <"/sys/block/${device##*/}/stat"
        read=$((read + fields[2] * 512)) written=$((written + fields[6] * 512))
    done
    echo $read $written
}

job() { # DEVICE OPTION…
    local file=$1; shift
    fio --name=t --thread --filename="$file" --direct=1 --ioengine=io_uring --norandommap --randrepeat=0 --group_reporting \
        --output-format=json "$@" 2>/run/fio.err </dev/null
}

fill() { job "$1" --rw=write --bs=1m --iodepth=4 >/dev/null || fail "cannot fill $1: $(tail -n 3 /run/fio.err)"; } # DEVICE

record() { # KEY VALUE…: values as JSON; those of ${said[@]} are words
    local line='' i
    for ((i = 0; i < ${#said[@]}; i += 2)); do line+=",\"${said[i]}\":\"${said[i + 1]}\""; done
    while (($#)); do line+=",\"$1\":${2//$'\n'/}"; shift 2; done
    echo "JSON {${line#,}}"
}

not_run() { printf 'JSON {"part":"not-run","what":"%s","reason":"%s"}\n' "$1" "$(tr -s '"\\\n' "'  " <<<"$2")"; } # WHAT WHY

zoned_array() { # NUMBER CREATE-OPTION… -- MEMBER…
    local number=$1 options=(); shift
    while [[ $1 != -- ]]; do options+=("$1"); shift; done
    shift
    "$TWILL" create --metadata zoned --name "z$number" "${options[@]}" "$@" >/run/create.log 2>&1 </dev/null || fail "create: $(cat /run/create.log)"
    serve_zoned "$number" "$@"
}

# Reclaim of an idle array would work while others are measured.
serve_zoned() { # NUMBER MEMBER…
    local number=$1; shift
    rm -f "/run/z$number.sock" # a killed server leaves it behind
    "$TWILL" serve --ublk="$number" --control "/run/z$number.sock" --idle-reclaim off "$@" >>"/run/z$number.log" 2>&1 </dev/null &
    server[$number]=$!
    local i
    for ((i = 0; i < 2400; i++)); do
        ! has_size "/sys/block/ublkb$number" || [[ ! -S /run/z$number.sock ]] || return 0
        kill -0 "${server[$number]}" 2>/dev/null || break
        sleep 0.05
    done
    fail "no /dev/ublkb$number: $(tail -n 3 "/run/z$number.log")"
}

has_size() { local sectors; read -r sectors 2>/dev/null <"$1/size" && ((sectors > 0)); } # FOLDER in /sys/block

stop_zoned() { # NUMBER
    "$TWILL" stop --control "/run/z$1.sock" >/dev/null
    wait "${server[$1]}"
}

echo "JSON {\"part\":\"machine\",\"kernel\":\"$(uname -r)\"}"
