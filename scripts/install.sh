# install.sh: finds the programs that the project's commands need, and installs missing ones. ./run and ./test source it.
#
#   install_packages needed fio:fio …    each word is PROGRAM:PACKAGE; stops if one cannot be installed
#   install_packages optional …          the same, but continues and says what will be skipped
#   find_cargo                           sets $cargo to a cargo that is new enough, or stops
#   install_crate NAME VERSION           installs a program from crates.io for this user, seen in target/tools/bin; tests that need it are skipped without it

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

PACKAGES_BUILD=(gcc:gcc crt1.o:libc6-dev pkg-config:pkg-config openssl/ssl.h:libssl-dev)
PACKAGES_CLIENTS=(fio:fio nbdcopy:libnbd-bin nbdinfo:libnbd-bin mke2fs:e2fsprogs e2fsck:e2fsprogs jq:jq)
PACKAGES_INSTRUCTIONS=(valgrind:valgrind)
PACKAGES_COMPARE=(mdadm:mdadm)
PACKAGES_TESTS=(nbdkit:nbdkit openssl:openssl chromium:chromium node:nodejs tmux:tmux qemu-img:qemu-utils qemu-io:qemu-utils mkfs.xfs:xfsprogs xfs_repair:xfsprogs mdadm:mdadm)
PACKAGES_KERNEL=(qemu-system-x86_64:qemu-system-x86 busybox:busybox-static modprobe:kmod cpio:cpio xz:xz-utils mdadm:mdadm nbd-client:nbd-client dmsetup:dmsetup
    nvme:nvme-cli mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs mkfs.f2fs:f2fs-tools sqlite3:sqlite3 fio:fio jq:jq ss:iproute2 stress-ng:stress-ng
    sgdisk:gdisk pvcreate:lvm2 sfdisk:fdisk mkswap:util-linux syslinux:syslinux mcopy:mtools mkfs.vfat:dosfstools)

note() { echo "$*" >&2; }

have_program() {
    [[ $1 != crt1.o ]] || { gcc -print-file-name=crt1.o 2>/dev/null | grep -q /; return; }
    [[ $1 != *.h ]] || { gcc -E -x c - <<<"#include <$1>" >/dev/null 2>&1; return; }
    PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null
}

# A user who is not root needs the programs of Debian's sbin folders too (mke2fs, mdadm).
PATH=$PATH:/usr/sbin:/sbin

missing_packages() { # PROGRAM:PACKAGE…: the packages of missing programs
    local word
    for word; do have_program "${word%%:*}" || echo "${word#*:}"; done | sort -u
}

as_root() { # prints the prefix that runs a command as root; fails if there is no way
    if ((EUID == 0)); then return 0; fi
    command -v sudo >/dev/null && echo sudo
}

apt_updated=
apt_install() { # PACKAGE…
    local sudo log
    command -v apt-get >/dev/null || { note "this machine has no apt-get; install these packages by hand: $*"; return 1; }
    sudo=$(as_root) || { note "run this as root: apt-get install $*"; return 1; }
    note "installing with apt-get: $*"
    log=$(mktemp)
    if [[ -z $apt_updated ]]; then $sudo apt-get -q update >"$log" 2>&1 </dev/null || true; apt_updated=1; fi
    if $sudo env DEBIAN_FRONTEND=noninteractive apt-get -qy --no-install-recommends install "$@" >>"$log" 2>&1 </dev/null
    then rm -f "$log"
    else
        note "apt-get could not install $*:"; grep -E '^[EW]:' "$log" | tail -n 5 >&2 || true
        rm -f "$log"; return 1
    fi
}

