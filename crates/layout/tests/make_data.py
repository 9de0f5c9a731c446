#!/usr/bin/env python3
"""Makes tests/data: what the kernel's md and mdadm put on members, for the tests to hold layout against.

    make_data.py OUT [map] [superblocks]

Run as root on a machine with mdadm, loop devices and the modules loop, raid0, raid1, raid10 and raid456; a virtual
machine that can be thrown away is best. It takes /dev/md127 and the loop devices that losetup hands out, and leaves
neither behind. Copy OUT over tests/data afterwards.

kernel-map.txt: arrays are filled with a pattern in which every 4 KiB block names its own place in the array; then
the members are read raw. One paragraph an array:

    array LEVEL LAYOUT_WORD MEMBERS CHUNK_BYTES ARRAY_BYTES DATA_BYTES...   (the last: of each member)
    ROW: CELL...       what each member holds in this row of chunks:
                       dN  the whole of the array's chunk N, in order
                       xH  no data: H are the first 16 bytes of its first block (parity), in hex
                       -   zeroes

superblocks/*.txt: the superblock, the bitmap's first 4 KiB and the bad-block log of one member as they are on it, and
what mdadm --examine and --examine-bitmap say of it.
"""
import os
import struct
import subprocess
import sys
import time

MD = "/dev/md127"
SYS = "/sys/block/md127/md"
BLOCK = 4096
MIX = (1 << 64) - 1


def run(*args, check=True):
    done = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(args)}: {done.stdout}")
    return done.stdout


def sysfs(name, value=None):
    path = f"{SYS}/{name}"
    if value is None:
        return open(path).read().strip()
    with open(path, "w") as file:
        file.write(value)


