//! `grow`: a served array gets more members, or an array that is not served gets a bitmap, or loses the one it has. What is written, and in which order, is the engine's
//! decision; everything is looked at before the first byte is written.

use std::path::{Path, PathBuf};

use engine::array::assemble::{Filter, Verdict};
use engine::array::bitmap_change::{BitmapChange, BitmapPlan, BitmapRefusal, plan};
use layout::md_superblock::{BitmapError, display_uuid};
use layout::units::Slot;
use serde::Serialize;

use super::assemble;
use super::create::bitmap::checked_chunk;
use super::members;
use super::output::Output;
use crate::arguments::{Choice, GrowArguments, NewBitmap};
use crate::bytes;
use crate::counted::{counted, slots_words};
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::plain::plain;
use crate::probe::candidates::read_named;
use crate::probe::chosen::Chosen;
use crate::probe::inspection::inspection;
use crate::probe::member_file::MemberFile;
use crate::probe::zoned_candidates::ZonedCandidates;
use crate::remote;
use crate::serving::now_unix_s;

/// What `grow` answers.
#[derive(Debug, Serialize)]
struct Answer {
    name: String,
    uuid: String,
    bitmap: Option<AnswerBitmap>,
    members: Vec<String>,
    spares: Vec<String>,
    missing_slots: Vec<usize>,
}

#[derive(Debug, Serialize)]
struct AnswerBitmap {
    chunk_bytes: u32,
    bits: u64,
}

/// Adds members to a served array, or gives the array that the members make a bitmap, or takes it away.
///
/// # Errors
/// Why it stays as it is: nothing was written then. Or the system failed at a member.
pub fn run(arguments: &GrowArguments, output: Output) -> Result<(), Failure> {
    if !arguments.add.is_empty() {
        return members::grow(arguments, output);
    }
    remote::set(&arguments.remote)?;
    let change = change(arguments)?;
    let choice = choice(arguments);
    let filter = assemble::filter(&choice)?;
    let held = hold(&find(&choice, &filter)?)?;
    // Only now does no server change them.
    let chosen = Chosen::decide(read_named(&held.paths)?, &filter)?;
    let (candidates, array) = (&chosen.candidates, &chosen.array);
    let inspection = inspection(&candidates.paths, &candidates.read, array);
    let block_bytes = |candidate: usize| held.member(&candidates.paths[candidate]).logical_block_bytes;
    let plan = plan(&inspection, change, now_unix_s(), block_bytes).map_err(|why| refused(&chosen, why))?;
    write(&plan, &chosen, &held)?;
    let path = |candidate: usize| candidates.paths[candidate].display().to_string();
    let answer = Answer {
        name: array.name.clone(),
        uuid: display_uuid(&array.set_uuid),
        bitmap: plan
            .bitmap
            .map(|bitmap| AnswerBitmap { chunk_bytes: bitmap.chunk_bytes(), bits: bitmap.bits() }),
        members: array.slots.iter().flatten().copied().map(path).collect(),
        spares: array.spares.iter().copied().map(path).collect(),
        missing_slots: (0..array.slots.len()).filter(|slot| array.slots[*slot].is_none()).collect(),
    };
    output.print(&answer, answer_words)
}

fn change(arguments: &GrowArguments) -> Result<BitmapChange, Failure> {
    match (arguments.bitmap, arguments.bitmap_chunk) {
        (Some(NewBitmap::Internal), chunk) => Ok(BitmapChange::Add(chunk.map(checked_chunk).transpose()?)),
        (Some(NewBitmap::None) | None, None) => Ok(BitmapChange::Remove),
        (Some(NewBitmap::None) | None, Some(_)) => {
            Err(Failure::new(ExitKind::Usage, "--bitmap-chunk wants --bitmap internal"))
        }
    }
}

fn choice(arguments: &GrowArguments) -> Choice {
    let GrowArguments { members, scan, uuid, name, remote, .. } = arguments;
    Choice { uuid: uuid.clone(), name: name.clone(), ..Choice::among(members, scan.as_deref(), remote) }
}

fn find(choice: &Choice, filter: &Filter) -> Result<Chosen, Failure> {
    let of_name = |failure: Failure| match failure.kind {
        ExitKind::NotFound if failure.help.is_none() => {
            failure.help("an array is found by its name with --scan --name NAME")
        }
        _ => failure,
    };
    let candidates = assemble::read(choice).map_err(of_name)?;
    let chosen = Chosen::decide(candidates, filter);
    if chosen.as_ref().is_err_and(|failure| failure.kind == ExitKind::NotAMember) {
        let zoned = ZonedCandidates::read(&assemble::paths(choice)?, choice.scan.is_some());
        if let Some(array) = zoned.arrays(filter).first() {
            let message = format!("{} is a zoned array, which has no bitmap", array.name());
            return Err(Failure::new(ExitKind::Unsupported, message).help("there is nothing to resync in it"));
        }
    }
    chosen
}

/// The devices that belong to an array.
struct Held {
    paths: Vec<PathBuf>,
    members: Vec<MemberFile>,
}

impl Held {
    fn member(&self, path: &Path) -> &MemberFile {
        self.members.iter().find(|member| member.path == path).expect("every member and spare is held")
    }
}

