//! Taking times: everybody in every round, in an order of its own, so that what disturbs one disturbs all.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Why a contender did not run, in words.
pub type Failure = String;

/// Somebody who does the same thing in another way.
pub struct Contender<'a> {
    pub name: String,
    /// What is timed. From several threads at once where a crowd is measured.
    pub run: Box<dyn Fn() -> Result<(), Failure> + Sync + 'a>,
    /// Done before each run, and not timed.
    pub prepare: Option<Box<dyn Fn() -> Result<(), Failure> + Sync + 'a>>,
}

impl std::fmt::Debug for Contender<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contender").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<'a> Contender<'a> {
    pub fn new(name: impl Into<String>, run: impl Fn() -> Result<(), Failure> + Sync + 'a) -> Contender<'a> {
        Contender { name: name.into(), run: Box::new(run), prepare: None }
    }

    pub fn prepared(mut self, prepare: impl Fn() -> Result<(), Failure> + Sync + 'a) -> Contender<'a> {
        self.prepare = Some(Box::new(prepare));
        self
    }

    fn time(&self) -> Result<Duration, Failure> {
        self.prepare()?;
        // The kernel takes the namespaces of the one before down later: that is nobody else's cost.
        std::thread::sleep(SETTLING);
        let start = Instant::now();
        (self.run)()?;
        Ok(start.elapsed())
    }

    fn prepare(&self) -> Result<(), Failure> {
        self.prepare.as_ref().map_or(Ok(()), |prepare| prepare())
    }
}

const SETTLING: Duration = Duration::from_millis(2);

/// Left out, and why.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Skip {
    pub name: String,
    pub reason: String,
}

/// The times of one contender, in milliseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Times {
    pub name: String,
    pub median_ms: f64,
    pub min_ms: f64,
    pub samples: usize,
}

impl Times {
    pub fn of(name: &str, samples: &[Duration]) -> Times {
        let millis: Vec<f64> = samples.iter().map(|d| d.as_secs_f64() * 1e3).collect();
        Times {
            name: name.to_owned(),
            median_ms: median(&millis),
            min_ms: millis.iter().copied().fold(f64::INFINITY, f64::min),
            samples: millis.len(),
        }
    }
}

/// The middle; of an even number the mean of both middles.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    pub rounds: usize,
    /// No round begins after this.
    pub budget: Duration,
}

/// Samples that even the slowest contender is asked for.
const FEWEST: usize = 5;

/// Times everybody, interleaved. Who is slow sits out rounds, so that its share of the time stays bounded.
pub fn interleave(contenders: &[Contender<'_>], extent: Extent) -> (Vec<Times>, Vec<Skip>) {
    let mut skips = Vec::new();
    let mut racers = Vec::new();
    let share = extent.budget / contenders.len().max(1) as u32;
    for contender in contenders {
        // Twice: the first run also reads the program from the disk.
        match contender.time().and_then(|_| contender.time()) {
            Ok(once) => racers.push(Racer { contender, stride: stride(extent.rounds, share, once), times: Vec::new() }),
            Err(reason) => skips.push(Skip { name: contender.name.clone(), reason }),
        }
    }
    let end = Instant::now() + extent.budget;
    let mut shuffle = Shuffle(0x9e37_79b9_7f4a_7c15);
    for round in 0..extent.rounds {
        if Instant::now() >= end {
            break;
        }
        let mut failed = None;
        for index in shuffle.order(racers.len()) {
            let racer = &mut racers[index];
            if round % racer.stride != 0 {
                continue;
            }
            match racer.contender.time() {
                Ok(time) => racer.times.push(time),
                Err(reason) => failed = Some((index, reason)),
            }
        }
        if let Some((index, reason)) = failed {
            let racer = racers.remove(index);
            skips.push(Skip {
                name: racer.contender.name.clone(),
                reason: format!("failed in round {round}: {reason}"),
            });
        }
    }
    (racers.iter().map(|r| Times::of(&r.contender.name, &r.times)).collect(), skips)
}

struct Racer<'a, 'b> {
    contender: &'a Contender<'b>,
    stride: usize,
    times: Vec<Duration>,
}

/// Takes part in every so-manieth round.
fn stride(rounds: usize, share: Duration, once: Duration) -> usize {
    let affordable = (share.as_secs_f64() / once.as_secs_f64().max(1e-6)) as usize;
    (rounds / affordable.clamp(FEWEST.min(rounds).max(1), rounds.max(1))).max(1)
}

/// The order of a round. The same in every run of the program: chance is not what is measured.
struct Shuffle(u64);

impl Shuffle {
    fn order(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            // xorshift64
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            order.swap(i, (self.0 % (i as u64 + 1)) as usize);
        }
        order
    }
}

