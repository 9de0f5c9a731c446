//! What a run of the simulator did, so that "nothing was found" says how hard it looked.

use engine::counters::CounterTotals;
use engine::stripe::locks::Locks;

macro_rules! counts {
    ($($group:literal: $($name:ident),+;)+) => {
        /// Counts of one history or of many.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[doc = concat!("Count of `", stringify!($name), "`.")] pub $name: u64,)+)+ }

        impl Counts {
            /// Adds the counts of another history.
            pub fn add(&mut self, other: &Counts) {
                $($(self.$name += other.$name;)+)+
            }

            /// Group, name and count of each.
            pub fn table(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$($(($group, stringify!($name), self.$name),)+)+]
            }
        }
    };
}

counts! {
    "": histories, crash_histories, crash_points, crash_images;
    "zoned arrays": zoned_histories, zoned_points, zoned_recovery_points, zoned_members_missing, zoned_members_empty, zoned_faults_in_recovery,
        zoned_refused, zoned_full_starts, zoned_emptied, zoned_moved, zoned_joined, zoned_adopted, zoned_grown, zoned_second_starts, zoned_flips, zoned_flips_named, zoned_checks,
        zoned_checkpoints, zoned_map_written, zoned_from_checkpoint, zoned_left_out, zoned_replayed_groups, zoned_maps_compared;
    "requests": reads, foreign_reads, writes, fua_writes, flushes, zeroes, discards, request_errors;
    "member I/O": member_reads, member_writes, member_flushes, member_zeroes, member_discards;
    "faults": transient_errors, members_dead, members_gone, members_silent, bad_places, bad_places_after_crash, bad_blocks_recorded, full_members,
        slow_members, failed_flushes, superblocks_refused, failed_by_hand, members_away, beyond_the_level, metadata_lost,
        latent_errors, bit_flips, lost_writes, misdirected_writes, lost_orders, lost_contributions;
    "network": network_commands, network_cuts, network_restarts, network_damaged, network_take_overs, ledgers_used, network_grids, network_points;
    "repairs": replacements, replaced_working, stale_returns, re_added, recoveries, resyncs, stripes_resynced;
    "crash points by state": clean, one_degraded, two_degraded, recovering, resyncing, scrubbing,
        replacing;
    "power": power_cuts, kills, clean_stops, assemblies, started_in_doubt, logs_replayed, records_replayed, logs_voided, started_unmarked, started_read_only;
    "starts with a bitmap": locks_orig, locks_hemi, locks_scala, spread;
    "engine": joined_writes, full_stripe_writes, rmw, rcw, recovered_writes, reconstructed_reads, adjusted_updates,
        avoided_reads, cache_hits, peer_reads, peer_upkeep, peer_steps, resent_steps, mended_steps;
    "scrub": scrubs, lies_located, lies_named;
    "checks": blocks_read, blocks_on_acknowledgement, blocks_durable, blocks_after_cut, stripes_parity, copies_equal,
        cached_parity, tables_empty;
}

impl Counts {
    /// An array has started; with a bitmap: the locks over it, and whether its bits are spread.
    pub(crate) fn add_bitmap(&mut self, bitmap: Option<(Locks, bool)>) {
        let Some((locks, is_spread)) = bitmap else { return };
        self.spread += u64::from(is_spread);
        match locks {
            Locks::Orig => self.locks_orig += 1,
            Locks::Hemi => self.locks_hemi += 1,
            Locks::Scala => self.locks_scala += 1,
        }
    }

    pub(crate) fn add_engine(&mut self, totals: &CounterTotals) {
        self.joined_writes += totals.joined_writes;
        self.full_stripe_writes += totals.full_stripe_writes;
        self.rmw += totals.rmw;
        self.rcw += totals.rcw;
        self.recovered_writes += totals.recovered_writes;
        self.reconstructed_reads += totals.reconstructed_reads;
        self.adjusted_updates += totals.adjusted_updates;
        self.avoided_reads += totals.avoided_reads;
        self.peer_reads += totals.peer_reads;
        self.peer_upkeep += totals.peer_upkeep;
        self.peer_steps += totals.peer_steps;
        self.resent_steps += totals.resent_steps;
        self.mended_steps += totals.mended_steps;
    }
}
