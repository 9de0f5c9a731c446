//! The machine that figures hold for.

use serde::Serialize;

/// What a reader has to know of the machine.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Release of the kernel.
    pub kernel: String,
    /// Kernels of the parity library in use.
    pub parity_kernel: &'static str,
    /// Load average of the last minute before the run: above 0 somebody else was at work.
    pub load_before: f64,
}

impl Machine {
    /// This machine, now.
    pub fn now() -> Self {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let info = text("/proc/cpuinfo");
        let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Machine {
            cpu: model.map_or_else(|| std::env::consts::ARCH.to_string(), |(_, model)| model.to_string()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: text("/proc/sys/kernel/osrelease").trim().to_string(),
            parity_kernel: parity::kernel_name(),
            load_before: text("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(0.0),
        }
    }
}
