//! Throughput of the kernels.

fn main() {}
