//! The command line: every command, option and its help. What the words mean is checked where they are used.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue};
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use engine::log::reclaim::choose::ReclaimPolicy;
use engine::members::load::UpdatePolicy;
use engine::stripe::redo::RedoContents;
use layout::geometry::MEMBERS_MAX;
use nvme_tcp::names::Nqn;

#[cfg(feature = "laboratory")]
use crate::commands::bench::BenchArguments;
use crate::commands::correct_size::CorrectSizeArguments;
use crate::commands::monitor::MonitorArguments;
use crate::commands::pages::{CompletionsArguments, ManPagesArguments};
use crate::commands::rename::RenameArguments;
use crate::commands::top::TopArguments;
use crate::commands::zero_superblock::ZeroSuperblockArguments;
use crate::control::Which;
use crate::remote_arguments::Fabric;
use crate::remote_arguments::nqn;
pub use crate::remote_arguments::{
    DeviceArguments, DiscoverArguments, Reducers, RemoteArguments, member_path,
};
use crate::status::DoubtRange;
use crate::switch::Switch;
use crate::{bytes, duration};

pub mod all;
mod bitmap;
mod hosts;
mod served;
mod tls;
mod unix;
mod zoned;

use all::{AllArguments, StartArguments};
pub use bitmap::{BitmapMapping, GrowArguments, NewBitmap};
use hosts::nvme_address;
pub use hosts::{HostArguments, HostSecret, SecretSource, ServedDevice, TargetArguments};
pub use served::ServedByOption;
pub use tls::TlsArguments;
pub use unix::UnixArguments;
pub use zoned::{CarrierChoice, MemberAccess, ZonedArguments, ZonesArguments};

/// Software RAID in user space for fast SSDs, on md's on-disk format.
#[derive(Debug, Parser)]
#[command(name = "twill", version, max_term_width = 110, after_help = AFTER_HELP, propagate_version = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Print one JSON document on standard output.
    #[arg(long, global = true)]
    pub json: bool,
    /// Log more: -v says what is done, -vv everything.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// How log lines are written.
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

impl Arguments {
    /// Reads the command line.
    ///
    /// # Errors
    /// What is wrong with it, or the help that was asked for.
    pub fn read() -> Result<Self, clap::Error> {
        Self::read_from(std::env::args_os())
    }

    /// Reads these words, of which the first is the program's name.
    ///
    /// # Errors
    /// As [`Arguments::read`].
    pub fn read_from<T: Into<OsString> + Clone>(
        words: impl IntoIterator<Item = T>,
    ) -> Result<Self, clap::Error> {
        let mut command = with_negative_numbers(Self::command());
        let matches = command.try_get_matches_from_mut(words).map_err(without_tip_of_force)?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }
}

/// clap suggests options that look like a word that it does not know. `--force` is never a guess: it gives something up.
fn without_tip_of_force(mut error: clap::Error) -> clap::Error {
    let is_force = |value: Option<&ContextValue>| {
        let text = match value {
            Some(ContextValue::StyledStrs(tips)) => tips.iter().map(ToString::to_string).collect(),
            Some(value) => value.to_string(),
            None => String::new(),
        };
        text.contains("--force")
    };
    for kind in [ContextKind::SuggestedArg, ContextKind::Suggested] {
        if is_force(error.get(kind)) {
            error.remove(kind);
        }
    }
    error
}

