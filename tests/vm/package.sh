#!/bin/bash
# vm: --mem 3G --nvme 2:64M --mod raid1 --timeout 900
# takes: 120 s
# package.sh: the Debian package, which `cargo xtask package` made before: installed by dpkg into a system of its own, upgraded, purged;
# then its files in this system, where md's own rules of udev run: they leave the members of Twill's arrays alone where the recipes
# of docs/boot.md say so: the rule of the package, or mdadm.conf.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/array.sh"

shopt -s nullglob
packages=("$root"/target/debian/twill_*.deb)
((${#packages[@]})) || skip "there is no package: cargo xtask package makes it"
package=${packages[-1]}
udevd=/lib/systemd/systemd-udevd
[[ -x $udevd && -e /lib/udev/rules.d/64-md-raid-assembly.rules ]] || skip "udev or mdadm is not installed"
begin
members=(/dev/nvme0n1 /dev/nvme1n1)

# A system with a shell and nothing else. The database of this machine's packages would take minutes to read here.
small=$scratch/small
mkdir -p "$small"/{bin,dev,etc,run} "$small"/var/lib/dpkg/{info,updates}
touch "$small"/var/lib/dpkg/{status,available} "$small/dev/null"
cp "$(command -v busybox)" "$small/bin/busybox"
for applet in sh mkdir rm rmdir ls; do ln -s busybox "$small/bin/$applet"; done
in_small() { dpkg --root="$small" --force-depends --force-unsafe-io "$@" >"$scratch/dpkg" 2>&1 || die "dpkg $*: $(cat "$scratch/dpkg")"; }
all_files() { (cd "$small" && find . ! -path './var/lib/dpkg/*' | sort); }

all_files >"$scratch/before"
in_small -i "$package"
for path in usr/bin/twill usr/share/man/man1/twill.1.gz usr/share/man/man1/twill-create.1.gz usr/lib/systemd/system/twill.service \
    usr/share/doc/twill/examples/twill.toml etc/twill/arrays; do
    [[ -e $small/$path ]] || die "/$path is not installed"
done
bash -c ". '$small/usr/share/bash-completion/completions/twill' && complete -p twill" >/dev/null || die "bash does not complete"
mkdir -p "$small/var/lib/twill"
touch "$small/etc/twill/store.env" "$small/var/lib/twill/events-1.log"
in_small -i "$package"
in_small --remove twill
[[ -e $small/etc/twill/store.env && ! -e $small/usr/bin/twill ]] || die "a removal keeps what was configured, and nothing else"
in_small --purge twill
all_files | diff "$scratch/before" - || die "this is left"
say "installed, upgraded, removed and purged: nothing is left"

dpkg-deb --extract "$package" "$scratch/files"
cp -r "$scratch"/files/usr/{bin,lib} /usr/
mkdir -p /etc/twill/arrays
TWILL=/usr/bin/twill
if command -v systemd-analyze >/dev/null; then
    for unit in twill@store.service twill.service twill-check@store.service twill-check@store.timer twill-checks.service twill-checks.timer; do
        systemd-analyze verify --man=no $unit >"$scratch/verify" 2>&1 || die "$unit: $(cat "$scratch/verify")"
        ! grep twill "$scratch/verify" || die "$unit has a fault"
    done
fi

md_runs() { grep -q '^md' /proc/mdstat; }
seen_by_udev() { # the members appear once more
    udevadm trigger --action=add --settle "${members[@]}"
}
type_of() { udevadm info --query=property --name="$1" | sed -n 's/^ID_FS_TYPE=//p'; }

$udevd --daemon
$TWILL create --level 1 --name store --assume-clean "${members[@]}" >/dev/null
seen_by_udev
! md_runs || die "md assembled an array as soon as it was created: $(cat /proc/mdstat)"
keep=/etc/twill/arrays/$(lsblk -dno UUID "${members[0]}")
[[ -e $keep ]] || die "create did not make $keep"
rm "$keep"
seen_by_udev
md_runs || die "md's rules do not assemble what they are left to: the rest would test nothing"
say "md assembles an array that it is left to"

# Whoever closes a member that it wrote to causes a change event, some time later, on which md's rules assemble: so the next
# recipe is in place before the array of the last one is stopped.
touch "$keep"
mdadm --quiet --stop --scan
seen_by_udev
! md_runs || die "md assembled an array that is Twill's: $(cat /proc/mdstat)"
[[ $(type_of "${members[0]}") == twill_raid_member ]] || die "its type is $(type_of "${members[0]}")"
$TWILL serve --daemon --shards 1 --name store --no-degraded "${members[@]}" >/dev/null
$TWILL status --test >/dev/null
seen_by_udev
! md_runs || die "md took members of an array that is served"
$TWILL stop
say "md leaves an array alone that /etc/twill/arrays names"

mkdir -p /etc/mdadm
mdadm --examine --scan "${members[0]}" | sed 's/^ARRAY [^ ]*/ARRAY <ignore>/' >>/etc/mdadm/mdadm.conf
rm "$keep"
seen_by_udev
! md_runs || die "md assembled an array that mdadm.conf ignores: $(cat /proc/mdstat)"
sed -i '/<ignore>/d' /etc/mdadm/mdadm.conf
seen_by_udev
md_runs || die "md does not go on with the members"
mdadm --quiet --stop --scan
say "md leaves an array alone that mdadm.conf ignores, and goes on with it later"
