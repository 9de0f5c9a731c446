//! What all shards of an in-place array share.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use super::absences::Absences;
use super::consistency::Consistency;
use super::intent::Intent;
use super::parity_cache::ParityCache;
use super::redo::state::Redo;
use super::stripe_table::StripeTable;
use crate::counters::Counters;
use crate::fabric::mode::PeerMode;
use crate::foreground::Foreground;
use crate::limits::READ_TURN_BYTES;
use crate::members::health::Members;
use crate::members::load::Loads;
use crate::stages::Observer;
use layout::geometry::{Geometry, Raid0Zones};

/// What all shards of an in-place array share.
pub struct Shared {
    /// Where every byte lives.
    pub geometry: Geometry,
    /// Where the chunks of a RAID-0 are whose members differ in size.
    unequal_zones: Option<Arc<Raid0Zones>>,
    /// The members' health.
    pub members: Arc<Members>,
    /// How busy the members are.
    pub loads: Arc<Loads>,
    /// Counters by shard.
    pub counters: Arc<[Counters]>,
    /// How long clients' requests take.
    pub foreground: Foreground,
    /// The owners of stripes, and of a mirror's regions.
    pub table: Arc<StripeTable>,
    /// Write intent: what is durable before a stripe or region changes.
    pub intent: Intent,
    /// Where parity or copies may not agree.
    pub consistency: Consistency,
    /// What members that are away still hold.
    pub absences: Absences,
    /// The redo log: what is durable before a stripe changes while members are missing.
    pub redo: Redo,
    /// The parity cache.
    pub cache: Arc<ParityCache>,
    /// Whether members' targets make parity among themselves, where they can ([`crate::fabric`]).
    pub peers: PeerMode,
    /// Writes join an owner's batch until it has read old data (StRAID 4.3).
    pub two_phase: AtomicBool,
    /// Measures the stages of stripe writes; set before any shard opens the array, or never.
    pub observer: OnceLock<Arc<dyn Observer>>,
    /// Structures check themselves at each flush: for tests, since the checks cost more than the work.
    verify: AtomicBool,
    /// Reads of a mirror move on to the next copy after this many bytes of a member.
    pub read_turn_bytes: u64,
}

impl Shared {
    /// The shared part of an array for `shards` shards.
    pub fn new(
        geometry: Geometry,
        members: Members,
        intent: Intent,
        shards: usize,
        cache_bytes: usize,
    ) -> Arc<Self> {
        let cache = Arc::new(ParityCache::new(cache_bytes));
        let of_failed = Arc::clone(&cache);
        members.on_failure(Box::new(move || of_failed.clear()));
        Arc::new(Shared {
            consistency: Consistency::default(),
            absences: Absences::default(),
            redo: Redo::new(geometry.members()),
            geometry,
            unequal_zones: None,
            table: StripeTable::new(intent.locks()),
            cache,
            members: Arc::new(members),
            intent,
            counters: (0..shards).map(|_| Counters::default()).collect(),
            peers: PeerMode::default(),
            two_phase: AtomicBool::new(true),
            verify: AtomicBool::new(false),
            read_turn_bytes: READ_TURN_BYTES,
            loads: Arc::new(Loads::new(shards, geometry.members())),
            observer: OnceLock::new(),
            foreground: Foreground::default(),
        })
    }

    /// The members of a RAID-0 differ in size. Called before any shard opens the array.
    pub(crate) fn set_unequal_zones(&mut self, zones: &Arc<Raid0Zones>) {
        assert_eq!(self.geometry, zones.geometry(), "zones and geometry of one array");
        self.unequal_zones = Some(Arc::clone(zones));
    }

    /// Where the chunks of a RAID-0 are.
    pub(crate) fn raid0_zones(&self) -> Arc<Raid0Zones> {
        self.unequal_zones.clone().unwrap_or_else(|| Arc::new(Raid0Zones::of_equal(&self.geometry)))
    }

    /// From now on nothing is written to the members. Called before the first request.
    pub fn set_read_only(&self) {
        self.members.set_read_only();
    }

    /// Whether members' targets may record what is under way, so that the next host makes no other stripes agree: all that is
    /// written down of this array says that it agrees but for that.
    pub fn may_be_recorded(&self) -> bool {
        let has_record = self.geometry.parity_chunks() > 0 && self.intent.is_used();
        has_record && self.members.all_in_sync() && self.consistency.is_settled()
    }

    /// Whether structures check themselves at each flush.
    pub fn set_verify(&self, verify: bool) {
        self.verify.store(verify, Relaxed);
    }

    /// Runs the self-checks that hold while requests are in flight, if [`Shared::set_verify`] asked for them.
    pub(crate) fn verify(&self) {
        if self.verify.load(Relaxed) {
            self.cache.self_check();
            self.consistency.self_check();
            self.absences.self_check();
            self.intent.self_check();
        }
    }

    /// Runs every self-check. Called while no task of any shard runs.
    ///
    /// # Panics
    /// If a structure contradicts itself.
    pub fn self_check(&self) {
        self.table.self_check();
        self.cache.self_check();
        self.consistency.self_check();
        self.absences.self_check();
        self.intent.self_check();
    }
}