/// No option is a digit, so -1 is a value: that of an option which says what numbers it takes.
pub fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let takes = |arg: clap::Arg| {
        let takes_values = arg.get_action().takes_values();
        if takes_values { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(takes).mut_subcommands(with_negative_numbers)
}

const AFTER_HELP: &str = "Sizes are bytes, or with K, M, G, T powers of 1024: 64K is 65536 bytes.
Exit codes are listed in docs/exit-codes.md; 3 means that --force would help.

Example: six files become an array, a program uses it over NBD
  mkdir /tmp/demo && cd /tmp/demo
  twill create --level 5 --name demo --create-files 1G m0 m1 m2 m3 m4 m5
  twill serve --daemon --unix /tmp/demo.sock --scan .
  nbdcopy image.raw 'nbd+unix:///?socket=/tmp/demo.sock'
  twill stop demo";

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a new array of files or block devices.
    Create(CreateArguments),
    /// Say which members make up an array, and whether it would start. Changes nothing.
    Assemble(AssembleArguments),
    /// Serve an array to clients, in the foreground or as a daemon.
    Serve(Box<ServeArguments>),
    /// Have `serve --all`, which runs, serve an array, or whatever it does not serve yet.
    Start(StartArguments),
    /// Stop serving an array, so that it is clean on its members.
    Stop(StopArguments),
    /// Serve files and block devices to NVMe/TCP hosts, without an array.
    Target(TargetArguments),
    /// List what an NVMe/TCP target serves: what may be members on other machines.
    Discover(DiscoverArguments),
    /// Say in a few lines how a served array is.
    Status(StatusArguments),
    /// Show served arrays live: members with their speed, latency, progress, events, what to do next.
    Top(TopArguments),
    /// Say all about a served array, as mdadm --detail does.
    Detail(ServedArguments),
    /// Say what a member's superblock says, as mdadm --examine does.
    Examine(ExamineArguments),
    /// Say which arrays are served, and which ones devices make.
    List(ListArguments),
    /// Say how the zones of a zoned device are, as blkzone report does, or try whether it keeps to the rules of zones.
    Zones(ZonesArguments),
    /// Stop using a member.
    Fail(MemberArguments),
    /// End the doubt of stripes whose members do not come back: what their parity makes counts as right.
    AcceptDoubt(AcceptDoubtArguments),
    /// Remove a failed member or a spare, and close its device.
    Remove(RemoveArguments),
    /// Add a member, to be rebuilt or as a spare.
    Add(AddArguments),
    /// Take back a member that was away for a while: it gets only what was written since.
    ReAdd(ReAddArguments),
    /// Replace a member that still works: it is copied to another device, which then takes its place.
    Replace(ReplaceArguments),
    /// Say whether data and parity, or copies, agree, and which block on which member does not.
    Check(CheckArguments),
    /// Check, and rewrite what is known to be wrong.
    Repair(RepairArguments),
    /// Pause, resume or cancel a check or repair, or say what it found.
    Scrub(ScrubArguments),
    /// Say what happened to a served array, one event a line.
    Events(EventsArguments),
    /// Say how the members' targets work together.
    #[command(subcommand)]
    Fabric(FabricCommand),
    /// Tell people and programs what happens to the arrays of this machine: by mail, over the web, by a program.
    Monitor(MonitorArguments),
    /// Give an array that is not served another name.
    Rename(RenameArguments),
    /// Grow a served zoned array by members; or give an array that is not served a bitmap, or take it away, as mdadm --grow --bitmap does.
    Grow(GrowArguments),
    /// Make devices members of no array, as mdadm --zero-superblock does.
    ZeroSuperblock(ZeroSuperblockArguments),
    /// Put the size right that a member's superblock names, as mdadm --update=devicesize does.
    CorrectSize(CorrectSizeArguments),
    /// Change how a served array works, at once and until it is stopped.
    Set(SetArguments),
    /// Measure what an array does on this machine.
    #[cfg(feature = "laboratory")]
    Bench(BenchArguments),
    /// Simulate the RAID-enabled SSD of the adaptive-parity paper.
    #[cfg(feature = "laboratory")]
    Ssdsim(SsdsimArguments),
    /// Print what a shell needs to complete commands and options.
    #[command(hide = true)]
    Completions(CompletionsArguments),
    /// Write man pages to a folder.
    #[command(hide = true)]
    ManPages(ManPagesArguments),
}

/// Arguments of `create`.
#[derive(Debug, Args)]
#[command(after_help = "Example: RAID-6 over five devices, one of them to come later
  twill create --level 6 --chunk 64K --name store \\
    /dev/nvme0n1 /dev/nvme1n1 /dev/nvme2n1 /dev/nvme3n1 missing

