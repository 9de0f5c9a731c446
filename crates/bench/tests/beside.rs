//! Tiny comparisons with other programs; each says what is missing where they are not installed.

use std::process::{Command, Stdio};

use bench::Error;
use bench::beside::{files, nbd};
use bench::setting::Setting;

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

#[test]
fn an_array_beside_nbdkit() {
    let plan = nbd::Plan {
        runs: 1,
        runtime: 0.05,
        sizes: vec![4096, 128 << 10],
        iodepth: 4,
        works: vec!["randread".to_string(), "randwrite".to_string()],
        array: Setting { members: vec!["memory:6x8M".to_string()], ..Setting::default() },
        bytes: 8 << 20,
    };
    match nbd::measure(&plan, &|_| {}) {
        Ok(found) => {
            assert_eq!(found.pairs.len(), 4);
            for pair in &found.pairs {
                assert!(pair.ratio > 0.0 && pair.twill.iops.median > 0.0, "{pair:?}");
            }
            assert!(found.words().contains("| randread 4K |"), "{}", found.words());
        }
        Err(Error::Program { name, reason }) if !is_installed(name) => {
            assert!(reason.contains("not installed"), "{reason}");
            eprintln!("skipped: {name} is not installed");
        }
        Err(Error::Program { name: "fio", reason }) if reason.contains("nbd") => {
            eprintln!("skipped: fio has no nbd engine: {reason}");
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn an_array_on_files_beside_fio() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |slot: usize| folder.path().join(format!("m:{slot}")).display().to_string();
    let members: Vec<String> = (0..4).map(path).collect();
    let array =
        Setting { members: members.clone(), runtime: 0.05, ramp: 0.0, iodepth: 4, ..Setting::default() };
    let plan =
        files::Plan { runs: 1, array, sizes: vec![4096], engine: "psync".to_string(), make: Some(2 << 20) };
    match files::measure(&plan, &|_| {}) {
        Ok(found) => {
            assert_eq!(found.pairs.len(), 2);
            assert!(
                found.pairs.iter().all(|pair| pair.ceiling_iops.is_some_and(|iops| iops > 0.0)),
                "{found:?}"
            );
        }
        Err(Error::Program { name, .. }) if !is_installed(name) => {
            eprintln!("skipped: {name} is not installed");
        }
        Err(error) => panic!("{error}"),
    }
    assert!(members.iter().all(|member| !std::path::Path::new(member).exists()), "made files go again");
    let memory = Setting { members: vec!["memory:4x2M".to_string()], ..Setting::default() };
    assert!(matches!(
        files::measure(&files::Plan { array: memory, ..plan }, &|_| {}),
        Err(Error::Setting(_))
    ));
}
