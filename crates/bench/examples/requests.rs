//! One run of `twill bench` on members that copy nothing, for `cargo xtask instructions`: without the rest of the program it is
//! built in a third of the time.
//!
//! `requests 20000 level=6 rw=randwrite bs=65536 parity-cache=0 fail=0`; only the number of requests has to be given.

use std::error::Error;
use std::process::ExitCode;

use bench::run::run;
use bench::setting::Setting;

fn main() -> ExitCode {
    match setting().and_then(|setting| Ok(run(&setting)?)) {
        Ok(figures) => {
            println!("{} requests", figures.requests.reads + figures.requests.writes);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("requests: {error}");
            ExitCode::FAILURE
        }
    }
}

fn setting() -> Result<Setting, Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let requests = words.next().ok_or("the number of requests is missing")?.parse()?;
    let mut setting = Setting {
        members: vec!["null:6x2G".to_owned()],
        requests: Some(requests),
        roofline: false,
        // Valgrind lets no other thread run while one waits in io_uring.
        io_uring: false,
        ..Setting::default()
    };
    for word in words {
        let (key, value) = word.split_once('=').ok_or_else(|| format!("{word:?} is not KEY=VALUE"))?;
        match key {
            "level" => value.clone_into(&mut setting.level),
            "rw" => setting.rw = value.parse()?,
            "bs" => setting.bs = value.parse()?,
            "parity-cache" => setting.parity_cache = value.parse()?,
            "fail" => setting.fail = vec![value.parse()?],
            _ => return Err(format!("{key:?} is not known").into()),
        }
    }
    Ok(setting)
}
