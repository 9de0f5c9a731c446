//! The program `twill`; all of it is in the library beside, so that a fuzzer reaches it, too.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    twill::main()
}
