//! Plain sockets that move the bytes of the same requests, with as few system calls as a target could have: all that is there is
//! received at once, and all answers to it are sent at once.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::row::Row;

/// A command, and the header of data.
const COMMAND_BYTES: usize = 72;
/// A completion, or the header of data.
const ANSWER_BYTES: usize = 24;
/// As much as one call moves.
const CALL_BYTES: usize = 256 << 10;

/// What plain sockets did.
pub struct Plain {
    pub requests: u64,
    pub seconds: f64,
    /// Processor time of the end that answers.
    pub server_seconds: f64,
}

/// Moves requests of one kind for a time.
pub fn measure(row: &Row, seconds: f64, server_core: usize, client_core: usize) -> Result<Plain> {
    let (out, back) = match row.work {
        "randread" => (COMMAND_BYTES, ANSWER_BYTES + row.bytes as usize),
        _ => (COMMAND_BYTES + row.bytes as usize, ANSWER_BYTES),
    };
    let listener = TcpListener::bind("127.0.0.1:0").context("a port")?;
    let address = listener.local_addr()?;
    let server = std::thread::spawn(move || -> Result<f64> {
        pin(server_core)?;
        let (socket, _) = listener.accept()?;
        serve(socket, out, back)
    });
    let depth = row.depth as usize;
    let client = std::thread::spawn(move || -> Result<(u64, f64)> {
        pin(client_core)?;
        let socket = TcpStream::connect(address)?;
        ask(socket, (out, back), depth, Duration::from_secs_f64(seconds))
    });
    let (requests, seconds) = client.join().expect("the client does not panic")?;
    let server_seconds = server.join().expect("the server does not panic")?;
    Ok(Plain { requests, seconds, server_seconds })
}

/// Answers until the other end closes; the processor time of that.
fn serve(mut socket: TcpStream, request: usize, answer: usize) -> Result<f64> {
    socket.set_nodelay(true)?;
    let mut received = vec![0; CALL_BYTES];
    let answers = vec![0; CALL_BYTES];
    let mut waiting = 0;
    let before = thread_seconds()?;
    loop {
        let got = socket.read(&mut received)?;
        if got == 0 {
            return Ok(thread_seconds()? - before);
        }
        waiting += got;
        let mut left = waiting / request * answer;
        waiting %= request;
        while left > 0 {
            let bytes = left.min(CALL_BYTES);
            socket.write_all(&answers[..bytes])?;
            left -= bytes;
        }
    }
}

/// Keeps `depth` requests in flight; how many were answered, and in how many seconds.
fn ask(mut socket: TcpStream, bytes: (usize, usize), depth: usize, time: Duration) -> Result<(u64, f64)> {
    let (request, answer) = bytes;
    socket.set_nodelay(true)?;
    let mut received = vec![0; CALL_BYTES];
    let requests = vec![0; CALL_BYTES.max(request)];
    let (mut to_send, mut waiting, mut done) = (depth, 0, 0);
    let start = Instant::now();
    while start.elapsed() < time {
        while to_send > 0 {
            let now = to_send.min((CALL_BYTES / request).max(1));
            socket.write_all(&requests[..now * request])?;
            to_send -= now;
        }
        let got = socket.read(&mut received)?;
        if got == 0 {
            break;
        }
        waiting += got;
        to_send = waiting / answer;
        waiting %= answer;
        done += to_send as u64;
    }
    let seconds = start.elapsed().as_secs_f64();
    socket.shutdown(Shutdown::Write)?;
    while socket.read(&mut received)? > 0 {}
    Ok((done, seconds))
}

/// Processor time of this thread.
fn thread_seconds() -> Result<f64> {
    let text =
        std::fs::read_to_string("/proc/thread-self/schedstat").context("/proc/thread-self/schedstat")?;
    let ns: f64 = text.split(' ').next().unwrap_or("").parse().context("/proc/thread-self/schedstat")?;
    Ok(ns / 1e9)
}

/// Keeps this thread on one core.
fn pin(core: usize) -> Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).with_context(|| format!("there is no core {core}"))
}