/// Holds members and spares against others. Stale members are only looked at.
fn hold(chosen: &Chosen) -> Result<Held, Failure> {
    let mut held = Held { paths: Vec::new(), members: Vec::new() };
    let mut problems = Vec::new();
    for (index, verdict) in &chosen.array.verdicts {
        let path = &chosen.candidates.paths[*index];
        held.paths.push(path.clone());
        if matches!(verdict, Verdict::Refused { .. }) {
            continue;
        }
        match MemberFile::open_held(path) {
            Ok(member) => held.members.push(member),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() {
        return Ok(held);
    }
    let failure = Failure::from_problems("nothing was changed", problems);
    Err(match failure.kind {
        ExitKind::MemberInUse => failure.help("the bitmap of an array comes and goes while it is stopped"),
        _ => failure,
    })
}

fn write(plan: &BitmapPlan, chosen: &Chosen, held: &Held) -> Result<(), Failure> {
    let last = plan.rounds.len() - 1;
    for (round, writes) in plan.rounds.iter().enumerate() {
        let failed = |member: &MemberFile, error: &std::io::Error| {
            let what = if round == last { "write its superblock" } else { "write beside its superblock" };
            let problem = Problem::from_io(&member.path, what, error);
            let failure = Failure::from_problems("the bitmap is not changed on every member", vec![problem]);
            failure.help(match round == last {
                true => "the newest superblock decides: serve the array, and all members follow it",
                false => "the array is as it was",
            })
        };
        for write in writes {
            let member = held.member(&chosen.candidates.paths[write.candidate]);
            let written = member.write(write.offset.get(), &write.bytes);
            written.map_err(|error| failed(member, &error))?;
        }
        for member in &held.members {
            member.sync().map_err(|error| failed(member, &error))?;
        }
    }
    Ok(())
}

/// Why the bitmap stays as it is, with what would help.
fn refused(chosen: &Chosen, refusal: BitmapRefusal) -> Failure {
    let name = &chosen.array.name;
    let path = |slot: Slot| chosen.array.slots[slot.index()].map(|index| &chosen.candidates.paths[index]);
    match refusal {
        BitmapRefusal::Present => {
            Failure::new(ExitKind::AlreadyExists, format!("{name} has a bitmap already"))
                .help("for other chunks take it away first: twill grow --bitmap none")
        }
        BitmapRefusal::Absent => Failure::new(ExitKind::MemberInUse, format!("{name} has no bitmap"))
            .help("twill examine says what each member has; --bitmap internal gives it one"),
        BitmapRefusal::Bitmap(error) => {
            let failure = Failure::new(ExitKind::BadGeometry, format!("no bitmap for {name}: {error}"));
            match error {
                BitmapError::Chunk { least, .. } => {
                    failure.help(format!("take --bitmap-chunk {} or more", bytes::short(least.into())))
                }
                BitmapError::NoRoom => failure.help("arrays that mdadm or Twill makes now have room for one"),
                _ => failure.help("levels 1, 4, 5, 6 and 10 may have one"),
            }
        }
        BitmapRefusal::Foreign(problem) => {
            let path = &chosen.candidates.paths[problem.candidate];
            let problem = Problem::new(ExitKind::Unsupported, path, problem.reason);
            Failure::from_problems(format!("the bitmap of {name} is none of Twill's"), vec![problem])
                .help("the members have md's format: mdadm may take it away")
        }
        BitmapRefusal::Missing(slots) => {
            let message = format!("{name}: no member in {}", slots_words(&slots));
            Failure::new(ExitKind::NotEnoughMembers, message).help(
                "name all members: one that is missing now would be back without what the others have. One that is gone for \
                 good counts as failed once the array was served without it and written",
            )
        }
        BitmapRefusal::Rebuilding(slot) => {
            let of = path(slot).map_or_else(|| PathBuf::from(format!("slot {slot}")), Clone::clone);
            let problem = Problem::new(ExitKind::MemberInUse, &of, "is being rebuilt or replaced");
            Failure::from_problems("nothing was changed", vec![problem]).help(FINISH)
        }
        BitmapRefusal::Unclean => {
            let message = format!("{name} was not stopped cleanly, or its resync is not finished");
            Failure::new(ExitKind::MemberInUse, message).help(FINISH)
        }
    }
}

/// What ends a resync or a recovery.
const FINISH: &str = "serve the array, wait for it with `twill status --wait`, and stop it";

fn answer_words(answer: &Answer) -> String {
    let paths = answer.members.iter().chain(&answer.spares).map(|path| plain(path));
    let paths = paths.collect::<Vec<_>>().join(", ");
    let name = plain(&answer.name);
    let mut text = match &answer.bitmap {
        Some(bitmap) => format!(
            "{name} has a bitmap now: {} for {} each, on {paths}\n",
            counted(bitmap.bits, "bit"),
            bytes::human(bitmap.chunk_bytes.into())
        ),
        None => format!("{name} has no bitmap any more, on {paths}\n"),
    };
    if !answer.missing_slots.is_empty() {
        let slots = slots_words(&answer.missing_slots);
        text += &format!("{slots}: a member that was there has to be added and rebuilt whole\n");
    }
    text
}