Nothing is written before everything was checked. A member with a superblock, a file system, a partition table
or the like, and a file that has any data, needs --force; one that is in use is never taken.")]
pub struct CreateArguments {
    /// RAID level: 0, 1, 4, 5, 6 or 10.
    #[arg(short, long)]
    pub level: String,
    /// mdadm's name of the layout, like left-symmetric, n2 or f2 [default: left-symmetric; n2 at level 10].
    #[arg(short = 'p', long)]
    pub layout: Option<String>,
    /// Chunk, a member's share of a stripe [default: 64K, where mdadm takes 512K].
    #[arg(short, long, value_parser = bytes::parse_with_unit, value_name = "SIZE")]
    pub chunk: Option<u64>,
    /// Name of the array [default: the start of its UUID].
    #[arg(short = 'N', long)]
    pub name: Option<String>,
    /// Version of md's superblock: 1.2 (4 KiB from the start), 1.1 (at the start) or 1.0 (at the end); or zoned, for a
    /// log-structured array over zoned drives or software zones [default: zoned if all members are zoned drives, else 1.2].
    #[arg(short = 'e', long)]
    pub metadata: Option<String>,
    /// How much of each member to use [default: the size of the smallest, at RAID-0 all of each].
    #[arg(short = 'z', long, value_parser = bytes::parse_with_unit, value_name = "SIZE")]
    pub size: Option<u64>,
    /// Where the data begins on each member [default: mdadm's choice, by the size of the members]. What is free before it has
    /// the log of degraded writes: up to 16M of use.
    #[arg(long, value_parser = bytes::parse_with_unit, value_name = "SIZE")]
    pub data_offset: Option<u64>,
    /// Members that hold data; must agree with those given.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MEMBERS_MAX)))]
    pub raid_devices: Option<u32>,
    /// How many of the members, the last ones named, are spares.
    #[arg(short = 'x', long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=i64::from(MEMBERS_MAX)))]
    pub spare_devices: u32,
    /// Write-intent bitmap: internal, or none [default: internal if more than 100G of each member are used].
    #[arg(short, long, value_name = "internal|none")]
    pub bitmap: Option<NewBitmap>,
    /// Bytes of a member that one bit of the bitmap stands for [default: 64M, or more where the room is short].
    #[arg(long, value_parser = bytes::parse_with_unit, value_name = "SIZE")]
    pub bitmap_chunk: Option<u64>,
    /// Which part of the members a bit stands for: a chunk, or with dblock stripes all over, so that streams of writes do not
    /// meet at one bit. md does not start an array with dblock [default: contiguous].
    #[arg(long, value_name = "contiguous|dblock")]
    pub bitmap_mapping: Option<BitmapMapping>,
    /// How the array agrees again after a crash: by bitmap, by a resync of all of it, or not at all at level 0.
    #[arg(short = 'k', long, value_name = "POLICY")]
    pub consistency_policy: Option<Policy>,
    /// Parity already agrees with the data: no resync. Members without any data need none anyway.
    #[arg(long)]
    pub assume_clean: bool,
    /// Take members that hold something, which is lost, or that differ in size.
    #[arg(short, long)]
    pub force: bool,
    /// Make each member file that does not exist, as a sparse file of this size.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE")]
    pub create_files: Option<u64>,
    /// Stay until the resync is done.
    #[arg(short = 'W', long)]
    pub wait: bool,
    /// How a zoned array is laid out.
    #[command(flatten)]
    pub zoned: ZonedArguments,
    /// Files, block devices or namespaces on other machines (nvme://ADDRESS/NQN) in their order; `missing` leaves a slot empty.
    #[arg(required = true, value_name = "MEMBER", value_parser = member_path)]
    pub members: Vec<PathBuf>,
    /// How members on other machines are reached.
    #[command(flatten)]
    pub remote: RemoteArguments,
}

/// mdadm's consistency policies that Twill has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// Nothing is recorded: after a crash, the stripes that do not agree are unknown.
    None,
    /// One flag: all is resynced after a crash.
    Resync,
    /// A bit for each part: only parts that were being written are resynced.
    Bitmap,
}

/// Which members, and of which array.
#[derive(Clone, Debug, Args)]
pub struct Choice {
    /// Files, block devices, or namespaces on other machines (nvme://ADDRESS/NQN).
    #[arg(value_name = "MEMBER", value_parser = member_path)]
    pub members: Vec<PathBuf>,
    /// Look at the files of a folder, or at a file or device. Without PATH at all block devices.
    #[arg(long, value_name = "PATH", num_args = 0..)]
    pub scan: Option<Vec<PathBuf>>,
    /// The array with this UUID.
    #[arg(short, long)]
    pub uuid: Option<String>,
    /// The array with this name.
    #[arg(short = 'N', long)]
    pub name: Option<String>,
    /// Start with stale members, whose newer writes are lost, or degraded after a crash.
    #[arg(short, long)]
    pub force: bool,
    /// Wait so long, like 30s, for members that superblocks name and that are not there yet; 0 not at all [default: 5s for
    /// `serve --scan`, else 0]. When all are there it goes on at once, and after the wait without them. With this option paths
    /// that are named and not there are waited for, too.
    #[arg(long, value_name = "TIME", value_parser = duration::parse_or_seconds)]
    pub wait_members: Option<Duration>,
    /// How members on other machines are reached.
    #[command(flatten)]
    pub remote: RemoteArguments,
}

impl Choice {
    /// Whatever arrays are there, without force and without waiting.
    pub fn among(members: &[PathBuf], scan: Option<&[PathBuf]>, remote: &RemoteArguments) -> Self {
        Choice {
            members: members.to_vec(),
            scan: scan.map(<[PathBuf]>::to_vec),
            uuid: None,
            name: None,
            force: false,
            wait_members: None,
            remote: remote.clone(),
        }
    }
}

/// Arguments of `assemble`.
#[derive(Debug, Args)]
#[command(after_help = "Example: why does my array not start?
  twill assemble --explain --scan /dev/nvme?n1

The exit code says whether `twill serve` would start it.")]
pub struct AssembleArguments {
    /// Which members.
    #[command(flatten)]
    pub choice: Choice,
    /// Also say what each reason rests on: event counts, roles, times.
    #[arg(long)]
    pub explain: bool,
}

/// Arguments of `serve`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example: a daemon that serves over a socket and to the network
  twill serve --daemon --unix /run/store.sock --tcp 10.0.0.1:10809 \\
    /dev/nvme[0-5]n1

Example: to the network over TLS, for clients with a certificate
  twill serve --daemon --tcp 10.0.0.1:10809 \\
    --tls-certs /etc/twill/tls --tls-verify-peer /dev/nvme[0-5]n1
  nbdinfo 'nbds://10.0.0.1/?tls-certificates=/etc/pki/nbd'

