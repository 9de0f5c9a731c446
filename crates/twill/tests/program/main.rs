//! The program as a person runs it: the built binary on temporary files. What it refuses leaves every byte as it was.

mod assemble;
mod create;
mod examine;
mod serve;
mod world;