/// How many runs a second so many threads get through.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Rate {
    pub name: String,
    pub median_per_second: f64,
    pub best_per_second: f64,
    pub runs: u64,
}

/// Lets each contender run from so many threads at once, in turns of a slice of time.
pub fn crowd(
    contenders: &[Contender<'_>],
    threads: usize,
    rounds: usize,
    slice: Duration,
    pause: Duration,
) -> (Vec<Rate>, Vec<Skip>) {
    let mut skips = Vec::new();
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); contenders.len()];
    let mut runs = vec![0; contenders.len()];
    let mut out = vec![false; contenders.len()];
    for _ in 0..rounds {
        for (index, contender) in contenders.iter().enumerate() {
            if out[index] {
                continue;
            }
            match contender.prepare().and_then(|()| one_slice(contender, threads, slice)) {
                Ok((count, took)) => {
                    rates[index].push(count as f64 / took.as_secs_f64());
                    runs[index] += count;
                }
                Err(reason) => {
                    out[index] = true;
                    skips.push(Skip { name: contender.name.clone(), reason });
                }
            }
            // As above.
            std::thread::sleep(pause);
        }
    }
    let finished = (0..contenders.len()).filter(|i| !out[*i] && !rates[*i].is_empty());
    let rates = finished.map(|i| Rate {
        name: contenders[i].name.clone(),
        median_per_second: median(&rates[i]),
        best_per_second: rates[i].iter().copied().fold(0.0, f64::max),
        runs: runs[i],
    });
    (rates.collect(), skips)
}

fn one_slice(contender: &Contender<'_>, threads: usize, slice: Duration) -> Result<(u64, Duration), Failure> {
    let count = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    let work = || -> Result<(), Failure> {
        // At least one each, however slow.
        loop {
            if let Err(reason) = (contender.run)() {
                stop.store(true, Ordering::Relaxed);
                return Err(reason);
            }
            count.fetch_add(1, Ordering::Relaxed);
            if stop.load(Ordering::Relaxed) || start.elapsed() >= slice {
                return Ok(());
            }
        }
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|w| w.join().unwrap_or_else(|_| Err("panicked".to_owned()))).collect()
    });
    results.into_iter().collect::<Result<Vec<()>, _>>()?;
    Ok((count.load(Ordering::Relaxed), start.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn every_order_is_a_permutation() {
        let mut shuffle = Shuffle(1);
        for n in 0..20 {
            let mut order = shuffle.order(n);
            order.sort_unstable();
            assert_eq!(order, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn slow_ones_sit_out() {
        let share = Duration::from_secs(3);
        assert_eq!(stride(300, share, Duration::from_millis(1)), 1);
        assert_eq!(stride(300, share, Duration::from_millis(100)), 10);
        assert_eq!(stride(300, share, Duration::from_secs(100)), 60);
        assert_eq!(stride(3, share, Duration::from_secs(100)), 1);
    }

    #[test]
    fn who_fails_is_left_out_with_the_reason() {
        let good = Contender::new("good", || Ok(()));
        let bad = Contender::new("bad", || Err("no".to_owned()));
        let extent = Extent { rounds: 10, budget: Duration::from_secs(1) };
        let (times, skips) = interleave(&[good, bad], extent);
        assert_eq!((times[0].name.as_str(), times[0].samples), ("good", 10));
        assert_eq!((skips[0].name.as_str(), skips[0].reason.as_str()), ("bad", "no"));
    }
}