Example: two arrays that share a spare, which the first one has
  twill serve --daemon --spare-group rack /dev/nvme[0-3]n1 /dev/nvme8n1
  twill serve --daemon --spare-group rack /dev/nvme[4-7]n1

Example: a drive of another machine, over NVMe/TCP
  twill serve --daemon --nvme-tcp 10.0.0.1 --insecure --reservations-new \\
    --allow-host nqn.2026-11.example:host0 /dev/nvme[0-5]n1
and on that host, whose NQN is in /etc/nvme/hostnqn
  nvme connect-all -t tcp -a 10.0.0.1 -s 4420

Example: all arrays of this machine in one process, and one more later
  twill serve --all --daemon --ublk
  twill serve --join --ublk /dev/nvme[8-9]n1

Example: a block device with a file system on it
  twill serve --daemon --ublk=0 /dev/nvme[0-5]n1
  mkfs.ext4 /dev/ublkb0 && mount /dev/ublkb0 /mnt

Ctrl-C, SIGTERM and `twill stop` end it in order: requests are finished and the superblocks are clean.")]
pub struct ServeArguments {
    /// Which members.
    #[command(flatten)]
    pub choice: Choice,
    /// One array, or many in one process.
    #[command(flatten)]
    pub of_all: AllArguments,
    /// At which Unix sockets, and who may connect to them.
    #[command(flatten)]
    pub unix: UnixArguments,
    /// Serve NBD at this address; may be repeated. NBD knows no passwords: use a network you trust, or --tls-certs with
    /// --tls-verify-peer.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub tcp: Vec<SocketAddr>,
    /// Whether NBD clients encrypt.
    #[command(flatten)]
    pub tls: TlsArguments,
    /// Serve the array to NVMe/TCP hosts at this address and port [default: 4420]; may be repeated. Not over NBD then unless
    /// --unix or --tcp say so too. No host may connect until --allow-host names it.
    #[arg(long, value_name = "ADDRESS[:PORT]", value_parser = nvme_address)]
    pub nvme_tcp: Vec<SocketAddr>,
    /// Answer Prometheus at this address, under /metrics, and say under /health whether clients are served. There is no
    /// password.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub metrics: Option<SocketAddr>,
    /// Allow changes from the page at that address, such as checks or the removal of a member, to anyone who types the token
    /// in this file. Only at a loopback address, since nothing is encrypted.
    #[arg(long, value_name = "FILE", requires = "metrics")]
    pub metrics_token: Option<PathBuf>,
    /// Name of the subsystem that NVMe/TCP hosts connect to [default: one made of the array's UUID].
    #[arg(long, value_name = "NQN", value_parser = nqn, requires = "nvme_tcp")]
    pub nvme_nqn: Option<Nqn>,
    /// Which NVMe/TCP hosts may connect.
    #[command(flatten)]
    pub hosts: HostArguments,
    /// Serve the array as block device /dev/ublkbN of this machine, and not over NBD unless --unix or --tcp say so too.
    /// A device that a killed server of the array left behind is taken over, with this option or without.
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true)]
    pub ublk: Option<Option<u32>>,
    /// Copy reads of the block device into its requests, also where the kernel lets members read straight into them (from
    /// Linux 6.16 on, as root).
    #[arg(long)]
    pub no_zero_copy: bool,
    /// Name of the export [default: the array's name]. Clients that ask for none get it too.
    #[arg(long, value_name = "NAME")]
    pub export_name: Option<String>,
    /// Threads that serve, each with a core of its own [default: as many as cores, at most 8].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub shards: Option<u16>,
    /// Keep each client's writes on the shard of its connection, even if that core is the limit and others are idle.
    #[arg(long)]
    pub no_balance: bool,
    /// Memory for parity that small writes would read again; 0 for none. By default 64M, or less where the process may have less
    /// than 512M.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE")]
    pub parity_cache: Option<u64>,
    /// Of a zoned array: memory for its map, of which the rest stays in the log. By default an eighth of what the process may
    /// have, at most 2G.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE")]
    pub map_memory: Option<u64>,
    /// Of a zoned array: how much of its map may change before a checkpoint is written [default: 256M]. A start after a crash reads
    /// what came after the newest one.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE")]
    pub map_dirty: Option<u64>,
    /// Of a zoned array: whether checkpoints of its map are written and used. Without, every start reads what was ever written.
    #[arg(long, value_name = "on|off", default_value = "on")]
    pub checkpoint: Switch,
    /// Of a zoned array: which segments reclaim empties first: greedy, or cost-benefit, which counts their age, too.
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub reclaim: ReclaimPolicy,
    /// Of a zoned array: whether reclaim goes on while clients write nothing, until a comfortable part of it is free.
    #[arg(long, value_name = "on|off", default_value = "on")]
    pub idle_reclaim: Switch,
    /// Do not gather writes of one stripe before reading for them.
    #[arg(long)]
    pub no_two_phase: bool,
    /// How small writes choose what to read for new parity: fewest-reads, or adaptive to the members' load.
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub update_policy: UpdatePolicy,
    /// Reconstruct reads of a member that is far slower than the others, at the price of more reads. Parity must be
    /// right: not for arrays made with --assume-clean that were never checked.
    #[arg(long)]
    pub avoid_slow: bool,
    /// Record nothing of the writes under way, although the array has redundancy: after a crash parity may not agree with
    /// data, and no resync follows. Only for contents that may be lost.
    #[arg(short = 'k', long, value_name = "none", value_parser = only_none)]
    pub consistency_policy: Option<Policy>,
    /// While members are missing, write stripes as md does, without logging them first: faster, but after a crash what the
    /// missing members held is in doubt where writes were under way: with a bitmap as far as that marks, else all of it.
    #[arg(long, conflicts_with = "redo")]
    pub no_redo_log: bool,
    /// What the redo log holds of a write to a RAID-4 or RAID-5 with a member missing. lean: what tells the missing chunk, one chunk's
    /// worth however many the write changes; a replay reads the other members. full: all data and parity that is written; a replay
    /// reads little. RAID-6 is always logged in full.
    #[arg(long, value_name = "CONTENTS", default_value_t)]
    pub redo: RedoContents,
    /// Where the parity of members on other machines is made: at this host, or at their targets (`twill target`), where these can. With
    /// peer, a write of less than a stripe crosses this host's network once, and connections have digests. auto tries both while there is
    /// load, and keeps the faster one.
    #[arg(long, value_name = "host|peer|auto", default_value = "host")]
    pub fabric: Fabric,
    /// With --fabric peer or auto: which target puts a lost chunk together, the one from which it is expected first, or any.
    #[arg(long, value_name = "fastest|random", default_value = "fastest", hide_short_help = true)]
    pub reducers: Reducers,
    /// Refuse to start degraded, as mdadm's option does.
    #[arg(long)]
    pub no_degraded: bool,
    /// Start without members on other machines that do not answer, as mdadm's option does. They are taken back by the bitmap when
    /// they are there again.
    #[arg(short = 'R', long, conflicts_with = "no_degraded")]
    pub run: bool,
    /// Take back members that failed or were away, if the bitmap says what they lack.
    #[arg(long, conflicts_with = "read_only")]
    pub re_add: bool,
    /// Share spares with the other arrays of this machine that are served with this name.
    #[arg(long, value_name = "NAME")]
    pub spare_group: Option<String>,
    /// Accept no writes and write nothing on the members.
    #[arg(short = 'o', long)]
    pub read_only: bool,
    /// Use the page cache of the system: for files on file systems without direct I/O.
    #[arg(long)]
    pub buffered: bool,
    /// Threads poll for completions instead of sleeping.
    #[arg(long)]
    pub poll: bool,
    /// Control socket [default: NAME.sock in $XDG_RUNTIME_DIR/twill, for root in /run/twill].
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Go to the background once it serves.
    #[arg(long)]
    pub daemon: bool,
    /// Write the process number to this file once the members are held; remove the file at the end. A file that is there
    /// already must be empty or hold a process number.
    #[arg(long, value_name = "PATH")]
    pub pid_file: Option<PathBuf>,
    /// Append the log here rather than to standard error.
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Set by --daemon for the process in the background.
    #[arg(long, hide = true)]
    pub in_background: bool,
}

