//! Zoned arrays among the candidates of `assemble`.

use std::path::PathBuf;

use engine::array::assemble::{Filter, Verdict};
use engine::array::zoned::assemble::ZonedAssembly;
use layout::md_superblock::display_uuid;
use layout::zoned::BLOCK_BYTES;

use super::answer::{Answer, AnswerArray, AnswerCandidate, Basis};
use super::in_use::check_none;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::probe::member_file::MemberFile;
use crate::probe::zoned_candidates::{ZonedCandidates, kind_of, may_start};

/// What candidates make up zoned arrays, and which of their members are in use.
pub(super) struct Zoned {
    candidates: ZonedCandidates,
    arrays: Vec<(ZonedAssembly, Vec<Problem>)>,
}

impl Zoned {
    /// Looks among these paths, which a person named, or a search found.
    pub(super) fn find(paths: &[PathBuf], are_found: bool, filter: &Filter) -> Self {
        let candidates = ZonedCandidates::read(paths, are_found);
        let arrays = candidates.arrays(filter);
        let arrays = arrays.into_iter().map(|array| {
            let in_use = in_use(&candidates, &array);
            (array, in_use)
        });
        Zoned { arrays: arrays.collect(), candidates }
    }

    /// Adds them to the answer. What another reader refused for having no md superblock is explained here.
    pub(super) fn add_to(&self, answer: &mut Answer) {
        let is_here = |candidate: &AnswerCandidate| {
            self.candidates.paths.iter().any(|path| path.display().to_string() == candidate.path)
        };
        answer.others.retain(|candidate| !is_here(candidate));
        answer.arrays.extend(self.arrays.iter().map(|(array, in_use)| self.array(array, in_use)));
    }

    /// Whether all of them would start.
    pub(super) fn may_start(&self) -> Result<(), Failure> {
        let mut outcomes = self.arrays.iter();
        outcomes.try_for_each(|(array, in_use)| {
            may_start(&self.candidates, array).and_then(|()| check_none(in_use))
        })
    }

    fn array(&self, array: &ZonedAssembly, in_use: &[Problem]) -> AnswerArray {
        let plan = &array.speaker.plan;
        let is_free = in_use.is_empty();
        let busy = || (!is_free).then(|| "members are in use".to_owned());
        AnswerArray {
            name: array.name().to_owned(),
            uuid: display_uuid(&array.speaker.set_uuid),
            level: Some(plan.columns.level().to_string()),
            layout: None,
            chunk_bytes: Some(u32::from(plan.large_blocks) * BLOCK_BYTES as u32),
            size_bytes: Some(plan.logical_blocks * BLOCK_BYTES as u64),
            raid_devices: array.slots.len(),
            events: array.speaker.sequence,
            would_start: array.start.is_ok() && is_free,
            refusal: array.start.as_ref().err().map(ToString::to_string).or_else(busy),
            refusal_kind: array
                .start
                .as_ref()
                .err()
                .map(kind_of)
                .or((!is_free).then_some(ExitKind::MemberInUse)),
            in_use: in_use.to_vec(),
            missing_slots: (0..array.slots.len()).filter(|slot| array.slots[*slot].is_none()).collect(),
            resync_from_bytes: None,
            redo_records: 0,
            redo_stripes: Vec::new(),
            in_doubt: Vec::new(),
            in_doubt_reason: None,
            taken_by_force: Vec::new(),
            candidates: array.verdicts.iter().map(|candidate| self.candidate(candidate)).collect(),
        }
    }

    fn candidate(&self, (index, verdict): &(usize, Verdict)) -> AnswerCandidate {
        let superblock = &self.candidates.read[*index].superblock;
        AnswerCandidate {
            path: self.candidates.paths[*index].display().to_string(),
            verdict: verdict.clone(),
            basis: Some(Basis {
                events: superblock.sequence,
                device_uuid: display_uuid(&superblock.device_uuid),
                device_role: superblock
                    .own_member()
                    .slot
                    .map_or("spare".to_owned(), |slot| format!("slot {slot}")),
                update_unix_s: superblock.utime_s,
                clean: superblock.clean,
                served_epoch: Some(superblock.served.map_or("none".to_owned(), |epoch| epoch.to_string())),
            }),
        }
    }
}

fn in_use(candidates: &ZonedCandidates, array: &ZonedAssembly) -> Vec<Problem> {
    if array.start.is_err() {
        return Vec::new();
    }
    let taken = array.slots.iter().flatten().map(|index| &candidates.paths[*index]);
    let problems = taken.filter_map(|path| MemberFile::check_free(path).err());
    problems.filter(|problem| problem.kind == ExitKind::MemberInUse).collect()
}
