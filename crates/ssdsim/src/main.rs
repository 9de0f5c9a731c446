//! quick
use std::time::Instant;
use ssdsim::{device::Device, generate, policy::{Chooser, Policy}, simulator::{Behaviour, Simulator}, trace::Trace, warmup::WarmUp};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let n: u64 = args[2].parse().unwrap();
    let t0 = Instant::now();
    let trace = match generate::profile(&args[1]) { Some(p) => generate::generate(p, n, 1), None => Trace::read(args[1].as_ref()).unwrap() };
    println!("gen {:?}", t0.elapsed());
    let mut device = Device::table_ii(5);
    if args.get(3).is_some_and(|a| a == "serial") { device = device.with_serial_channels(); }
    let t0 = Instant::now();
    let mut sim = Simulator::new(&device, Behaviour::default(), 1).unwrap();
    sim.warm_up(WarmUp::default(), &trace, 1);
    println!("warm {:?}", t0.elapsed());
    for policy in Policy::ALL {
        let s = sim.clone();
        let t0 = Instant::now();
        let o = s.run(&trace, &Chooser::new(policy));
        let dt = t0.elapsed().as_secs_f64();
        println!("{:9} {:.2}M req/s {:.2}M ops/s | mean {:.3} r {:.3} w {:.3} p999 {:.2} cv {:.3} waf {:.2} | rmw {} rcw {} (full {}) adj {} | held {} buf {} gc {:.3} busy {:.3}", policy.name(), o.requests as f64/dt/1e6, o.flash_ops as f64/dt/1e6, o.all.mean_ns/1e6, o.read.mean_ns/1e6, o.write.mean_ns/1e6, o.all.p999_ns as f64/1e6, o.cv, o.write_amplification, o.choices.rmw, o.choices.rcw, o.choices.full, o.choices.adjusted, o.held_writes, o.buffer_reads, o.channels[0].gc_share, o.channels[0].chip_busy_share);
        println!("   blocked {:?} gc {:?}", o.channels.iter().map(|c| (c.blocked_mean*100.0).round()/100.0).collect::<Vec<_>>(), o.channels.iter().map(|c| c.collections).collect::<Vec<_>>());
    }
}