/// Which served array.
#[derive(Clone, Debug, Args)]
pub struct Served {
    /// Its control socket.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Its name, UUID, block device or a member; not needed when just one is served.
    pub array: Option<String>,
}

impl Served {
    /// For [`crate::control::connect`].
    pub fn which(&self) -> Which<'_> {
        Which { control: self.control.as_deref(), array: self.array.as_deref(), by_option: false }
    }
}

/// Arguments of `stop`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: an array by name; a new program in the place of the old one, under a mounted file system
  twill stop store

  twill stop --keep-device store && \\
    twill serve --daemon --name store /dev/nvme*n1"
)]
pub struct StopArguments {
    /// Which array.
    #[command(flatten)]
    pub served: Served,
    /// Leave the block device to the next server of the array, in use or not; its requests wait until then. Needs Linux
    /// 6.16 or later.
    #[arg(long)]
    pub keep_device: bool,
    /// Cut off clients that are still connected over NBD. A block device that is in use is refused all the same.
    #[arg(short, long)]
    pub force: bool,
}

/// Arguments of commands on a served array.
#[derive(Debug, Args)]
#[command(after_help = "Example: the only array that is served, or one by name
  twill detail
  twill detail store")]
pub struct ServedArguments {
    /// Which array.
    #[command(flatten)]
    pub served: Served,
}

