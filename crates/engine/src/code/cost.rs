//! What a parity update costs: Eq. 3 to 9 and lines 6 to 22 of Algorithm 1 of the adaptive-parity paper.
//!
//! Pure, without state and without an import, so that the simulator and a live engine can use the same code. A
//! *member* is what holds one chunk of a stripe: a channel here, a drive in an array. All times are nanoseconds.
//!
//! | paper | here |
//! |---|---|
//! | R_i, W_i | [`MemberLoad::reads`], [`MemberLoad::writes`] |
//! | t_R | [`MemberLoad::read_ns`], for each member on its own: "adjusted in response to the LDPC levels" |
//! | T_GC_i, 0 while there is no collection | [`MemberLoad::gc_ns`] |
//! | Θ_RMW, Θ_RCW | the members given to [`routine_cost`] |
//! | T_x_Update, T_x_Delay | [`RoutineCost::update_ns`], [`RoutineCost::delay_ns`] |

/// How busy one member of a stripe is when the routine is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberLoad {
    /// Reads waiting on the member (R_i).
    pub reads: u32,
    /// Writes waiting on the member (W_i).
    pub writes: u32,
    /// What one read takes there: a constant of the device or a moving average (t_R).
    pub read_ns: u64,
    /// What the collection now running there takes, 0 if none runs (T_GC_i).
    pub gc_ns: u64,
}

/// The two parts of what a routine costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoutineCost {
    /// Until the slowest pre-read is back (Eq. 4, 5).
    pub update_ns: u64,
    /// What the pre-reads add to the writes that wait behind them (Eq. 6, 7).
    pub delay_ns: u64,
}

impl RoutineCost {
    /// The whole cost (Eq. 8, 9).
    pub fn total_ns(self) -> u64 {
        self.update_ns + self.delay_ns
    }
}

/// How a stripe's new parity is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routine {
    /// Read-modify-write: pre-reads the old parity and the old content of what is written.
    Rmw,
    /// Read-construct-write: pre-reads the data chunks that are not written.
    Rcw,
}

/// Eq. 3: the mean time of a collection, from what all collections so far moved and erased.
pub fn gc_time_ns(read_ns: u64, write_ns: u64, erase_ns: u64, moves: u64, erases: u64) -> u64 {
    ((read_ns + write_ns) * moves).checked_div(erases).unwrap_or(0) + erase_ns
}

/// Eq. 4 to 7 for the members that a routine pre-reads from. No member, no cost: a full-stripe write by RCW.
pub fn routine_cost(members: impl IntoIterator<Item = MemberLoad>) -> RoutineCost {
    let mut cost = RoutineCost::default();
    for member in members {
        let update_ns = member.read_ns * (u64::from(member.reads) + 1) + member.gc_ns;
        cost.update_ns = cost.update_ns.max(update_ns);
        cost.delay_ns += member.read_ns * u64::from(member.writes);
    }
    cost
}

/// Algorithm 1, lines 19 to 22: RCW only when it is strictly cheaper.
pub fn cheaper(rmw: RoutineCost, rcw: RoutineCost) -> Routine {
    if rmw.total_ns() > rcw.total_ns() { Routine::Rcw } else { Routine::Rmw }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(reads: u32, writes: u32, gc_ns: u64) -> MemberLoad {
        MemberLoad { reads, writes, read_ns: 100, gc_ns }
    }

    #[test]
    fn equation_3_is_moves_per_erase() {
        assert_eq!(gc_time_ns(45, 700, 3500, 30, 3), (45 + 700) * 10 + 3500);
        assert_eq!(gc_time_ns(45, 700, 3500, 0, 0), 3500);
    }

    #[test]
    fn update_is_the_slowest_member_and_delay_the_sum() {
        let cost = routine_cost([load(2, 3, 0), load(0, 4, 1000), load(5, 0, 0)]);
        assert_eq!(cost, RoutineCost { update_ns: 1100, delay_ns: 700 });
        assert_eq!(cost.total_ns(), 1800);
    }

    /// The shape of the paper's Fig. 5: CH0 and CH5 are loaded and CH5 collects, so four pre-reads beat two.
    #[test]
    fn figure_5_prefers_more_pre_reads_on_idle_channels() {
        let rmw = routine_cost([load(1, 3, 0), load(2, 3, 20_000)]);
        let rcw = routine_cost([load(0, 1, 0), load(1, 0, 0), load(2, 1, 0), load(0, 1, 0)]);
        assert_eq!(cheaper(rmw, rcw), Routine::Rcw);
    }

    #[test]
    fn a_tie_goes_to_rmw_and_a_full_stripe_to_rcw() {
        let idle = routine_cost([load(0, 0, 0)]);
        assert_eq!(cheaper(idle, idle), Routine::Rmw);
        assert_eq!(cheaper(idle, routine_cost([])), Routine::Rcw);
    }
}
