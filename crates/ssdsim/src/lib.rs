//! ssdsim