/// Arguments of `set`.
#[derive(Debug, Args)]
#[command(after_help = "Example: small writes go round busy members from now on
  twill set --update-policy adaptive

  twill set --rate 200M --p99-budget 5ms

What a policy does and when it helps is in docs/adaptive.md. All lasts until the array is stopped.")]
pub struct SetArguments {
    /// Which array.
    #[command(flatten)]
    pub served: Served,
    /// How small writes choose what to read for new parity: fewest-reads, or adaptive to the members' load.
    #[arg(
        long,
        value_name = "POLICY",
        required_unless_present_any = ["avoid_slow", "rate", "rate_min", "p99_budget"]
    )]
    pub update_policy: Option<UpdatePolicy>,
    /// Whether reads of a member that is far slower than the others are reconstructed.
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    pub avoid_slow: Option<bool>,
    /// Most that a resync, recovery or check does of each member in a second; 0 for no limit.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE")]
    pub rate: Option<u64>,
    /// Least that it may do in a second, even if clients wait longer [default: 1 MB].
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE")]
    pub rate_min: Option<u64>,
    /// Slow it down while more than a hundredth of the clients' requests takes longer than this, like 5ms; 0s for never.
    #[arg(long, value_parser = duration::parse, value_name = "TIME")]
    pub p99_budget: Option<std::time::Duration>,
}

fn socket_address(words: &str) -> Result<SocketAddr, &'static str> {
    words.parse().map_err(|_| {
        "it is an address in digits and a port, like 127.0.0.1:10809 or [::1]:10809, or 0.0.0.0:10809 for all of this \
         machine; a name may stand for several"
    })
}

fn only_none(word: &str) -> Result<Policy, &'static str> {
    match word {
        "none" => Ok(Policy::None),
        "bitmap" | "resync" => Err(
            "the array's superblocks decide between bitmap and resync: see create --bitmap and grow --bitmap",
        ),
        _ => Err("it is none, or left out"),
    }
}

fn on_off(word: &str) -> Result<bool, &'static str> {
    match word {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("it is on or off"),
    }
}

/// Arguments of `ssdsim`.
#[cfg(feature = "laboratory")]
#[derive(Debug, Args)]
#[command(
    after_help = "Example: the paper's policies on a stand-in of one of its traces, then all its figures
  twill ssdsim run --trace Ali_1 --stripe 7+1
  twill ssdsim run --trace some.csv.zst --policy baseline,adaptive --json
  twill ssdsim report --out report

What is modelled is in docs/ssdsim.md."
)]
pub struct SsdsimArguments {
    /// What to do.
    #[command(subcommand)]
    pub command: ssdsim::cli::Command,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
#[command(after_help = "Example: see a rebuild go on; let a script know whether all is well
  twill status --watch

  twill status --test || echo 'look after the arrays'")]
pub struct StatusArguments {
    /// Its control socket.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Its name, UUID, block device or a member; without one, all that are served.
    pub array: Option<String>,
    /// Show progress until the array is stopped.
    #[arg(short, long)]
    pub watch: bool,
    /// End with code 21 if an array is degraded, 22 if one has failed.
    #[arg(short, long, conflicts_with = "watch")]
    pub test: bool,
    /// Wait until no resync or recovery is under way. Code 20 if stripes are in doubt then.
    #[arg(short = 'W', long)]
    pub wait: bool,
}

/// Arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Example: what is served, and what could be served from the devices of this machine
  twill list
  twill list --scan
  twill list --json /dev/nvme?n1 | jq -r '.found[].name'
Example: a check of each array that is served, one after the other
  twill list --names | while read -r array; do twill check \"$array\"; done")]
pub struct ListArguments {
    /// Print only a word for each array that is served, a line each: its name, or its UUID where another has that name too or
    /// a script or unit would not take it for one word.
    #[arg(long, conflicts_with_all = ["members", "scan"])]
    pub names: bool,
    /// Look for arrays on these files, block devices or namespaces on other machines (nvme://ADDRESS/NQN), too.
    #[arg(value_name = "MEMBER", value_parser = member_path)]
    pub members: Vec<PathBuf>,
    /// Look at the files of a folder, or at a file or device. Without PATH at all block devices.
    #[arg(long, value_name = "PATH", num_args = 0..)]
    pub scan: Option<Vec<PathBuf>>,
    /// How members on other machines are reached.
    #[command(flatten)]
    pub remote: RemoteArguments,
}

/// Arguments of `examine`.
#[derive(Debug, Args)]
#[command(after_help = "Example: what do these devices belong to?
  twill examine /dev/nvme?n1
  twill examine --json member0 | jq .members[0].superblock.events
Example: what do the zones of this zoned member hold?
  twill examine --segments /dev/nvme0n2")]
pub struct ExamineArguments {
    /// Of zoned members, also say what each zone holds, by its segment header, even if no superblock is usable.
    #[arg(long)]
    pub segments: bool,
    /// Which members.
    #[command(flatten)]
    pub of: DeviceArguments,
}

