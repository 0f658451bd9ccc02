//! What a piece of Python costs: bare, in a cold sandbox, from a pool of warm ones; and how many of them in a second.
//!
//! `cargo run --release --example code_speed [WARM [EXECUTIONS]]`. It measures, and asserts nothing but the results.
#![allow(clippy::print_stdout, reason = "it is what it is for")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringfence::Choice;
use ringfence::code::{self, Code, Language, Pool, Warm};
use ringfence::policy::{Inputs, Layer, resolve};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let size = args.next().transpose()?.unwrap_or(4);
    let executions = args.next().transpose()?.unwrap_or(1000);
    let facts = ringfence::facts::gather()?;
    let mut flags = Layer::flags();
    flags.profile("skill");
    let mut policy = resolve(Inputs::new(std::env::current_dir()?.canonicalize()?, facts.home.clone(), flags))?.policy;
    policy.limits.cpus = None;
    policy.warm = size;
    let language = Language::named("python").ok_or("no Python")?;
    let snippet = Code::new(language, "1 + 1");

    let bare = median(100, || {
        let mut command = Command::new("python3");
        command.args(["-I", "-S", "-c", "pass"]).stdin(Stdio::null());
        command.status().map(drop).map_err(Into::into)
    })?;
    println!("bare python3 -I -S -c pass   {:>8.2} ms", millis(bare));
    let cold = median(50, || Ok(drop(code::run(&snippet, &policy, &facts, Choice::Auto, None)?)))?;
    println!("cold, through the library    {:>8.2} ms  {:.2} × bare", millis(cold), ratio(cold, bare));
    let pool = Pool::new(Warm { language, packages: false, preload: Vec::new() }, &policy, &facts, Choice::Auto)?;
    let mut latencies = Vec::new();
    for _ in 0..100 {
        // Only what is ready counts as latency; the rate is measured below.
        while pool.ready() < size as usize {
            std::thread::sleep(Duration::from_millis(2));
        }
        let started = Instant::now();
        pool.run(&snippet, None)?;
        latencies.push(started.elapsed());
    }
    latencies.sort();
    let warm = latencies[latencies.len() / 2];
    println!("warm, through the library    {:>8.2} ms  {:.2} × bare", millis(warm), ratio(warm, bare));

    let before = descriptors()?;
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..size {
            scope.spawn(|| {
                for _ in 0..executions / size.max(1) {
                    if pool.run(&snippet, None).is_err() {
                        println!("an execution failed");
                    }
                }
            });
        }
    });
    let rate = (executions / size.max(1) * size) as f64 / started.elapsed().as_secs_f64();
    println!("sustained, {executions} executions   {rate:>6.0} /s");
    drop(pool);
    println!("descriptors before and after  {before} {}", descriptors()?);
    Ok(())
}

fn descriptors() -> std::io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

fn median(
    count: usize,
    mut act: impl FnMut() -> Result<(), Box<dyn std::error::Error>>,
) -> Result<Duration, Box<dyn std::error::Error>> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let started = Instant::now();
        act()?;
        times.push(started.elapsed());
    }
    times.sort();
    Ok(times[count / 2])
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn ratio(time: Duration, to: Duration) -> f64 {
    time.as_secs_f64() / to.as_secs_f64()
}