def wait_for(condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    raise RuntimeError("waited for a minute in vain")


class Members:
    """Loop devices over files of the given sizes."""

    def __init__(self, sizes, sector=512):
        self.files, self.devices = [], []
        for i, size in enumerate(sizes):
            path = f"/tmp/member{i}"
            with open(path, "wb") as file:
                file.truncate(size)
            loop = run("losetup", "--find", "--show", "--sector-size", str(sector), path).strip()
            self.files.append(path)
            self.devices.append(loop)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for _ in range(50):
            run("mdadm", "--quiet", "--stop", MD, check=False)
            if not os.path.exists("/sys/block/md127/md"):
                break
            time.sleep(0.1)
        for device, path in zip(self.devices, self.files):
            run("losetup", "--detach", device)
            os.unlink(path)

    def read(self, i, offset, length):
        # The file, not the device: its pages are what the loop device wrote.
        with open(self.files[i], "rb") as file:
            file.seek(offset)
            return file.read(length)


def mix(n):
    """SplitMix64's finalizer: the second half of a block's mark, so that parity differs in every byte."""
    n = (n + 0x9E3779B97F4A7C15) & MIX
    n = ((n ^ (n >> 30)) * 0xBF58476D1CE4E5B9) & MIX
    n = ((n ^ (n >> 27)) * 0x94D049BB133111EB) & MIX
    return n ^ (n >> 31)


def block(n):
    # Numbered from 1: a block of zeroes is none of ours.
    return struct.pack("<QQ", n + 1, mix(n + 1)) * (BLOCK // 16)


def block_number(data):
    n, mixed = struct.unpack_from("<QQ", data)
    return n - 1 if n and mixed == mix(n) and data == data[:16] * (len(data) // 16) else None


def fill():
    size = int(open("/sys/block/md127/size").read()) * 512
    with open(MD, "r+b", buffering=0) as file:
        written = 0
        while written < size:
            count = min(1 << 20, size - written)
            assert count % BLOCK == 0
            file.write(b"".join(block((written + i) // BLOCK) for i in range(0, count, BLOCK)))
            written += count
        os.fsync(file.fileno())
    return size


def superblock(members, i, place=4096):
    return bytearray(members.read(i, place, 4096))


def checksum(sb):
    sb = bytearray(sb[: 256 + 2 * struct.unpack_from("<I", sb, 220)[0]])
    sb[216:220] = bytes(4)
    words = sum(struct.unpack(f"<{len(sb) // 4}I", sb[: len(sb) // 4 * 4]))
    if len(sb) % 4:
        words += struct.unpack("<H", sb[-2:])[0]
    return (words & 0xFFFFFFFF) + (words >> 32) & 0xFFFFFFFF


def set_layout_word(members, word):
    """For layouts that the kernel has and mdadm cannot name."""
    for i, device in enumerate(members.devices):
        sb = superblock(members, i)
        struct.pack_into("<I", sb, 76, word)
        struct.pack_into("<I", sb, 216, checksum(sb))
        with open(device, "r+b") as file:
            file.seek(4096)
            file.write(sb)
            file.flush()
            os.fsync(file.fileno())


def cell(data, chunk):
    if not any(data):
        return "-"
    first = block_number(data[:BLOCK])
    if first is None:
        return "x" + data[:16].hex()
    for i in range(0, chunk, BLOCK):
        assert block_number(data[i : i + BLOCK]) == first + i // BLOCK, "a chunk is not in one piece"
    assert first * BLOCK % chunk == 0
    return f"d{first * BLOCK // chunk}"


def map_array(out, level, layout, members, chunk, rows, word=None, unequal=None):
    data_offset = 1 << 20
    data_rows = unequal or [rows] * members
    with Members([data_offset + (rows + 1) * chunk for rows in data_rows]) as devices:
        create = ["mdadm", "--create", MD, "--run", "--assume-clean", "--metadata=1.2", "--data-offset=1M"]
        create += [f"--level={level}", f"--raid-devices={members}", f"--chunk={chunk // 1024}"]
        create += [] if level == "0" else ["--bitmap=none"]
        create += [f"--layout={layout}"] if layout else []
        create += [] if unequal else ([f"--size={rows * chunk // 1024}"] if level != "0" else [])
        try:
            run(*create, *devices.devices)
            if word is not None:
                run("mdadm", "--stop", MD)
                set_layout_word(devices, word)
                run("mdadm", "--assemble", MD, *devices.devices)
            size = fill()
            run("mdadm", "--stop", MD)
        except RuntimeError as error:
            out.write(f"# refused: {level} {layout or ''} {word or ''} {members}: {' '.join(str(error).split())[-160:]}\n")
            return
        sb = superblock(devices, 0)
        offset = struct.unpack_from("<Q", sb, 128)[0] * 512
        word = struct.unpack_from("<I", sb, 76)[0]
        sizes = []
        for i in range(members):
            used, data = (struct.unpack_from("<Q", superblock(devices, i), at)[0] * 512 for at in (80, 136))
            sizes.append(used or data)
        out.write(f"array {level} {word:#x} {members} {chunk} {size} {' '.join(map(str, sizes))}\n")
        for row in range(max(sizes) // chunk):
            cells = []
            for i in range(members):
                at = row * chunk
                cells.append(cell(devices.read(i, offset + at, chunk), chunk) if at + chunk <= sizes[i] else "-")
            out.write(f"{row}: {' '.join(cells)}\n")
        out.flush()


R5 = ["la", "ra", "ls", "rs", "parity-first", "parity-last"]
R6 = R5 + ["ddf-zero-restart", "ddf-N-restart", "ddf-N-continue", "left-asymmetric-6", "right-asymmetric-6",
           "left-symmetric-6", "right-symmetric-6", "parity-first-6"]


def kernel_map(directory):
    with open(f"{directory}/kernel-map.txt", "w") as out:
        out.write(f"# {os.uname().sysname} {os.uname().release}, {run('mdadm', '--version').strip()}\n")
        for members, chunk in [(2, 4096), (5, 65536)]:
            map_array(out, "0", None, members, chunk, 4)
        map_array(out, "0", None, 3, 12288, 4)
        for layout in ["original", "alternate"]:
            map_array(out, "0", layout, 4, 8192, 0, unequal=[5, 2, 9, 9])
            map_array(out, "0", layout, 3, 65536, 0, unequal=[3, 1, 2])
        for members, chunk in [(3, 4096), (4, 65536)]:
            map_array(out, "4", None, members, chunk, 4)
        for layout in R5:
            for members, chunk in [(2, 4096), (3, 65536), (4, 4096), (7, 8192)]:
                map_array(out, "5", layout, members, chunk, members + 2)
        for layout in R6:
            for members, chunk in [(4, 4096), (5, 65536), (6, 4096), (9, 8192)]:
                map_array(out, "6", layout, members, chunk, members + 2)
        map_array(out, "5", "ls", 4, 1 << 20, 5)
        map_array(out, "6", "ls", 5, 1 << 19, 6)
        for layout in ["n2", "f2", "o2"]:
            for members, chunk in [(2, 4096), (3, 65536), (4, 4096), (5, 8192)]:
                map_array(out, "10", layout, members, chunk, 7)
        for layout in ["n3", "f3", "o3"]:
            for members in [3, 4, 5]:
                map_array(out, "10", layout, members, 4096, 8)
        # Near and far together, and far sets: 1 << 17 the old rule, 2 << 17 the new.
        for members in [4, 5, 6, 8]:
            map_array(out, "10", "f2", members, 4096, 8, word=0x202)
            map_array(out, "10", "o2", members, 4096, 8, word=0x10202)
        for members in [4, 5, 6, 7]:
            for sets in [1 << 17, 2 << 17]:
                map_array(out, "10", "f2", members, 4096, 8, word=0x201 | sets)
                map_array(out, "10", "o2", members, 4096, 8, word=0x10201 | sets)
        for members in [6, 7, 9]:
            map_array(out, "10", "f3", members, 4096, 9, word=0x301 | 2 << 17)
            map_array(out, "10", "f2", members, 4096, 8, word=0x202 | 2 << 17)


def hex_lines(data):
    """As hexdump has it: a line like the one before is left out, and * stands for all that are."""
    lines, before = [], None
    for at in range(0, len(data), 16):
        row = data[at : at + 16].hex(" ")
        if row != before:
            lines.append(f"{at:04x}: {row}")
        elif lines[-1] != "*":
            lines.append("*")
        before = row
    return [*lines, f"{len(data):04x}:"]


def keep(directory, name, members, i, sector=512):
    """Writes down member i's superblock as it now is on the device, at a moment when nothing changes it."""
    for _ in range(100):
        lines = describe(name, members, i, sector)
        if lines == describe(name, members, i, sector):
            break
    else:
        raise RuntimeError(f"{name}: changes all the time")
    with open(f"{directory}/superblocks/{name}.txt", "w") as out:
        out.write("\n".join(line.rstrip() for line in lines) + "\n")


def describe(name, members, i, sector):
    device = members.devices[i]
    size = os.stat(members.files[i]).st_size
    for place in (4096, 0, ((size // 512 - 16) & ~7) * 512):
        sb = members.read(i, place, 4096)
        if sb[:4] == b"\xfc\x4e\x2b\xa9" and struct.unpack_from("<Q", sb, 144)[0] * 512 == place:
            break
    else:
        raise RuntimeError(f"{name}: no superblock")
    features = struct.unpack_from("<I", sb, 8)[0]
    lines = [f"device {size} bytes, sector {sector}, superblock at {place}", "== superblock", *hex_lines(sb)]
    if features & 1:
        at = place + struct.unpack_from("<i", sb, 96)[0] * 512
        lines += ["== bitmap", *hex_lines(members.read(i, at, 4096))]
        lines += ["== examine-bitmap", run("mdadm", "--examine-bitmap", device).rstrip()]
    if features & 8:
        at = place + struct.unpack_from("<i", sb, 188)[0] * 512
        lines += ["== bad blocks", *hex_lines(members.read(i, at, 4096))]
    return [*lines, "== examine", run("mdadm", "--examine", device, check=False).strip()]


def create(members, *args, name="golden"):
    run("mdadm", "--create", MD, "--run", "--homehost=any", f"--name={name}", *args, *members.devices)


MIB = 1 << 20


def simple(directory, name, count, *args, size=32 * MIB, sector=512, stop=True, keep_member=1):
    with Members([size] * count, sector) as members:
        create(members, *args, name=name)
        if stop:
            run("mdadm", "--wait", MD, check=False)
            run("mdadm", "--stop", MD)
        keep(directory, name, members, keep_member, sector)


def superblocks(directory):
    os.makedirs(f"{directory}/superblocks", exist_ok=True)
    clean = ["--assume-clean"]
    for minor in ["1.0", "1.1", "1.2"]:
        for bitmap in ["none", "internal"]:
            simple(directory, f"raid5-{minor}-bitmap-{bitmap}", 3, "--level=5", "--raid-devices=3",
                   f"--metadata={minor}", f"--bitmap={bitmap}", *clean)
    for level, count in [("0", 2), ("1", 2), ("4", 3), ("6", 4), ("10", 4)]:
        simple(directory, f"raid{level}", count, f"--level={level}", f"--raid-devices={count}",
               *([] if level == "0" else ["--bitmap=none", *clean]))
    simple(directory, "raid6-ddf", 5, "--level=6", "--raid-devices=5", "--layout=ddf-N-restart", "--chunk=64",
           "--bitmap=none", *clean)
    simple(directory, "raid10-offset", 3, "--level=10", "--raid-devices=3", "--layout=o2", "--bitmap=internal", *clean)
    simple(directory, "raid1-bitmap-chunk", 2, "--level=1", "--raid-devices=2", "--bitmap=internal",
           "--bitmap-chunk=64K", "--write-behind=256", "--write-mostly", *clean)
    simple(directory, "raid5-4k", 3, "--level=5", "--raid-devices=3", "--bitmap=internal", *clean, sector=4096)
    for minor in ["1.0", "1.1", "1.2"]:
        for size in [200 * MIB, 1 << 30, (1 << 34) + 12345 * 512, 1 << 40, (1 << 43) + 4096]:
            simple(directory, f"size-{minor}-{size}", 2, "--level=5", "--raid-devices=2", f"--metadata={minor}",
                   "--bitmap=internal", *clean, size=size)
    with Members([32 * MIB, 24 * MIB, 40 * MIB]) as members:
        create(members, "--level=0", "--raid-devices=3", name="raid0-zones")
        run("mdadm", "--stop", MD)
        keep(directory, "raid0-zones", members, 2)
    changing(directory)
    refused(directory)


def changing(directory):
    """Superblocks of arrays that something has happened to."""
    with Members([64 * MIB] * 5) as members:
        loops = members.devices
        run("mdadm", "--create", MD, "--run", "--homehost=any", "--name=events", "--level=6", "--raid-devices=4",
            "--bitmap=internal", "--spare-devices=1", "--assume-clean", *loops)
        keep(directory, "spare", members, 4)
        sysfs("sync_action", "frozen")
        run("mdadm", MD, "--fail", loops[1])
        time.sleep(0.5)
        keep(directory, "degraded", members, 0)
        keep(directory, "failed", members, 1)
        # md writes down how far it is once in each sixteenth of a member.
        sysfs("sync_speed_min", "1")
        sysfs("sync_speed_max", "2000")
        sysfs("sync_action", "idle")
        wait_for(lambda: struct.unpack_from("<Q", superblock(members, 4), 152)[0] > 0)
        keep(directory, "recovering", members, 4)
        sysfs("sync_speed_max", "system")
        sysfs("sync_speed_min", "system")
        run("mdadm", "--wait", MD, check=False)
        sysfs(f"dev-{os.path.basename(loops[0])}/bad_blocks", "5000 8")
        sysfs(f"dev-{os.path.basename(loops[0])}/bad_blocks", "9000 1")
        # The log is written with the superblock, and that when the array becomes active.
        with open(MD, "r+b", buffering=0) as file:
            file.write(block(0))
            os.fsync(file.fileno())
        run("mdadm", "--stop", MD)
        keep(directory, "bad-blocks", members, 0)
    with Members([64 * MIB] * 3) as members:
        run("mdadm", "--create", MD, "--run", "--homehost=any", "--name=resyncing", "--level=5", "--raid-devices=2",
            "--bitmap=none", "--force", *members.devices[:2])
        keep(directory, "resyncing", members, 0)


def refused(directory):
    """Superblocks with features that Twill names and refuses."""
    with Members([64 * MIB] * 4) as members:
        run("mdadm", "--create", MD, "--run", "--level=5", "--raid-devices=3", "--homehost=any", "--name=journal",
            f"--write-journal={members.devices[3]}", *members.devices[:3])
        keep(directory, "refused-journal", members, 0)
        keep(directory, "refused-journal-device", members, 3)
    with Members([64 * MIB] * 3) as members:
        create(members, "--level=5", "--raid-devices=3", "--consistency-policy=ppl", name="ppl")
        run("mdadm", "--wait", MD, check=False)
        keep(directory, "refused-ppl", members, 0)
    with Members([64 * MIB] * 4) as members:
        run("mdadm", "--create", MD, "--run", "--level=5", "--raid-devices=3", "--homehost=any", "--name=reshape",
            "--bitmap=none", "--assume-clean", *members.devices[:3])
        run("mdadm", MD, "--add", members.devices[3])
        sysfs("sync_speed_max", "100")
        run("mdadm", "--grow", MD, "--raid-devices=4")
        time.sleep(2)
        keep(directory, "refused-reshape", members, 0)
        sysfs("sync_speed_max", "1000000")
    with Members([64 * MIB] * 4) as members:
        run("mdadm", "--create", MD, "--run", "--level=5", "--raid-devices=3", "--homehost=any", "--name=replace",
            "--bitmap=none", "--assume-clean", *members.devices[:3])
        run("mdadm", MD, "--add", members.devices[3])
        sysfs("sync_speed_max", "100")
        run("mdadm", MD, "--replace", members.devices[0], "--with", members.devices[3])
        wait_for(lambda: superblock(members, 3)[8] & 16)
        keep(directory, "replacing", members, 3)
        sysfs("sync_speed_max", "1000000")
    with Members([32 * MIB] * 2) as members:
        run("mdadm", "--create", MD, "--run", "--level=1", "--raid-devices=2", "--metadata=0.90", "--assume-clean",
            *members.devices)
        run("mdadm", "--stop", MD)
        size = 32 * MIB
        sb = members.read(0, size - 65536, 4096)
        with open(f"{directory}/superblocks/refused-0.90.txt", "w") as out:
            lines = [f"device {size} bytes, sector 512, superblock at {size - 65536}", "== superblock", *hex_lines(sb)]
            lines += ["== examine", run("mdadm", "--examine", members.devices[0]).strip()]
            out.write("\n".join(line.rstrip() for line in lines) + "\n")


def main():
    directory, what = sys.argv[1], sys.argv[2:] or ["map", "superblocks"]
    if "map" in what:
        kernel_map(directory)
    if "superblocks" in what:
        superblocks(directory)


main()