/// Arguments of commands on a member of a served array.
#[derive(Debug, Args)]
#[command(after_help = "Example: by path, or by slot in the array named store
  twill fail /dev/nvme3n1
  twill fail --array store 3")]
pub struct MemberArguments {
    /// Which array.
    #[command(flatten)]
    pub served: ServedByOption,
    /// Also during a resync: what the member holds where parity was not made yet cannot be read until it is back.
    #[arg(short, long)]
    pub force: bool,
    /// Path or slot.
    pub member: String,
}

/// Arguments of `accept-doubt`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: the member that held better data is gone for good; what is in doubt, and then all of it
  twill status --json store | jq .arrays[0].doubts
  twill accept-doubt --all store

What missing members held in these stripes is made from parity from then on, though a crash may have left it older than
the data beside it, or a mix of both. If nothing was written without the missing member, stop the array and serve it
with that member instead. Compare what matters with a backup afterwards."
)]
pub struct AcceptDoubtArguments {
    /// Which array.
    #[command(flatten)]
    pub served: Served,
    /// All stripes in doubt.
    #[arg(long, conflicts_with = "stripes", required_unless_present = "stripes")]
    pub all: bool,
    /// These stripes, from the first to the last; more than once for more.
    #[arg(long, value_name = "FIRST-LAST", value_parser = stripes)]
    pub stripes: Vec<DoubtRange>,
}

/// `7-12`, or `7`.
fn stripes(text: &str) -> Result<DoubtRange, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_| format!("{text:?} is no stripe number"));
    let (first, last) = (number(first)?, number(last)?);
    match first <= last {
        true => Ok(DoubtRange { first, last }),
        false => Err(format!("the last stripe, {last}, is before the first, {first}")),
    }
}

/// Arguments of `remove`.
#[derive(Debug, Args)]
#[command(after_help = "Example: remove all failed members
  twill remove failed")]
pub struct RemoveArguments {
    /// Which array.
    #[command(flatten)]
    pub served: ServedByOption,
    /// Path or slot, of a spare its path; `failed` for all failed members, `detached` for those whose device is gone.
    pub member: String,
}

/// Arguments of `add`.
#[derive(Debug, Args)]
#[command(after_help = "Example: replace a failed member and see it rebuilt
  twill remove failed && twill add /dev/nvme9n1 && twill status --watch")]
pub struct AddArguments {
    /// Which array.
    #[command(flatten)]
    pub served: ServedByOption,
    /// Take it even if it holds something, which is lost.
    #[arg(short, long)]
    pub force: bool,
    /// File, block device, or namespace on another machine (nvme://ADDRESS/NQN).
    #[arg(value_parser = member_path)]
    pub member: PathBuf,
}

/// Arguments of `re-add`.
#[derive(Debug, Args)]
#[command(after_help = "Example: a cable was loose for a minute
  twill re-add /dev/nvme3n1 && twill status --watch

The array needs a bitmap, which knows what was written meanwhile. A member that was away for too long, or was used
elsewhere, is refused (code 19): `twill add` rebuilds all of it. A member that failed is removed first.")]
pub struct ReAddArguments {
    /// Which array.
    #[command(flatten)]
    pub served: ServedByOption,
    /// File, block device, or namespace on another machine (nvme://ADDRESS/NQN).
    #[arg(value_parser = member_path)]
    pub member: PathBuf,
}

/// Arguments of `replace`.
#[derive(Debug, Args)]
#[command(after_help = "Example: a drive is about to wear out
  twill replace /dev/nvme3n1 --with /dev/nvme9n1 && twill status --watch

The array stays whole meanwhile: the member is read as long as it can be, and only what it cannot read is made from the \
others. Should it fail on the way, the new device has its place at once and the rest is rebuilt. The old device is closed \
when all is done, and can be pulled. `twill remove` with the new device calls it off.")]
pub struct ReplaceArguments {
    /// Which array.
    #[command(flatten)]
    pub served: ServedByOption,
    /// The device that takes its place: a new one, or one of the array's spares [default: a spare].
    #[arg(long, value_name = "DEVICE", value_parser = member_path)]
    pub with: Option<PathBuf>,
    /// Take the new device even if it holds something, which is lost.
    #[arg(short, long, requires = "with")]
    pub force: bool,
    /// Path or slot of the member.
    pub member: String,
}

/// Arguments of `check`.
#[derive(Debug, Args)]
#[command(after_help = "Example: is everything in order? The exit code says so
  twill check && echo all blocks agree
  twill check --json | jq '.report.found[] | {wrong, blocks}'

RAID-6 and mirrors of three say which block is wrong; RAID-5 and mirrors of two say where. It runs beside clients,
after any pending resync or recovery, and continues after a restart of the server.")]
pub struct CheckArguments {
    /// Which array.
    #[command(flatten)]
    pub served: Served,
    /// Begin at the start of the array, even if an earlier check was not finished.
    #[arg(long)]
    pub restart: bool,
    /// Return at once; the server goes on checking.
    #[arg(long)]
    pub no_wait: bool,
}