install_packages() { # needed|optional PROGRAM:PACKAGE…
    local kind=$1 package; shift
    local -a packages
    mapfile -t packages < <(missing_packages "$@")
    ((${#packages[@]})) || return 0
    if apt_install "${packages[@]}" && [[ -z $(missing_packages "$@") ]]; then return 0; fi
    for package in "${packages[@]}"; do # one package at a time: a package that is missing must not block the others
        ((${#packages[@]} == 1)) || apt_install "$package" 2>/dev/null || true
    done
    mapfile -t packages < <(missing_packages "$@")
    ((${#packages[@]})) || return 0
    if [[ $kind == needed ]]; then
        note "cannot continue without these packages: ${packages[*]}; try: apt-get install ${packages[*]}"
        exit 1
    fi
    note "not installed: ${packages[*]}; parts that need them will be skipped"
}

rust_version() { sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml"; }

at_least() { # VERSION LEAST
    [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]
}

cargo_is_new_enough() { # CARGO
    local version
    version=$("$1" --version 2>/dev/null | awk '{ print $2 }') || return 1
    [[ -n $version ]] && at_least "${version%%-*}" "$(rust_version)"
}

use_cargo_of_this_machine() {
    local candidate
    for candidate in "$(command -v cargo || true)" "$HOME/.cargo/bin/cargo" /usr/bin/cargo-[0-9]* /usr/lib/rust-*/bin/cargo; do
        [[ -x $candidate ]] && cargo_is_new_enough "$candidate" || continue
        cargo=$candidate
        # PATH finds rustc, rustfmt and clippy of the same toolchain first.
        PATH=$(dirname "$(readlink -f "$candidate")"):$(dirname "$candidate"):$PATH
        return 0
    done
    return 1
}

use_rustup() {
    note "installing the stable Rust toolchain with rustup (cargo $(rust_version) or newer is needed)"
    rustup toolchain install stable --profile minimal -c clippy -c rustfmt >&2 && rustup default stable >&2 || return 1
    hash -r
    use_cargo_of_this_machine
}

apt_version() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: *\(([^)]*)\|[0-9]*:\)\?\([0-9.]*\).*/\2/p'; }

use_cargo_package() { # the oldest distribution package of cargo that is new enough, like cargo, cargo-web or cargo-1.89
    local package version
    while read -r package; do
        version=$(apt_version "$package")
        # Debian once numbered cargo differently from rustc: cargo 0.66 belongs to Rust 1.65.
        [[ -n $version ]] && at_least "$version" "$(rust_version)" || continue
        local suffix=${package#cargo}
        apt_install "$package" "rustc$suffix" || continue
        apt_install "rust$suffix-clippy" "rustfmt$suffix" 2>/dev/null || apt_install rust-clippy rustfmt 2>/dev/null || true
        hash -r
        if use_cargo_of_this_machine; then return 0; fi
    done < <(apt-cache search --names-only '^cargo(-[0-9.]+|-web)?$' 2>/dev/null | awk '{ print $1 }' | sort -V)
    return 1
}

find_cargo() {
    if use_cargo_of_this_machine; then return 0; fi
    if command -v rustup >/dev/null && use_rustup; then return 0; fi
    if command -v apt-get >/dev/null; then
        if [[ -z $apt_updated ]] && as_root >/dev/null; then
            $(as_root) apt-get -q update >/dev/null 2>&1 </dev/null || true; apt_updated=1
        fi
        if [[ -n $(apt_version rustup) ]] && apt_install rustup && use_rustup; then return 0; fi
        if use_cargo_package; then return 0; fi
    fi
    note "no cargo $(rust_version) or newer found: install Rust from https://rustup.rs, then run this again"
    exit 1
}

install_crate() { # NAME VERSION: built once for a user, then linked from each target folder
    local tools=${CARGO_TARGET_DIR:-$root/target}/tools/bin to=${XDG_CACHE_HOME:-$HOME/.cache}/twill-tools/$1-$2
    if [[ ! -x $to/bin/$1 ]]; then
        note "installing with cargo: $1 $2"
        "$cargo" install --quiet --locked --root "$to" --target-dir "$to/build" "$1" --version "$2" >&2 </dev/null ||
            { note "cargo could not install $1; tests that need it will be skipped"; return 0; }
        rm -rf "$to/build"
    fi
    mkdir -p "$tools"
    ln -sfn "$to/bin/$1" "$tools/$1"
}