/// Arguments of `repair`.
#[derive(Debug, Args)]
#[command(after_help = "Example: repair what can be, and see what is left
  twill repair || twill scrub report

A block that is known to be wrong is rewritten from the others and read back. Where the wrong block cannot be
told from the right ones, RAID-5 gets new parity and mirrors get the first copy, as md does; RAID-6 rows with two
wrong blocks stay as they are unless --trust-data.")]
pub struct RepairArguments {
    /// As for a check.
    #[command(flatten)]
    pub check: CheckArguments,
    /// RAID-6: where two blocks of a row are wrong, make parity agree with the data.
    #[arg(long)]
    pub trust_data: bool,
}

/// Arguments of `scrub`.
#[derive(Debug, Args)]
#[command(after_help = "Example: not now
  twill scrub pause && make-backup && twill scrub resume")]
pub struct ScrubArguments {
    /// What to do.
    pub wish: ScrubWish,
    /// Which array.
    #[command(flatten)]
    pub served: Served,
}

/// What to do with a check or repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScrubWish {
    /// Stop for now; a restart of the server does not resume it.
    Pause,
    /// Go on from where it was paused.
    Resume,
    /// Stop for good.
    Cancel,
    /// Say what the last one found, or found so far.
    Report,
}

/// Arguments of `events`.
#[derive(Debug, Args)]
#[command(after_help = "Example: what happened, and what happens from now on
  twill events --follow
  twill events --json | jq 'select(.event == \"member-failed\")'")]
pub struct EventsArguments {
    /// Which array.
    #[command(flatten)]
    pub served: Served,
    /// Only events after the one with this number.
    #[arg(long, value_name = "SEQUENCE", default_value_t = 0)]
    pub since: u64,
    /// Print new events until the array is stopped.
    #[arg(short, long)]
    pub follow: bool,
}

/// What is asked about the members' targets.
#[derive(Debug, Subcommand)]
pub enum FabricCommand {
    /// Say where parity is made, and why not at the members' targets where it is not.
    #[command(after_help = "Example: why do small writes still cross this host's network twice?
  twill fabric explain")]
    Explain(ExplainArguments),
}

/// Arguments of `fabric explain`.
#[derive(Debug, Args)]
pub struct ExplainArguments {
    /// Which array.
    #[command(flatten)]
    pub served: Served,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Terminals are this wide: a longer line of an example is broken, and what is copied from there does not run.
    const TERMINAL_COLUMNS: usize = 80;

    fn check_help(command: &clap::Command, path: &str) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let is_leaf = command.get_subcommands().next().is_none();
        assert!(!is_leaf || help.contains("Example"), "{path} has no example");
        for line in help.lines().filter(|line| line.starts_with("  ")) {
            assert!(line.chars().count() <= TERMINAL_COLUMNS, "{path}: break it with a backslash: {line}");
        }
        for sub in command.get_subcommands() {
            check_help(sub, &format!("{path} {}", sub.get_name()));
        }
    }

    #[test]
    fn every_command_has_examples_that_can_be_copied() {
        check_help(&Arguments::command(), "twill");
    }

    #[test]
    fn a_negative_number_is_told_what_numbers_are_taken() {
        for (line, says) in [
            ("twill create -l 5 -x -1 a b c", "-1 is not in 0..=1920"),
            ("twill create -l 5 -n -1 a b c", "-1 is not in 1..=1920"),
            ("twill set --rate -1", "no size; write bytes, or K, M, G"),
            ("twill serve --shards -1 a", "-1 is not in 1..=256"),
            #[cfg(feature = "laboratory")]
            ("twill bench nbd --runs -1", "invalid digit"),
        ] {
            let command = with_negative_numbers(Arguments::command());
            let error = command.try_get_matches_from(line.split(' ')).expect_err(line).to_string();
            assert!(error.contains(says) && !error.contains("--'"), "{line}: {error}");
        }
    }

    #[test]
    fn force_is_never_suggested() {
        for line in ["twill create -l 5 --forc a b c", "twill list --force", "twill add --forces a"] {
            let error = Arguments::read_from(line.split(' ')).expect_err(line).to_string();
            let tips: Vec<&str> = error.lines().filter(|line| line.contains("tip:")).collect();
            assert!(!tips.iter().any(|tip| tip.contains("--force")), "{line}: {error}");
        }
        let error =
            Arguments::read_from(["twill", "create", "--leve", "5"]).expect_err("no option").to_string();
        assert!(error.contains("exists: '--level'"), "other tips stay: {error}");
    }

    #[test]
    fn an_address_that_is_none_is_told_what_one_is() {
        assert_eq!(socket_address("[::1]:10809"), Ok(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 10809))));
        assert!(socket_address("localhost:10809").is_err_and(|words| words.contains("127.0.0.1:10809")));
    }
}
